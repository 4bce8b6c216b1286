"""`app.nodes[name].stream` and its variants give what they give in a plain graph, whatever kind of node it is."""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.runnables import RunnableConfig, RunnableGenerator, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, StreamWriter, interrupt

from ramify import Sandbox, SyncSandbox, current_sandbox
from ramify.runtime.langgraph.node.task_config import CALLER
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


def asks_config(state: State) -> State:
    try:
        return {"log": sorted(get_config())}
    except RuntimeError:  # LangGraph sets none for a node that runs alone
        return {"log": ["no config"]}


async def shows_config(state: State, config: RunnableConfig) -> State:
    kept = config.get("configurable", {}).keys() - {CALLER}
    return {"log": [*sorted(config.keys() - {"configurable"}), *kept]}


@pytest.mark.parametrize("kind", [asks_config, shows_config])
async def test_a_node_gets_the_config_that_it_gets_in_a_plain_graph(kind: Any, compile_graph: Any) -> None:
    plain, ours = nodes_of(kind, compile_graph)
    for one in (plain, plain.bound):
        mine = ours if one is plain else ours.bound
        for config in (None, {"tags": ["t"], "configurable": {"thread_id": "1"}}):
            assert await mine.ainvoke(given(), config) == await one.ainvoke(given(), config)
            assert [chunk async for chunk in mine.astream(given(), config)] == [await one.ainvoke(given(), config)]


async def lists(state: State, sandbox: Sandbox) -> State:
    (sandbox.path / "lists").touch()
    return {"log": sorted(path.name for path in sandbox.path.iterdir())}


def test_the_config_of_a_node_has_only_private_keys_of_ours(compile_graph: Any) -> None:
    def keys(state: State, config: RunnableConfig) -> State:
        return {"log": sorted(config["configurable"])}

    whole = StateGraph(State).add_node("outer", graph(keys)).add_node(keys).add_edge(START, "outer")
    whole.add_edge("outer", "keys")
    plain, ours = (each.invoke(given())["log"] for each in (whole.compile(), compile_graph(whole)))
    assert [key for key in ours if not key.startswith("__pregel_ramify")] == plain
    assert len(ours) == len(plain) + 4


@pytest.mark.parametrize("called", ["ainvoke", "astream"])
@pytest.mark.parametrize("kind", [lists, count, graph(upper, count)])
async def test_a_node_with_the_config_of_a_running_node_is_part_of_it(
    kind: Any, called: str, compile_graph: Any
) -> None:
    """It acts on that node's world. It waited for ever for the branch of its caller."""
    inner = compile_graph(StateGraph(State).add_node("node", kind).add_edge(START, "node")).nodes["node"]

    async def outer(state: State, config: RunnableConfig) -> State:
        (current_sandbox().path / "outer").touch()
        if called == "ainvoke":
            found = await inner.ainvoke(state, config)
        else:
            found = [chunk async for chunk in inner.astream(state, config)][-1]
        return {"log": [seen(found), *sorted(path.name for path in current_sandbox().path.iterdir())]}

    app = compile_graph(StateGraph(State).add_node(outer).add_edge(START, "outer"))
    found = await asyncio.wait_for(app.ainvoke(given()), 30)
    assert found["log"][1:] == sorted(["hello.txt", "outer", "lists" if kind is lists else "2"])


def test_a_sync_node_with_the_config_of_a_running_node_is_part_of_it(compile_graph: Any) -> None:
    nodes = compile_graph(StateGraph(State).add_node(count).add_node(ask).add_edge(START, "count")).nodes

    def outer(state: State, config: RunnableConfig) -> State:
        counted = nodes["count"].invoke(state, config)
        return {"text": nodes["ask"].invoke(state, config)["text"], "log": [counted["text"]]}

    app = compile_graph(StateGraph(State).add_node(outer).add_edge(START, "outer"), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    app.invoke(given(), config)
    assert app.invoke(Command(resume="yes"), config) == {"text": "yes", "log": ["2"]}


def ask(state: State) -> State:
    return {"text": interrupt("go on?")}


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
