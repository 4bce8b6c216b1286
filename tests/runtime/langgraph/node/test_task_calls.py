"""`@task` and `@entrypoint` over worlds."""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
from contextlib import suppress
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from ramify import Sandbox, SyncSandbox, current_sandbox
from ramify.compiler.plan import OpKind
from ramify.fork_engine.errors import MergeConflict
from ramify.runtime.langgraph.errors import UnsupportedGraph

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    seen: Annotated[list[list[str]], operator.add]


def names(sandbox: Any) -> list[str]:
    return sorted(path.name for path in sandbox.path.iterdir() if path.name != "hello.txt")


RAN: list[str] = []


@task
def touch(name: str, sandbox: SyncSandbox) -> list[str]:
    RAN.append(name)
    seen = names(sandbox)
    (sandbox.path / name).write_text(name)
    return seen


@task
async def atouch(name: str, sandbox: Sandbox) -> list[str]:
    RAN.append(name)
    seen = names(sandbox)
    (sandbox.path / name).write_text(name)
    return seen


def only(function: Any) -> StateGraph[State]:
    return StateGraph(State).add_node("only", function).add_edge(START, "only")


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def test_tasks_fork_their_nodes_world_and_come_back_with_their_results(compile_graph: Any) -> None:
    def node(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "mine").touch()
        one, two = touch("one"), touch("two")
        seen = [one.result(), two.result(), names(sandbox)]
        return {"seen": [*seen, touch("three").result(), names(sandbox)]}

    seen = compile_graph(only(node)).invoke({"seen": []})["seen"]
    both = ["mine", "one", "two"]
    assert seen == [["mine"], ["mine"], both, both, ["mine", "one", "three", "two"]]


async def test_async_tasks_too(compile_graph: Any) -> None:
    async def node(state: State, sandbox: Sandbox) -> State:
        seen = await asyncio.gather(atouch("one"), atouch("two"))
        return {"seen": [*seen, names(sandbox), await atouch("three"), names(sandbox)]}

    seen = (await compile_graph(only(node)).ainvoke({"seen": []}))["seen"]
    assert seen == [[], [], ["one", "two"], ["one", "two"], ["one", "three", "two"]]


def test_files_of_a_task_whose_result_is_not_taken_are_merged(compile_graph: Any) -> None:
    def node(state: State) -> State:
        touch("one")
        return {}

    def look(state: State, sandbox: SyncSandbox) -> State:
        return {"seen": [names(sandbox)]}

    app = compile_graph(only(node).add_node("look", look).add_edge("only", "look"))
    assert app.invoke({"seen": []})["seen"] == [["one"]]


@pytest.mark.parametrize("is_async", [False, True])
async def test_tasks_before_an_interrupt_keep_every_change(is_async: bool, compile_graph: Any) -> None:
    def node(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "mine").write_text("mine")
        [one.result() for one in [touch("one"), touch("two")]]
        (sandbox.path / interrupt("name?")).touch()
        touch("three").result()
        return {"seen": [names(sandbox)]}

    async def anode(state: State, sandbox: Sandbox) -> State:
        (sandbox.path / "mine").write_text("mine")
        await asyncio.gather(atouch("one"), atouch("two"))
        (sandbox.path / interrupt("name?")).touch()
        await atouch("three")
        return {"seen": [names(sandbox)]}

    app = compile_graph(only(anode if is_async else node), checkpointer=InMemorySaver())

    async def invoke(value: Any) -> Any:
        return await app.ainvoke(value, CONFIG) if is_async else await asyncio.to_thread(app.invoke, value, CONFIG)

    assert (await invoke({"seen": []}))["__interrupt__"]
    assert (await invoke(Command(resume="bob")))["seen"] == [["bob", "mine", "one", "three", "two"]]
    assert sorted(RAN) == ["one", "three", "two"]  # a finished task does not run again


def test_tasks_that_change_the_same_thing_conflict(compile_graph: Any) -> None:
    @task
    def same(text: str) -> None:
        (current_sandbox().path / "same").write_text(text)

    def node(state: State) -> None:
        one, two = same("1"), same("2")
        one.result(), two.result()

    with pytest.raises(MergeConflict, match="same"):
        compile_graph(only(node)).invoke({"seen": []})


def test_a_failed_attempt_at_a_task_leaves_no_files(compile_graph: Any) -> None:
    tries: list[list[str]] = []

    @task(retry_policy=RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError))
    def flaky(sandbox: SyncSandbox) -> None:
        tries.append(names(sandbox))
        (sandbox.path / f"try{len(tries)}").touch()
        if len(tries) < 2:
            raise OSError("again")

    def node(state: State, sandbox: SyncSandbox) -> State:
        flaky().result()  # type: ignore[call-arg]  # the world is given by the runtime
        return {"seen": [names(sandbox)]}

    assert compile_graph(only(node)).invoke({"seen": []})["seen"] == [["try2"]]
    assert tries == [[], []]


