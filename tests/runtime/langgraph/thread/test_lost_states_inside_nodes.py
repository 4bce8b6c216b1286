"""Lost states inside nodes and entrypoints, of nodes that asked a person, and of nodes that failed, are
recomputed."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import ramify
import ramify.graph
from ramify import Sandbox, current_sandbox, paths
from ramify.runtime.langgraph.thread.session import Invocation
from tests.runtime.langgraph.lost_snapshots import CONFIG, LOG, State, collected, look, lose, maker, states, stopped

pytestmark = pytest.mark.usefixtures("nothing_ran_again")


async def test_the_tasks_of_an_entrypoint_are_recomputed(compile_graph: Any, saver: Any, home: Path) -> None:
    @task
    async def make(name: str, sandbox: Sandbox) -> str:
        LOG.append(name)
        (sandbox.path / name).write_text(name)
        return name

    def flow() -> Any:
        @entrypoint()
        async def flow(names: list[str]) -> list[str]:
            made = [await make(name) for name in names]
            interrupt("go on?")
            found: Any = current_sandbox()
            return [*made, *sorted(path.name for path in found.path.iterdir())]

        return flow

    app = compile_graph(flow(), checkpointer=saver)
    await app.ainvoke(["x", "y"], CONFIG)
    known = states(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    again = compile_graph(flow(), checkpointer=saver)
    assert await again.ainvoke(Command(resume=True), CONFIG) == ["x", "y", "hello.txt", "x", "y"]
    assert LOG == ["x", "y"]


async def test_a_sibling_that_still_asks_does_not_run_again(
    compile_graph: Any, saver: Any, home: Path, kept: Any
) -> None:
    """One sibling has finished and its files are lost; the other waits for a person."""

    async def ask(state: State, sandbox: Sandbox) -> State:
        LOG.append("ask")
        return {"said": [interrupt("go on?")]}

    graph = StateGraph(State).add_node("l", maker("l")).add_node("ask", ask).add_node("look", look)
    graph.add_edge(START, "l").add_edge(START, "ask").add_edge(["l", "ask"], "look")
    app = compile_graph(graph, checkpointer=saver)
    await app.ainvoke({"said": []}, CONFIG)
    (lost,) = [one.snapshot_id for one in kept(app).checkpoints if one.label == "l"]
    app.close()
    lose(home, lost)
    LOG.clear()
    again = compile_graph(graph, checkpointer=saver)
    assert "l: said l? after ['hello.txt']" in (await again.ainvoke(Command(resume="yes"), CONFIG))["seen"]
    assert LOG == ["ask", "l"]


async def test_a_graph_in_a_node_that_asked_is_recomputed(compile_graph: Any, saver: Any, home: Path) -> None:
    async def ask(state: State, sandbox: Sandbox) -> State:
        LOG.append("ask")
        (sandbox.path / "ask").write_text(interrupt("go on?"))
        return {"said": ["ask"]}

    nodes: Any = [("i", maker("i")), ("ask", ask), ("j", maker("j"))]
    inner = StateGraph(State).add_sequence(nodes).add_edge(START, "i").compile()
    graph = StateGraph(State).add_sequence([("a", maker("a")), ("inner", inner), ("look", look)])
    graph.add_edge(START, "a")
    for lost in range(1, 5):
        config = {"configurable": {"thread_id": str(lost)}}
        app = compile_graph(graph, checkpointer=saver)
        known = await stopped(app, config)
        assert len(known) == 5
        app.close()
        lose(home, *known[lost:])
        LOG.clear()
        seen = (await compile_graph(graph, checkpointer=saver).ainvoke(None, config))["seen"]
        assert [line.split(":")[0] for line in seen] == ["a", "ask", "hello.txt", "i", "j"]
        assert ["a", "i", "ask", "j"][lost - 1 :] == LOG


async def test_files_are_recomputed_while_a_graph_in_a_node_asks(compile_graph: Any, saver: Any, home: Path) -> None:
    async def ask(state: State, sandbox: Sandbox) -> State:
        return {"said": [interrupt("go on?")], "seen": sorted(path.name for path in sandbox.path.iterdir())}

    inner = StateGraph(State).add_sequence([("i", maker("i")), ("ask", ask)]).add_edge(START, "i").compile()
    graph = StateGraph(State).add_sequence([("a", maker("a")), ("inner", inner)]).add_edge(START, "a")
    app = compile_graph(graph, checkpointer=saver)
    await app.ainvoke({"said": []}, CONFIG)
    known = states(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    again = compile_graph(graph, checkpointer=saver)
    assert (await again.ainvoke(Command(resume="yes"), CONFIG))["seen"] == ["a", "hello.txt", "i"]
    assert LOG == ["a", "i"]


async def test_an_error_handler_is_recomputed(compile_graph: Any, saver: Any, home: Path) -> None:
    async def fail(state: State, sandbox: Sandbox) -> State:
        LOG.append("fail")
        raise ValueError("it fails")

    async def mend(state: State, sandbox: Sandbox) -> Command[str]:
        LOG.append("mend")
        (sandbox.path / "mend").write_text("mended")
        return Command(goto="look")

    graph = StateGraph(State).add_node("fail", fail, error_handler=mend).add_node("look", look)
    graph.add_edge(START, "fail")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    seen = (await compile_graph(graph, checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["hello.txt", "mend"]
    assert LOG == ["mend"]


async def test_a_task_that_failed_fails_again_for_its_caller(compile_graph: Any, saver: Any, home: Path) -> None:
    """Its caller continued without it. If the caller were told that the task had returned, it would go another
    way."""

    @task
    async def fails(sandbox: Sandbox) -> str:
        LOG.append("fails")
        raise ValueError("it fails")

    @entrypoint()
    async def flow(name: str, *, previous: Any = None) -> list[str]:
        found: Any = current_sandbox()
        if previous is not None:
            return sorted(path.name for path in found.path.iterdir())
        try:
            told = await fails()
        except ValueError:
            told = "failed"
        LOG.append(f"it {told}")
        (found.path / name).write_text(told)
        return []

    app = compile_graph(flow, checkpointer=saver)
    await app.ainvoke("x", CONFIG)
    known = states(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    assert await compile_graph(flow, checkpointer=saver).ainvoke("y", CONFIG) == ["hello.txt", "x"]
    assert LOG == ["fails", "it failed"]


async def test_a_task_that_asks_has_no_answer_for_its_caller(
    compile_graph: Any, saver: Any, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @task
    async def make(name: str, sandbox: Sandbox) -> str:
        LOG.append(name)
        (sandbox.path / name).write_text(name)
        return name

    @task
    async def ask() -> str:
        return str(interrupt("go on?"))

    @entrypoint()
    async def flow(name: str) -> str:
        made = make(name)
        LOG.append(f"answered {await ask()}")
        return await made

    app = compile_graph(flow, checkpointer=saver)
    await app.ainvoke("x", CONFIG)
    lost, run = states(app)[-1], app.session.last_run_id
    app.close()
    lose(home, lost)
    LOG.clear()
    again = compile_graph(flow, checkpointer=saver)
    await asyncio.to_thread(again.session.portal.wait, state_again(again, run, lost))
    gc.collect()
    assert LOG == ["x"]
    assert "never retrieved" not in caplog.text


async def state_again(app: Any, run: Any, lost: str) -> None:
    asking = Invocation(None, addressed=True, rerunner=app.rerunner(CONFIG))
    await (await app.session._enter(asking, run)).snapshot(lost)
    await app.session.end(asking, None)


async def test_a_graph_that_a_task_group_runs_is_recomputed(compile_graph: Any, saver: Any, home: Path) -> None:
    inner = StateGraph(State).add_sequence([("i", maker("i"))]).add_edge(START, "i").compile()

    async def call(state: State, sandbox: Sandbox) -> State:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner.ainvoke({"said": []}))
        return {"said": ["call"]}

    graph = StateGraph(State).add_sequence([("call", call), ("look", look)]).add_edge(START, "call")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    seen = (await compile_graph(graph, checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["hello.txt", "i"]
    assert LOG == ["i"]


async def test_a_thread_of_async_graphs_in_nodes_is_edited(compile_graph: Any, saver: Any, home: Path) -> None:
    """The caller that edits does not say whether the thread's nodes run sync or async."""
    inner = StateGraph(State).add_sequence([("i", maker("i"))]).add_edge(START, "i").compile()
    graph = StateGraph(State).add_sequence([("inner", inner), ("next", inner)]).add_edge(START, "inner")
    app = compile_graph(graph, checkpointer=saver)
    await app.ainvoke({"said": []}, CONFIG, interrupt_before=["next"])
    known = states(app)
    app.close()
    lose(home, *known[1:])
    again = compile_graph(graph, checkpointer=saver)
    edited = ramify.graph.edit(again, CONFIG, lambda sandbox: (sandbox.path / "mine").write_text("mine"))
    assert ramify.graph.read(again, edited, "i") == b"said i? after ['hello.txt']"


