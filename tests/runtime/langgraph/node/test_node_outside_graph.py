"""`app.nodes[name].stream` and its variants give what they give in a plain graph, whatever kind of node it is."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import StreamWriter

from ramify import SyncSandbox
from ramify.runtime.records import RunStatus


class State(TypedDict, total=False):
    text: str
    log: Annotated[list[str], operator.add]


def upper(state: State) -> State:
    return {"text": state["text"].upper(), "log": ["upper"]}


async def later(state: State) -> State:
    return {"text": state["text"] + "!", "log": ["later"]}


def tell(state: State, writer: StreamWriter) -> State:
    writer({"told": state["text"]})
    return {"log": ["tell"]}


def fail(state: State) -> State:
    raise KeyError("missing")


def count(state: State, sandbox: SyncSandbox) -> State:
    (sandbox.path / f"{len(list(sandbox.path.iterdir()))}").touch()
    return {"text": str(len(list(sandbox.path.iterdir())))}  # the workspace has a file


def numbers(state: State) -> Iterator[State]:
    for number in range(3):
        yield {"text": str(number)}


def pieces(states: Iterator[State]) -> Iterator[State]:
    for state in states:
        yield {"text": state["text"]}
        yield {"log": ["piece"]}


@entrypoint()
def point(state: State) -> State:
    return {"text": "point"}


def graph(*nodes: Any) -> Any:
    return StateGraph(State).add_sequence(list(nodes)).add_edge(START, nodes[0].__name__).compile()


NESTED = StateGraph(State).add_node("inner", graph(upper, tell)).add_edge(START, "inner").compile()
KINDS = {
    "function": upper,
    "generator": numbers,
    "generators": RunnableGenerator(pieces),
    "sequence": RunnableLambda(upper) | RunnableGenerator(pieces),
    "graph": graph(upper, tell),
    "nested": NESTED,
    "failing": graph(upper, fail),
    "bound": graph(upper, tell).with_config(tags=["mine"]),
    "entrypoint": point,
    "returned": lambda state: NESTED,
    "model": RunnableLambda(lambda state: "hi") | FakeListChatModel(responses=["four"]),
}
MODES = [None, "values", "updates", "custom", "messages", "tasks", ["values", "updates"]]


def nodes_of(kind: Any, compile_graph: Any) -> tuple[Any, Any]:
    """The node in a plain graph, and the same over worlds."""
    whole = StateGraph(State).add_node("node", kind).add_edge(START, "node")
    return whole.compile().nodes["node"], compile_graph(whole).nodes["node"]


def seen(found: Any) -> str:
    """What was yielded, without what is random."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|'timestamp': \d+", "", repr(found))


def attempt(call: Any) -> str:
    try:
        return seen(list(call()))
    except (KeyError, TypeError, NotImplementedError) as error:
        return seen(error)


async def attempt_async(call: Any) -> str:
    try:
        return seen([chunk async for chunk in call()])
    except (KeyError, TypeError, NotImplementedError) as error:
        return seen(error)


def given() -> State:
    return {"text": "a", "log": []}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_streams_what_it_streams_in_a_plain_graph(kind: str, compile_graph: Any) -> None:
    plain, ours = nodes_of(KINDS[kind], compile_graph)
    for mode in MODES:
        options: Any = {} if mode is None else {"stream_mode": mode}
        for more in ({}, {"subgraphs": True}) if mode in ("values", "custom") else ({},):
            both = {**options, **more}
            expected = attempt(lambda: plain.stream(given(), **both))  # noqa: B023
            assert attempt(lambda: ours.stream(given(), **both)) == expected, both  # noqa: B023
            expected = await attempt_async(lambda: plain.astream(given(), **both))  # noqa: B023
            assert await attempt_async(lambda: ours.astream(given(), **both)) == expected, both  # noqa: B023


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
@pytest.mark.parametrize("kind", KINDS)
async def test_the_runnable_of_a_node_has_the_methods_of_that_in_a_plain_graph(kind: str, compile_graph: Any) -> None:
    plain, ours = (node.bound for node in nodes_of(KINDS[kind], compile_graph))
    for call in (
        lambda one: one.batch([given(), given()]),
        lambda one: one.stream_events(given(), version="v3"),
        lambda one: one.transform(iter([given()])),
    ):
        assert attempt(lambda: call(ours)) == attempt(lambda: call(plain))  # noqa: B023

    async def names(one: Any) -> list[tuple[str, str]]:
        return [(event["event"], event["name"]) async for event in one.astream_events(given(), version="v2")]

    if kind in ("function", "graph", "nested", "bound", "entrypoint", "model"):
        assert seen(await ours.abatch([given(), given()])) == seen(await plain.abatch([given(), given()]))
        assert await names(ours) == await names(plain)
    if kind in ("graph", "nested", "entrypoint"):
        events = [await one.astream_events(given(), version="v3") for one in (ours, plain)]
        assert seen([event async for event in events[0]]) == seen([event async for event in events[1]])


def test_a_callback_hears_each_event_once(compile_graph: Any) -> None:
    class Hears(BaseCallbackHandler):
        def __init__(self) -> None:
            self.names: list[str] = []

        def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
            self.names.append(kwargs.get("name", ""))

    heard = []
    for node in nodes_of(KINDS["nested"], compile_graph):
        hears = Hears()
        node.invoke(given(), {"callbacks": [hears]})
        heard.append(hears.names)
    assert heard[0] == heard[1]


async def test_a_stream_that_is_left_ends_its_run(compile_graph: Any, kept: Any) -> None:
    app = compile_graph(StateGraph(State).add_node("node", graph(count, tell)).add_edge(START, "node"))
    assert [next(app.nodes["node"].stream(given())) for _ in range(2)] == [{"count": {"text": "2"}}] * 2
    chunks = app.nodes["node"].bound.astream(given())  # LangGraph itself leaves the closing to the event loop
    assert await anext(chunks) == {"count": {"text": "2"}}
    await chunks.aclose()
    assert [run.status for run in kept(app).runs] == [RunStatus.CANCELLED] * 3


async def test_the_caller_of_a_stream_is_not_in_the_node(compile_graph: Any) -> None:
    """Streams that are read in turns do not mix their worlds."""
    app = compile_graph(StateGraph(State).add_node("node", graph(count, count_again)).add_edge(START, "node"))
    turns = zip(app.nodes["node"].stream(given()), app.nodes["node"].stream(given()), strict=True)
    assert [list(turn) for turn in turns] == [[{"count": {"text": "2"}}] * 2, [{"count_again": {"text": "3"}}] * 2]


def count_again(state: State, sandbox: SyncSandbox) -> State:
    return count(state, sandbox)
