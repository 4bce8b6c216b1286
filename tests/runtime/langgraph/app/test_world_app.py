"""The files of a graph follow its checkpoints."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

import ramify.graph
from ramify import Sandbox, SyncSandbox, current_sandbox, step
from ramify.compiler.plan import OpKind
from ramify.runtime.errors import NotInARun
from ramify.runtime.langgraph.errors import NodesConflict, WorldLost
from ramify.runtime.records import OpStatus, RunStatus
from tests.runtime.langgraph.app.world_graphs import CONFIG, State, at, chain, fan, files, look, names, writer


def test_nodes_act_on_one_world_and_the_workspace_stays_as_it_was(compile_graph: Any, workspace: Path) -> None:
    app = compile_graph(chain(("a", writer("a")), ("b", writer("b")), ("c", look)))
    seen = app.invoke({"seen": []})["seen"]
    assert seen == [["hello.txt"], ["a", "hello.txt"], ["a", "b", "hello.txt"]]
    assert names(type("Tree", (), {"path": workspace})) == ["hello.txt"]


async def test_every_way_to_the_world(compile_graph: Any) -> None:
    async def annotated(state: State, sandbox: Sandbox) -> State:
        return {"seen": [(await sandbox.run("echo > a; ls")).stdout.split()]}

    async def ambient(state: State) -> State:
        return {"seen": [(await current_sandbox().run("echo > b; ls")).stdout.split()]}

    def blocking(state: State, sandbox: SyncSandbox) -> State:
        return {"seen": [sandbox.run("echo > c; ls", check=True).stdout.split()]}

    def blocking_ambient(state: State) -> State:
        found: Any = current_sandbox()
        return {"seen": [found.run("ls").stdout.split()]}

    nodes = [("a", annotated), ("b", ambient), ("c", blocking), ("d", blocking_ambient)]
    seen = (await compile_graph(chain(*nodes)).ainvoke({"seen": []}))["seen"]
    assert seen == [
        ["a", "hello.txt"],
        ["a", "b", "hello.txt"],
        ["a", "b", "c", "hello.txt"],
        ["a", "b", "c", "hello.txt"],
    ]


def test_going_back_brings_the_files_back_and_running_on_is_a_branch(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(chain(("a", writer("a")), ("b", writer("b")), ("c", look)), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    end, back = at(app), at(app, "b")
    assert set(files(app, end.config)) == {"a", "b", "hello.txt"}
    assert set(files(app, back.config)) == {"a", "hello.txt"}
    assert [change.path for change in ramify.graph.changes(app, back.config, end.config)] == ["b"]
    assert app.invoke(None, back.config)["seen"][-2:] == [["a", "hello.txt"], ["a", "b", "hello.txt"]]
    runs = [(row.branch, row.step) for row in kept(app).ops if row.kind is OpKind.RUN]
    branch = "root/fork.superstep.0.0"
    assert runs == [("root", "a"), ("root", "b"), ("root", "c"), (branch, "b"), (branch, "c")]
    by_id = {row.id: row for row in kept(app).checkpoints}
    forked = next(row for row in by_id.values() if row.branch == branch)
    assert by_id[forked.parents[0]].label == "a"  # the checkpoint that was gone back to, not the end of root
    assert app.invoke({"n": 1}, CONFIG)["seen"][-3] == ["a", "b", "hello.txt"]  # the thread continues on the branch
    assert [row.branch for row in kept(app).ops][-1] == branch


def test_back_before_the_first_node_the_workspace_is_as_it_was_then(compile_graph: Any, workspace: Path) -> None:
    app = compile_graph(chain(("a", writer("a"))), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    (workspace / "later").touch()
    assert app.invoke(None, at(app, "a").config)["seen"] == [["hello.txt"]]
    assert app.invoke(None, at(app, "__start__").config)["seen"] == [["hello.txt"]]
    assert app.invoke({"seen": []}, {"configurable": {"thread_id": "2"}})["seen"] == [["hello.txt", "later"]]


def test_an_update_of_the_state_keeps_the_files(compile_graph: Any) -> None:
    app = compile_graph(chain(("a", writer("a")), ("b", writer("b")), ("c", look)), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    updated = app.update_state(at(app, "b").config, {"n": 7})
    result = app.invoke(None, updated)
    assert result["n"] == 7
    assert result["seen"][-1] == ["a", "b", "hello.txt"]


async def test_siblings_each_have_a_world_and_are_merged(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(fan(writer("left"), writer("right")), checkpointer=InMemorySaver())
    seen = (await app.ainvoke({"seen": []}, CONFIG))["seen"]
    assert seen[1:3] == [["first", "hello.txt"]] * 2
    assert seen[3] == ["first", "hello.txt", "left", "right"]
    rows = kept(app).ops
    plan = app.session.plan
    assert all(plan.op(row.op_id).kind is row.kind for row in rows)
    kinds = [row.kind for row in rows]
    assert [kinds.count(k) for k in (OpKind.FORK, OpKind.MERGE, OpKind.RELEASE)] == [1, 2, 1]
    assert {row.branch for row in rows if row.step in ("left", "right")} == {
        "root/fork.superstep.0.0",
        "root/fork.superstep.0.1",
    }


@pytest.mark.parametrize("slow", ["left", "right"])
def test_a_conflict_names_both_nodes_whoever_is_first(slow: str, compile_graph: Any, kept: Any) -> None:
    done = threading.Event()

    def side(name: str) -> Callable[..., State]:
        def write(state: State, sandbox: Sandbox) -> State:
            if name == slow:
                done.wait(10)
            (sandbox.path / "same").write_text(name)
            done.set()
            return {}

        return write

    app = compile_graph(fan(side("left"), side("right")), checkpointer=InMemorySaver())
    with pytest.raises(NodesConflict, match=r"'left' and 'right'.*same") as caught:
        app.invoke({"seen": []}, CONFIG)
    assert caught.value.nodes == ("left", "right")
    assert kept(app).runs[0].status is RunStatus.FAILED


def test_siblings_that_end_the_graph_are_merged_when_it_ends(compile_graph: Any, kept: Any) -> None:
    graph = StateGraph(State).add_node("l", writer("l")).add_node("r", writer("r"))
    app = compile_graph(graph.add_edge(START, "l").add_edge(START, "r"))
    app.invoke({"seen": []})
    assert [row.label for row in kept(app).checkpoints if row.branch == "root"] == ["workspace", "merge l", "merge r"]


def test_a_failed_attempt_leaves_no_files(compile_graph: Any, kept: Any) -> None:
    seen: list[list[str]] = []

    def flaky(state: State, sandbox: SyncSandbox) -> State:
        seen.append(names(sandbox))
        sandbox.run("touch half-done; echo oh no >&2; exit 3")
        if len(seen) < 2:
            raise OSError("try again")
        return {}

    policy = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError)
    graph = chain(("a", writer("a"))).add_node("flaky", flaky, retry_policy=policy).add_edge("a", "flaky")
    app = compile_graph(graph)
    app.invoke({"seen": []})
    assert seen == [["a", "hello.txt"]] * 2
    failed = [row for row in kept(app).ops if row.status is OpStatus.FAILED]
    assert [(row.step, row.error) for row in failed] == [("flaky", "OSError: try again")]
    assert "oh no" in failed[0].attrs["last_output"]


@pytest.mark.parametrize("sealed", [True, False])
def test_an_edge_that_raises_repeats_its_node_from_the_same_files(sealed: bool, compile_graph: Any) -> None:
    calls: list[str] = []

    def edge(state: State) -> str:
        calls.append("edge")
        if len(calls) < 2:
            raise OSError("again")
        return "look"

    policy = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError)
    graph = StateGraph(State).add_node("a", writer("a"), retry_policy=policy).add_node("look", look)
    graph.add_edge(START, "a").add_conditional_edges("a", edge, ["look"])
    plan = None if sealed else without_seal(compile_graph(graph), "a")
    app = compile_graph(graph, plan=plan)
    assert app.invoke({"seen": []})["seen"] == [["hello.txt"], ["a", "hello.txt"]]


async def test_threads_run_side_by_side(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(chain(("a", writer("a")), ("b", look)), checkpointer=InMemorySaver())
    configs = [{"configurable": {"thread_id": str(i)}} for i in range(4)]
    results = await asyncio.gather(*(app.ainvoke({"seen": []}, config) for config in configs))
    assert [result["seen"][-1] for result in results] == [["a", "hello.txt"]] * 4
    assert sorted(run.thread_id for run in kept(app).runs) == ["0", "1", "2", "3"]


def test_a_node_that_raises_says_where_and_the_thread_goes_on_from_before_it(compile_graph: Any, kept: Any) -> None:
    broken = [True]

    def fails(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "half-done").touch()
        if broken:
            raise ValueError("no luck")
        return {"seen": [names(sandbox)]}

    app = compile_graph(chain(("a", writer("a")), ("fails", fails)), checkpointer=InMemorySaver())
    with pytest.raises(ValueError, match="no luck") as caught:
        app.invoke({"seen": []}, CONFIG)
    assert any("node 'fails' on branch root" in note for note in caught.value.__notes__)
    assert kept(app).runs[0].status is RunStatus.FAILED
    broken.clear()
    assert app.invoke(None, CONFIG)["seen"][-1] == ["a", "half-done", "hello.txt"]
    assert kept(app).runs[0].status is RunStatus.DONE
    assert [row.step for row in kept(app).ops if row.kind is OpKind.RUN] == ["a", "fails", "fails"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_interrupt_keeps_files_and_forgets_half_a_node(is_async: bool, compile_graph: Any) -> None:
    def asks(state: State, sandbox: SyncSandbox) -> State:
        seen = names(sandbox)
        (sandbox.path / "asked").touch()
        (sandbox.path / interrupt("which name?")).touch()
        return {"seen": [seen]}

    app = compile_graph(chain(("a", writer("a")), ("asks", asks), ("c", look)), checkpointer=InMemorySaver())

    async def invoke(value: Any) -> Any:
        return await app.ainvoke(value, CONFIG) if is_async else await asyncio.to_thread(app.invoke, value, CONFIG)

    assert (await invoke({"seen": []}))["__interrupt__"][0].value == "which name?"
    assert set(files(app, CONFIG)) == {"a", "hello.txt"}
    assert (await invoke(Command(resume="bob")))["seen"][1:] == [
        ["a", "hello.txt"],
        ["a", "asked", "bob", "hello.txt"],
    ]


def test_a_polling_loop_is_run_each_time(compile_graph: Any, kept: Any) -> None:
    polls: list[int] = []

    def poll(state: State) -> Command[Any]:
        polls.append(1)
        current_sandbox()
        return Command(goto="poll" if len(polls) < 3 else "__end__")

    app = compile_graph(StateGraph(State).add_node(poll).add_edge(START, "poll"), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    assert len(polls) == 3
    assert [row.kind for row in kept(app).ops] == [OpKind.RUN] * 3  # nothing changed, so nothing was sealed


def without_seal(app: Any, step_name: str) -> Any:
    plan = app.session.plan
    run = next(op for op in plan.ops if op.step == step_name)
    seal = plan.after(run, OpKind.SEAL)
    return replace(plan, ops=tuple(op for op in plan.ops if op is not seal))


def test_a_seal_taken_out_of_the_plan_is_a_snapshot_fewer(compile_graph: Any, kept: Any) -> None:
    graph = chain(("a", writer("a")), ("b", writer("b")), ("c", look))
    whole = compile_graph(graph)
    whole.invoke({"seen": []})
    shorter = compile_graph(graph, plan=without_seal(whole, "a"))
    assert shorter.invoke({"seen": []})["seen"][2] == ["a", "b", "hello.txt"]
    assert len(kept(shorter).checkpoints) == len(kept(whole).checkpoints) - 1
    assert kept(shorter).checkpoints[-1].content_key == kept(whole).checkpoints[-1].content_key


def test_children_fork_from_an_unsealed_world_with_its_files(compile_graph: Any) -> None:
    graph = fan(writer("left"), writer("right"))
    app = compile_graph(graph, plan=without_seal(compile_graph(graph), "first"))
    assert app.invoke({"seen": []})["seen"][-1] == ["first", "hello.txt", "left", "right"]


def test_lost_unsealed_files_raise_an_error(compile_graph: Any) -> None:
    graph = chain(("a", writer("a")), ("b", look))
    plan = without_seal(compile_graph(graph), "a")
    app = compile_graph(graph, plan=plan, checkpointer=InMemorySaver(), interrupt_before=["b"])
    app.invoke({"seen": []}, CONFIG)
    with pytest.raises(WorldLost, match="takes no snapshot"):
        app.invoke(None, CONFIG)
    with pytest.raises(WorldLost):
        ramify.graph.snapshot_of(app, CONFIG)
    # what to do: continue from before that node
    assert app.invoke(None, at(app, "a").config)["seen"] == [["hello.txt"]]


@step(effect="pure")
def pure_node(state: State) -> State:
    with pytest.raises(NotInARun):
        current_sandbox()
    return {"n": 5}


def test_a_step_declared_pure_has_no_world(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(chain(("a", writer("a")), ("pure", pure_node), ("b", look)))
    assert app.invoke({"seen": []})["seen"][-1] == ["a", "hello.txt"]
    assert next(row for row in kept(app).ops if row.step == "pure").snapshot_in is None


def test_nodes_that_use_no_world_get_none(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(fan(lambda state: {"n": 1}, lambda state: None), checkpointer=InMemorySaver())
    app.invoke({"seen": []}, CONFIG)
    found = [(row.kind, row.step, row.snapshot_in) for row in kept(app).ops if row.step in ("left", "right")]
    assert sorted(found) == [(OpKind.RUN, "left", None), (OpKind.RUN, "right", None)]
    assert not [row for row in kept(app).ops if row.kind in (OpKind.FORK, OpKind.MERGE, OpKind.RELEASE)]


async def test_copies_of_a_thread_on_one_loop_do_not_wait_for_each_other(compile_graph: Any, tmp_path: Path) -> None:
    """One copy holds the branch at which both stand; the other blocks the loop to ask for its world."""
    has_world = asyncio.Event()

    async def waits(state: State) -> State:
        (current_sandbox().path / "w").write_text(str(state["n"]))
        has_world.set()
        await asyncio.sleep(0.05)
        return {"seen": [names(current_sandbox())]}

    with ramify.graph.Saver(tmp_path / "threads.db") as saver:
        app = compile_graph(chain(("a", writer("a")), ("w", waits)), checkpointer=saver, interrupt_before=["w"])
        await app.ainvoke({"seen": [], "n": 1}, CONFIG)
        saver.copy_thread("1", "2")
        other: Any = {"configurable": {"thread_id": "2"}}
        first = asyncio.create_task(app.ainvoke(None, CONFIG))
        await has_world.wait()
        results = [await app.ainvoke(None, other), await first]
    assert [result["seen"][-1] for result in results] == [["a", "hello.txt", "w"]] * 2


def test_a_world_lives_from_one_node_to_the_next(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(chain(("a", writer("a")), ("b", writer("b")), ("c", look)))
    app.invoke({"seen": []})
    assert ["fork_ms" in row.attrs for row in kept(app).ops if row.kind is OpKind.RUN] == [True, False, False]


def test_a_world_is_out_of_reach_after_its_node(compile_graph: Any) -> None:
    escaped: list[SyncSandbox] = []

    def leaks(state: State, sandbox: SyncSandbox) -> State:
        escaped.append(sandbox)
        return {}

    compile_graph(chain(("leaks", leaks))).invoke({"seen": []})
    with pytest.raises(NotInARun):
        escaped[0].run("true")


def test_a_thread_id_may_be_text_that_is_not_unicode(compile_graph: Any) -> None:
    app = compile_graph(chain(("a", lambda state: {"seen": ["a"]})), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "\ud800"}}
    assert app.invoke({"seen": []}, config)["seen"] == ["a"]
    assert app.get_state(config).values["seen"] == ["a"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_app_that_a_node_calls_may_have_nothing_left_to_do(compile_graph: Any, is_async: bool) -> None:
    """The config, with its thread, is that of the calling node."""
    inner = compile_graph(chain(("a", lambda state: {"seen": ["a"]}), ("b", look)), interrupt_before=["b"])

    def call(state: State) -> State:
        return {"seen": inner.invoke({"seen": []})["seen"]}

    async def acall(state: State) -> State:
        return {"seen": (await inner.ainvoke({"seen": []}))["seen"]}

    app = compile_graph(chain(("call", acall if is_async else call)), checkpointer=InMemorySaver())

    def invoke(given: Any) -> Any:
        return asyncio.run(app.ainvoke(given, CONFIG)) if is_async else app.invoke(given, CONFIG)

    invoke({"seen": []})
    inside = app.get_state(CONFIG, subgraphs=True).tasks[0].state
    app.update_state(inside.config, {"seen": ["by hand"]}, as_node="b")
    assert invoke(None)["seen"] == ["a", "by hand"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize("uses_world", [False, True])
def test_an_error_that_cannot_print_itself_is_raised_as_it_is(
    uses_world: bool, compile_graph: Any, kept: Any
) -> None:
    def fails(state: State) -> State:
        if uses_world:
            current_sandbox()
        raise Unprintable

    app = compile_graph(chain(("fails", fails)))
    with pytest.raises(Unprintable):
        app.invoke({"seen": []})
    (run,) = kept(app).runs
    assert (run.status, run.error) == (RunStatus.FAILED, "Unprintable: <exception str() failed>")
