"""A graph over worlds streams what the plain graph streams, in every mode, sync and async."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StreamWriter, interrupt
from typing_extensions import TypedDict

import ramify

MODES = ["values", "updates", "custom", "messages", "debug", "tasks", "checkpoints"]


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


def one(state: State, writer: StreamWriter) -> State:
    writer({"at": "one"})
    return {"n": state.get("n", 0) + 1, "log": ["one"]}


def two(state: State) -> State:
    return {"log": ["two"], "messages": [AIMessage("hello", id="m1")]}


async def three(state: State) -> State:
    return {"log": ["three"]}


def nothing(state: State) -> None:
    return None


def linear() -> StateGraph[State]:
    graph = StateGraph(State).add_sequence([one, two, nothing])
    return graph.add_edge(START, "one")


def loop() -> StateGraph[State]:
    def again(state: State) -> Literal["one", "__end__"]:
        return "one" if state["n"] < 3 else "__end__"

    graph = StateGraph(State).add_node(one)
    return graph.add_edge(START, "one").add_conditional_edges("one", again)


def fan() -> StateGraph[State]:
    graph = StateGraph(State)
    for name in ("a", "b", "c", "join"):
        graph.add_node(name, lambda state, name=name: {"log": [name]})
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c")
    return graph.add_edge(["b", "c"], "join")


def sends() -> StateGraph[State]:
    def spread(state: State) -> list[Send]:
        return [Send("work", {"n": i}) for i in range(3)]

    graph = StateGraph(State).add_node(one).add_node("work", lambda state: {"log": [f"w{state['n']}"]})
    return graph.add_edge(START, "one").add_conditional_edges("one", spread, ["work"])


def commands() -> StateGraph[State]:
    def first(state: State) -> Command[Literal["two", "nothing"]]:
        return Command(update={"log": ["first"]}, goto=["two", "nothing"])

    return StateGraph(State).add_node(first).add_node(two).add_node(nothing).add_edge(START, "first")


def interrupting() -> StateGraph[State]:
    def ask(state: State) -> State:
        return {"log": [interrupt("sure?")]}

    return StateGraph(State).add_node(one).add_node(ask).add_edge(START, "one").add_edge("one", "ask")


def failing() -> StateGraph[State]:
    def fails(state: State) -> State:
        raise ValueError("no")

    return StateGraph(State).add_node(one).add_node(fails).add_edge(START, "one").add_edge("one", "fails")


SHAPES = [linear, loop, fan, sends, commands, interrupting, failing]
INPUT = {"messages": [HumanMessage("hi", id="m0")]}


def comparable(value: Any) -> Any:
    """Remove what differs between any two runs: times, and ids made of time."""
    if isinstance(value, dict):
        drop = {"id", "timestamp", "ts", "checkpoint_id", "checkpoint_ns", "langgraph_checkpoint_ns", "thread_id"}
        return {key: comparable(each) for key, each in value.items() if key not in drop}
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value).partition(", id=")[0]


def streamed(graph: Any, config: dict[str, Any]) -> list[Any]:
    chunks: list[Any] = []
    try:
        chunks.extend(comparable(chunk) for chunk in graph.stream(INPUT, config, stream_mode=MODES))
    except ValueError as error:
        chunks.append(str(error))
    return chunks


async def astreamed(graph: Any, config: dict[str, Any]) -> list[Any]:
    chunks: list[Any] = []
    try:
        async for chunk in graph.astream(INPUT, config, stream_mode=MODES):
            chunks.append(comparable(chunk))
    except ValueError as error:
        chunks.append(str(error))
    return chunks


def in_order(chunks: list[Any]) -> list[str]:
    """Parallel tasks stream in the order in which they end."""
    return sorted(map(repr, chunks))


@pytest.mark.parametrize("shape", SHAPES)
def test_sync_streams_are_the_plain_graphs(shape: Callable[[], Any], compile_graph: Any) -> None:
    config = {"configurable": {"thread_id": "1"}}
    plain = streamed(shape().compile(checkpointer=InMemorySaver()), config)
    ours = streamed(compile_graph(shape(), checkpointer=InMemorySaver()), config)
    assert in_order(ours) == in_order(plain)
    assert len(plain) > 3


@pytest.mark.parametrize("shape", SHAPES)
async def test_async_streams_are_the_plain_graphs(shape: Callable[[], Any], compile_graph: Any) -> None:
    config = {"configurable": {"thread_id": "1"}}
    plain = await astreamed(shape().compile(checkpointer=InMemorySaver()), config)
    ours = await astreamed(compile_graph(shape(), checkpointer=InMemorySaver()), config)
    assert in_order(ours) == in_order(plain)


@pytest.mark.parametrize("shape", [linear, fan])
async def test_events_are_the_plain_graphs(shape: Callable[[], Any], compile_graph: Any) -> None:
    async def names(graph: Any) -> list[tuple[str, str]]:
        return [(event["event"], event["name"]) async for event in graph.astream_events(INPUT, version="v2")]

    assert sorted(await names(compile_graph(shape()))) == sorted(await names(shape().compile()))


def test_schemas_state_and_history_do_not_show_the_channel(compile_graph: Any) -> None:
    plain, ours = (
        linear().compile(checkpointer=InMemorySaver()),
        compile_graph(linear(), checkpointer=InMemorySaver()),
    )
    config = {"configurable": {"thread_id": "1"}}
    assert ours.get_input_jsonschema() == plain.get_input_jsonschema()
    assert ours.get_output_jsonschema() == plain.get_output_jsonschema()
    assert ours.invoke(INPUT, config) == plain.invoke(INPUT, config)
    assert ours.get_graph().draw_mermaid() == plain.get_graph().draw_mermaid()
    for mine, theirs in zip(ours.get_state_history(config), plain.get_state_history(config), strict=True):
        assert (mine.values, mine.next, mine.metadata) == (theirs.values, theirs.next, theirs.metadata)


def test_a_thread_moves_between_the_plain_graph_and_ours(compile_graph: Any) -> None:
    saver = InMemorySaver()
    config = {"configurable": {"thread_id": "1"}}
    plain = linear().compile(checkpointer=saver, interrupt_before=["two"])
    plain.invoke(INPUT, config)
    ours = compile_graph(linear(), checkpointer=saver, interrupt_before=["nothing"])
    assert ours.invoke(None, config)["log"] == ["one", "two"]
    assert plain.invoke(None, config)["log"] == ["one", "two"]


def test_compile_takes_what_langgraphs_does(compile_graph: Any) -> None:
    theirs = set(inspect.signature(StateGraph.compile).parameters) - {"self"}
    assert theirs <= set(inspect.signature(ramify.compile).parameters)
    for graph in (linear(), linear().compile()):
        app = compile_graph(graph, interrupt_before=["two"], debug=True, name="mine")
        assert (app.interrupt_before_nodes, app.debug, app.name) == (["two"], True, "mine")


def test_the_graph_given_stays_as_it_is(compile_graph: Any) -> None:
    plain = linear().compile()
    compile_graph(plain)
    assert "__env__" not in plain.channels
    assert plain.invoke(INPUT)["log"] == ["one", "two"]
