"""Graphs that hypothesis draws: a `Shape` is plain data, and `build` makes a LangGraph graph of it.

Nodes act on a world if there is one, so the same functions run in plain graphs and in graphs over worlds.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import pydantic
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

from ramify import current_sandbox
from ramify.runtime.user_code.scope import is_in_a_run


class Kind(StrEnum):
    """What a node does, apart from saying its name."""

    PLAIN = "plain"
    SILENT = "silent"  # returns nothing
    CUSTOM = "custom"  # writes to the custom stream
    MESSAGE = "message"
    FLAKY = "flaky"  # fails once, is retried
    FAILING = "failing"
    HANDLED = "handled"  # fails, and has an error handler
    ASKING = "asking"  # interrupts
    COMMAND = "command"  # updates by a Command
    SUBGRAPH = "subgraph"  # is a graph
    ASKING_SUBGRAPH = "asking subgraph"
    CALLING = "calling"  # a function that runs a graph
    LEAVING = "leaving"  # a graph that leaves by Command(PARENT)


class Join(StrEnum):
    """How a layer follows the one before it."""

    EDGES = "edges"
    WAITING = "waiting"
    BRANCH = "branch"  # a conditional edge to all of them
    SEND = "send"
    DEFER = "defer"


class TypedState(TypedDict, total=False):
    n: Annotated[int, operator.add]
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


@dataclass
class DataState:
    n: Annotated[int, operator.add] = 0
    log: Annotated[list[str], operator.add] = field(default_factory=list)
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


class ModelState(pydantic.BaseModel):
    n: Annotated[int, operator.add] = 0
    log: Annotated[list[str], operator.add] = []
    messages: Annotated[list[AnyMessage], add_messages] = []


STATES = (TypedState, DataState, ModelState)


@dataclass(frozen=True)
class Layer:
    kinds: tuple[Kind, ...]
    join: Join


@dataclass(frozen=True)
class Shape:
    layers: tuple[Layer, ...]
    state: int  # index into STATES
    loop: int  # how often the first layer runs before the last one may end
    is_async: bool


def shapes(*kinds: Kind) -> st.SearchStrategy[Shape]:
    drawn = st.lists(st.sampled_from(kinds), min_size=1, max_size=3).map(_alone)
    layer = st.builds(Layer, drawn, st.sampled_from(list(Join)))
    return st.builds(
        Shape,
        st.lists(layer, min_size=1, max_size=3).map(tuple),
        st.integers(0, len(STATES) - 1),
        st.integers(1, 2),
        st.booleans(),
    )


def _alone(kinds: list[Kind]) -> tuple[Kind, ...]:
    """A node that fails has no siblings: in LangGraph it is a race how far they get, or whose handler runs first."""
    failing = [kind for kind in kinds if kind in (Kind.FAILING, Kind.HANDLED)]
    return tuple(failing[:1] or kinds)


def touch(name: str) -> None:
    """Leave a file in the world, if there is one."""
    if is_in_a_run():
        path = current_sandbox().path / name
        path.write_text(str(len(list(path.parent.iterdir()))))


def node(name: str, kind: Kind, schema: Any, is_async: bool) -> Any:
    failed: Counter[str] = Counter()

    def work(state: Any) -> Any:
        touch(name)
        said = {"log": [name], "n": 1}
        match kind:
            case Kind.SILENT:
                return None
            case Kind.CUSTOM:
                get_stream_writer()({"at": name})
            case Kind.MESSAGE:
                return {"messages": [AIMessage(name, id=f"m-{name}")]}
            case Kind.FLAKY:
                failed[name] += 1
                if failed[name] < 2:
                    raise OSError(name)
            case Kind.FAILING | Kind.HANDLED:
                raise ValueError(name)
            case Kind.ASKING:
                return {"log": [name, interrupt(f"{name}?")]}
            case Kind.COMMAND:
                return Command(update=said)
        return said

    async def awork(state: Any) -> Any:
        return work(state)

    if kind in (Kind.SUBGRAPH, Kind.ASKING_SUBGRAPH, Kind.CALLING, Kind.LEAVING):
        last = {Kind.ASKING_SUBGRAPH: Kind.ASKING, Kind.CALLING: Kind.ASKING}.get(kind, Kind.PLAIN)
        inner = StateGraph(schema)
        inner.add_node(f"{name}1", node(f"{name}1", Kind.PLAIN, schema, is_async))
        if kind is Kind.LEAVING:

            def leave(state: Any) -> Any:
                touch(f"{name}2")
                return Command(graph=Command.PARENT, update={"log": [f"{name}2"]})

            inner.add_node(f"{name}2", leave)
        else:
            inner.add_node(f"{name}2", node(f"{name}2", last, schema, is_async))
        inner.add_edge(START, f"{name}1").add_edge(f"{name}1", f"{name}2")
        graph = inner.compile()
        if kind is not Kind.CALLING:
            return graph

        def call(state: Any) -> Any:
            touch(name)
            return {"log": [*graph.invoke({"log": []})["log"], name]}

        async def acall(state: Any) -> Any:
            touch(name)
            return {"log": [*(await graph.ainvoke({"log": []}))["log"], name]}

        return acall if is_async else call
    return awork if is_async else work


def build(shape: Shape) -> StateGraph[Any, Any, Any, Any]:
    schema = STATES[shape.state]
    graph = StateGraph(schema)
    before: list[str] = []
    for depth, layer in enumerate(shape.layers):
        names = [f"{'abc'[depth]}{i}" for i in range(len(layer.kinds))]
        for name, kind in zip(names, layer.kinds, strict=True):
            options: dict[str, Any] = {}
            if kind is Kind.FLAKY:
                options["retry_policy"] = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError)
            if kind is Kind.HANDLED:
                options["error_handler"] = node(f"{name}handler", Kind.PLAIN, schema, shape.is_async)
            graph.add_node(name, node(name, kind, schema, shape.is_async), defer=layer.join is Join.DEFER, **options)
        _join(graph, before or [START], names, layer.join)
        before = names
    if shape.loop > 1:
        _loop(graph, before[-1], shape.loop)
    return graph


def _join(graph: Any, before: list[str], names: list[str], join: Join) -> None:
    if join is Join.BRANCH:
        graph.add_conditional_edges(before[0], lambda state: names, names)
    elif join is Join.SEND and before != [START]:
        graph.add_conditional_edges(before[0], lambda state: [Send(name, state) for name in names], names)
    elif join is Join.WAITING and len(before) > 1:
        for name in names:
            graph.add_edge(before, name)
    else:
        for start in before:
            for name in names:
                graph.add_edge(start, name)


def _loop(graph: Any, last: str, times: int) -> None:
    def again(state: Any) -> str:
        log = state["log"] if isinstance(state, dict) else state.log
        return "a0" if log.count("a0") and log.count("a0") < times else "__end__"

    graph.add_conditional_edges(last, again, ["a0", "__end__"])