def test_tasks_of_tasks(compile_graph: Any) -> None:
    @task
    def outer(sandbox: SyncSandbox) -> list[str]:
        touch("inner").result()
        return names(sandbox)

    def node(state: State, sandbox: SyncSandbox) -> State:
        return {"seen": [outer().result(), names(sandbox)]}  # type: ignore[call-arg]

    assert compile_graph(only(node)).invoke({"seen": []})["seen"] == [["inner"], ["inner"]]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_entrypoint_and_its_thread(is_async: bool, compile_graph: Any) -> None:
    @entrypoint(checkpointer=InMemorySaver())
    def flow(name: str, *, previous: Any = None) -> Any:
        touch(name).result()
        answer = interrupt(f"{name}?")
        touch(answer).result()
        return entrypoint.final(value=names(current_sandbox()), save=name)

    @entrypoint(checkpointer=InMemorySaver())
    async def aflow(name: str, *, previous: Any = None) -> Any:
        await atouch(name)
        answer = interrupt(f"{name}?")
        await atouch(answer)
        return entrypoint.final(value=names(current_sandbox()), save=name)

    app = compile_graph(aflow if is_async else flow)

    async def invoke(value: Any) -> Any:
        return await app.ainvoke(value, CONFIG) if is_async else await asyncio.to_thread(app.invoke, value, CONFIG)

    await invoke("a")
    assert await invoke(Command(resume="b")) == ["a", "b"]
    await invoke("c")
    assert await invoke(Command(resume="d")) == ["a", "b", "c", "d"]
    assert RAN == ["a", "b", "c", "d"]


def test_an_entrypoint_in_a_node(compile_graph: Any) -> None:
    @entrypoint()
    def inner(name: str) -> list[str]:
        return touch(name).result()

    def node(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "mine").touch()
        return {"seen": [inner.invoke("one"), inner.invoke("two"), names(sandbox)]}

    app = compile_graph(only(node), checkpointer=InMemorySaver())
    assert app.invoke({"seen": []}, CONFIG)["seen"] == [["mine"], ["mine", "one"], ["mine", "one", "two"]]


def test_a_task_whose_failure_was_caught_leaves_no_complaint(
    compile_graph: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @task
    def fails() -> None:
        raise ValueError("no")

    @entrypoint()
    def whole(given: int) -> int:
        with suppress(ValueError):
            fails().result()
        return given

    assert compile_graph(whole).invoke(1) == 1
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_task_that_could_never_run_is_refused(compile_graph: Any) -> None:
    def node(state: State) -> None:
        touch("one")  # it waits for the only place, which the node has

    graph = only(node).add_node("beside", lambda state: None).add_edge(START, "beside")
    with pytest.raises(UnsupportedGraph, match="max_concurrency"):
        compile_graph(graph).invoke({"seen": []}, {"max_concurrency": 1})


@pytest.mark.parametrize("is_async", [False, True])
async def test_tasks_and_graphs_that_use_no_world_get_none(is_async: bool, compile_graph: Any, kept: Any) -> None:
    @task
    def thinks(n: int) -> int:
        return n + 1

    @task
    async def athinks(n: int) -> int:
        return n + 1

    inner = StateGraph(State).add_node("idle", lambda state: {"seen": []}).add_edge(START, "idle").compile()

    def calls(state: State) -> State:
        assert [thinks(i).result() for i in range(3)] == [1, 2, 3]
        return {"seen": inner.invoke({"seen": [["inner"]]})["seen"]}

    async def acalls(state: State) -> State:
        assert list(await asyncio.gather(*(athinks(i) for i in range(3)))) == [1, 2, 3]
        return {"seen": (await inner.ainvoke({"seen": [["inner"]]}))["seen"]}

    app = compile_graph(only(acalls if is_async else calls), checkpointer=InMemorySaver())
    given: Any = {"seen": []}, {"configurable": {"thread_id": "1"}}
    assert (await app.ainvoke(*given) if is_async else app.invoke(*given))["seen"] == [["inner"]]
    rows = kept(app).ops
    assert {row.kind for row in rows} == {OpKind.RUN}
    thought = "athinks" if is_async else "thinks"
    assert sorted(row.step for row in rows) == sorted(["idle", "only", thought, thought, thought])


def test_a_task_acts_on_the_world_as_it_was_at_the_call(compile_graph: Any) -> None:
    """This also holds if the task asks for its world after its caller has changed its own."""
    has_written = threading.Event()

    @task
    def looks() -> list[str]:
        assert has_written.wait(30)
        return names(current_sandbox())

    def calls(state: State) -> State:
        looking = looks()
        (current_sandbox().path / "late").write_text("")
        has_written.set()
        return {"seen": [looking.result(), names(current_sandbox())]}

    assert compile_graph(only(calls)).invoke({"seen": []})["seen"] == [[], ["late"]]
