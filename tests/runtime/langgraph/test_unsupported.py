"""What would lose files is refused, and says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy

import ramify
from ramify import SyncSandbox, current_sandbox, step
from ramify.runtime.langgraph.errors import UnsupportedGraph
from ramify.runtime.langgraph.reading import RefusingSaver

CONFIG = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    names: list[str]


def touches(state: State) -> State:
    sandbox: Any = current_sandbox()
    sandbox.run("touch inner", check=True)
    return {"names": sorted(path.name for path in sandbox.path.iterdir())}


def only(function: Any, **options: Any) -> StateGraph[State]:
    return StateGraph(State).add_node("only", function, **options).add_edge(START, "only")


def inner(**options: Any) -> Any:
    return only(touches).compile(**options)


def test_a_graph_with_checkpoints_of_its_own_as_a_node(compile_graph: Any) -> None:
    with pytest.raises(UnsupportedGraph, match="checkpointer=False"):
        compile_graph(only(inner()), checkpointer=InMemorySaver())


@pytest.mark.parametrize("is_async", [False, True])
async def test_such_a_graph_called_by_a_node(is_async: bool, compile_graph: Any) -> None:
    child = inner()

    def calls(state: State) -> State:
        return child.invoke(state)

    async def acalls(state: State) -> State:
        return await child.ainvoke(state)

    app = compile_graph(only(acalls if is_async else calls), checkpointer=InMemorySaver())
    with pytest.raises(UnsupportedGraph, match="node 'only' runs a graph"):
        await app.ainvoke({}, CONFIG)


@pytest.mark.parametrize("kept", [False, True])
def test_a_graph_without_checkpoints_is_one_step_on_the_nodes_world(kept: bool, compile_graph: Any) -> None:
    child = inner(checkpointer=False) if kept else inner()
    app = compile_graph(only(child), checkpointer=InMemorySaver() if kept else None)
    assert app.invoke({}, CONFIG)["names"] == ["hello.txt", "inner"]


def test_a_task_called_by_a_node(compile_graph: Any) -> None:
    @task
    def piece() -> int:
        return 1

    def calls(state: State) -> State:
        piece().result()
        return {}

    with pytest.raises(UnsupportedGraph, match="@task"):
        compile_graph(only(calls)).invoke({})


def test_a_cache_that_does_not_see_the_world(compile_graph: Any) -> None:
    with pytest.raises(UnsupportedGraph, match="CachePolicy"):
        compile_graph(only(touches, cache_policy=CachePolicy()))


async def test_checkpoints_only_at_the_end(compile_graph: Any) -> None:
    app = compile_graph(only(touches), checkpointer=InMemorySaver())
    with pytest.raises(UnsupportedGraph, match="durability"):
        app.invoke({}, CONFIG, durability="exit")
    with pytest.raises(UnsupportedGraph, match="durability"):
        await app.ainvoke({}, CONFIG, durability="exit")


@step(retry=2)
def retried(sandbox: SyncSandbox, state: State) -> State:
    return {}


def test_a_step_with_retries_of_its_own(compile_graph: Any) -> None:
    with pytest.raises(UnsupportedGraph, match="retry_policy"):
        compile_graph(only(retried))


def test_a_graph_that_is_over_worlds_already(compile_graph: Any) -> None:
    with pytest.raises(UnsupportedGraph, match="already"):
        ramify.compile(compile_graph(only(touches)))


def test_without_a_thread_langgraph_itself_says_so(compile_graph: Any) -> None:
    with pytest.raises(ValueError, match="thread_id"):
        compile_graph(only(touches), checkpointer=InMemorySaver()).invoke({})


def test_the_refusing_saver_refuses_async_too() -> None:
    with pytest.raises(UnsupportedGraph):
        asyncio.run(RefusingSaver("n").aget_tuple({}))


def test_two_worlds_in_one_node(compile_graph: Any) -> None:
    def greedy(state: State, one: SyncSandbox, two: SyncSandbox) -> State:
        return {}

    graph: Callable[[], Any] = lambda: compile_graph(only(greedy))  # noqa: E731
    with pytest.raises(TypeError, match="2 worlds"):
        graph()