async def test_states_under_a_rerun_node_outlast_a_collection(compile_graph: Any, saver: Any, home: Path) -> None:
    """The node's code calls a graph without checkpoints: its states have no names, and its nodes may take longer than
    any grace period."""
    beside: list[bool] = []

    async def slow(state: State, sandbox: Sandbox) -> State:
        LOG.append("slow")
        if beside:
            await collected(home)
        (sandbox.path / "slow").write_text("slow")
        return {}

    async def call(state: State, sandbox: Sandbox) -> State:
        LOG.append("call")
        (sandbox.path / "before").write_text("before")
        await inner.ainvoke({"said": []})
        return {}

    steps: Any = [("k", maker("k")), ("slow", slow)]
    inner = StateGraph(State).add_sequence(steps).add_edge(START, "k").compile(checkpointer=False)
    graph = StateGraph(State).add_sequence([("call", call), ("look", look)]).add_edge(START, "call")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    beside.append(True)
    seen = (await compile_graph(graph, checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["before", "hello.txt", "k", "slow"]
    assert LOG == ["call", "k", "slow"]
    assert not [*paths.locks(home).glob("kept/*")]


async def test_states_under_a_merge_inside_a_node_outlast_a_collection(
    compile_graph: Any, saver: Any, home: Path
) -> None:
    """The node's world was written to while the graph that it calls ran on a fork of it: no checkpoint has that
    state."""
    beside: list[Sandbox] = []

    async def both(state: State, sandbox: Sandbox) -> State:
        LOG.append("both")
        (sandbox.path / "inside").write_text("inside")
        (beside[-1].path / "beside").write_text("beside")
        return {}

    async def call(state: State, sandbox: Sandbox) -> State:
        LOG.append("call")
        beside.append(sandbox)
        await inner.ainvoke({"said": []})
        return {}

    inner = StateGraph(State).add_sequence([("both", both)]).add_edge(START, "both").compile()
    graph = StateGraph(State).add_sequence([("call", call), ("look", look)]).add_edge(START, "call")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    await collected(home)
    lose(home, known[-1])
    LOG.clear()
    seen = (await compile_graph(graph, checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["beside", "hello.txt", "inside"]
    assert LOG == []  # merged again from what exists
