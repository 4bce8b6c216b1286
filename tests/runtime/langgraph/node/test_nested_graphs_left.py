"""A node that leaves the stream of a graph before its end gets the files of the nodes that are done by then."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Iterator
from contextlib import aclosing
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from ramify import Sandbox, SyncSandbox
from ramify.fork_engine.errors import MergeConflict

CONFIG: Any = {"configurable": {"thread_id": "1"}}
RETRY = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError)
KEPT: list[Any] = []  # streams that are referred to after their node has ended


class State(TypedDict, total=False):
    seen: Annotated[list[list[str]], operator.add]


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    KEPT.clear()


def names(sandbox: Any) -> list[str]:
    return sorted(path.name for path in sandbox.path.iterdir() if path.name != "hello.txt")


def writer(name: str, ran: list[str] | None = None) -> Any:
    def write(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / name).touch()
        if ran is not None:
            ran.append(name)
        return {"seen": [[name]]}

    return write


KEPT_PATHS: list[Any] = []


def clash(state: State, sandbox: SyncSandbox) -> State:
    (sandbox.path / "x").write_text("inner")
    KEPT_PATHS.pop().write_text("outer")
    return {}


def look(state: State, sandbox: SyncSandbox) -> State:
    return {"seen": [names(sandbox)]}


def chain(**nodes: Any) -> StateGraph[State]:
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for first, second in zip([START, *nodes], nodes, strict=False):
        graph.add_edge(first, second)
    return graph


def leaving(inner: Any, how: str, mode: str = "updates", chunks: int = 1) -> Any:
    """A node that reads so many chunks of the graph's stream."""

    def left(stream: Any) -> Any:
        if "kept" in how:
            KEPT.append(stream)
        return stream

    def read(state: State) -> State:
        for number, _ in enumerate(left(inner.stream({"seen": []}, stream_mode=mode)), 1):
            if number == chunks:
                break
        return {}

    async def first_of(stream: Any) -> None:
        number = 0
        async for _ in stream:
            if (number := number + 1) == chunks:
                break

    async def aread(state: State) -> State:
        if "closed" in how:
            async with aclosing(inner.astream({"seen": []}, stream_mode=mode)) as stream:
                await first_of(stream)
        else:
            await first_of(left(inner.astream({"seen": []}, stream_mode=mode)))
        return {}

    return aread if "async" in how else read


HOWS = ["sync", "sync kept", "async", "async kept", "async closed"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    ("mode", "chunks", "expected"),
    [("updates", 1, "ax"), ("values", 1, "a"), ("values", 2, "ax"), ("updates", 2, "axy"), ("updates", 9, "axyz")],
)
async def test_the_files_of_the_nodes_that_are_done(
    how: str, mode: str, chunks: int, expected: str, compile_graph: Any
) -> None:
    inner = chain(x=writer("x"), y=writer("y"), z=writer("z")).compile()
    app = compile_graph(chain(a=writer("a"), sub=leaving(inner, how, mode, chunks), look=look))
    assert (await app.ainvoke({"seen": []}))["seen"][-1] == list(expected)


@pytest.mark.parametrize("how", HOWS)
async def test_siblings_that_still_run(how: str, compile_graph: Any) -> None:
    """Leaving a sync stream waits for them, and leaving an async one cancels them, as in a plain graph."""
    may_end = threading.Event()

    def slow(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "slow").touch()
        assert may_end.wait(20)
        return {}

    async def aslow(state: State) -> State:
        await asyncio.sleep(60)
        return {}

    def quick(state: State, sandbox: SyncSandbox) -> State:
        (sandbox.path / "quick").touch()
        threading.Timer(0.1, may_end.set).start()
        return {}

    graph = StateGraph(State).add_node("quick", quick).add_node("slow", aslow if "async" in how else slow)
    inner = graph.add_edge(START, "quick").add_edge(START, "slow").compile()
    app = compile_graph(chain(a=writer("a"), sub=leaving(inner, how), look=look))
    async with asyncio.timeout(30):
        seen = (await app.ainvoke({"seen": []}))["seen"][-1]
    assert seen == (["a", "quick"] if "async" in how else ["a", "quick", "slow"])


@pytest.mark.parametrize("how", HOWS)
async def test_a_node_that_fails_after_it_left_leaves_no_files(how: str, compile_graph: Any) -> None:
    inner = chain(x=writer("x"), y=writer("y"), z=writer("z")).compile()
    attempts = [leaving(inner, how, chunks=2), leaving(inner, how, chunks=1)]

    async def fails_once(state: State) -> State:
        leave = attempts.pop(0)
        await leave(state) if "async" in how else leave(state)
        if attempts:
            raise OSError("once")
        return {}

    graph = StateGraph(State).add_node("a", writer("a")).add_node("sub", fails_once, retry_policy=RETRY)
    graph.add_node("look", look).add_edge(START, "a").add_edge("a", "sub").add_edge("sub", "look")
    app = compile_graph(graph)
    assert (await app.ainvoke({"seen": []}))["seen"][-1] == ["a", "x"]


@pytest.mark.parametrize("how", HOWS)
async def test_a_node_that_asks_after_it_left_goes_on_in_the_graph(how: str, compile_graph: Any) -> None:
    """As in a plain graph: what is done in the graph is not done again, and a resumed node reads on from there."""
    ran: list[str] = []
    inner = chain(x=writer("x", ran), y=writer("y", ran), z=writer("z", ran)).compile()
    leave = leaving(inner, how)

    async def asks(state: State) -> State:
        await leave(state) if "async" in how else leave(state)
        return {"seen": [[interrupt("name?")]]}

    app = compile_graph(chain(a=writer("a"), sub=asks, look=look), checkpointer=InMemorySaver())
    await app.ainvoke({"seen": []}, CONFIG)
    assert ran == ["x"]
    seen = (await app.ainvoke(Command(resume="bob"), CONFIG))["seen"]
    assert (ran, seen[-2], seen[-1]) == (["x", "y"], ["bob"], ["a", "x", "y"])


@pytest.mark.parametrize("chunks", [1, 9])
@pytest.mark.parametrize("how", HOWS)
async def test_a_conflict_with_what_the_node_wrote_meanwhile_fails_the_node(
    how: str, chunks: int, compile_graph: Any
) -> None:
    """As it does if the node reads the stream to its end."""
    inner = chain(x=clash, y=writer("y")).compile()
    leave = leaving(inner, how, chunks=chunks)

    async def sub(state: State, sandbox: Sandbox) -> State:
        KEPT_PATHS.append(sandbox.path / "x")
        await leave(state) if "async" in how else leave(state)
        return {}

    app = compile_graph(chain(sub=sub, look=look))
    with pytest.raises(MergeConflict):
        await app.ainvoke({"seen": []})
