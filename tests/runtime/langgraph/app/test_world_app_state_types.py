"""A state that is a Pydantic model or a dataclass is returned as one, wherever plain LangGraph does so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.samples import PATIENT

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class Model(BaseModel):
    x: int = 0
    y: str = "y"


class Given(BaseModel):
    y: str = "y"


class Out(BaseModel):
    x: int = 5


@dataclass
class Data:
    x: int = 0
    y: str = "y"


class Plain(TypedDict, total=False):
    x: int
    y: str


SCHEMAS: list[dict[str, Any]] = [
    {"state_schema": Model},
    {"state_schema": Model, "input_schema": Given, "output_schema": Out},
    {"state_schema": Data},
    {"state_schema": Plain, "output_schema": Out},
    {"state_schema": Plain, "input_schema": Data},
    {"state_schema": Model, "output_schema": Plain},
]


def build(schemas: dict[str, Any]) -> StateGraph[Any, Any, Any, Any]:
    def node(state: Any) -> Any:
        return {"x": (state.get("x", 0) if isinstance(state, dict) else getattr(state, "x", 0)) + 1}

    def inner(state: Any) -> Any:
        return {"x": 7}

    graph: Any = StateGraph(**schemas).add_node("node", node)
    sub: Any = StateGraph(schemas["state_schema"]).add_node("inner", inner).add_edge(START, "inner")
    graph.add_node("sub", sub.compile())
    return graph.add_edge(START, "node").add_edge("node", "sub")


MODES = ["values", "updates", "tasks", "checkpoints", "debug", "custom", "messages"]


def invoked(app: Any, given: Any) -> Any:
    return app.invoke(given, CONFIG)


def invoked_v2(app: Any, given: Any) -> Any:
    return app.invoke(given, CONFIG, version="v2")


def streamed_v1(app: Any, given: Any) -> Any:
    return list(app.stream(given, CONFIG, stream_mode=["values", "updates"]))


def streamed_v2(app: Any, given: Any) -> Any:
    return [
        (chunk["type"], len(chunk["ns"]), chunk["data"])
        for mode in ("values", "updates", "custom")
        for chunk in app.stream(given, CONFIG, stream_mode=mode, version="v2", subgraphs=True)
    ]


def invoked_async_v2(app: Any, given: Any) -> Any:
    return asyncio.run(app.ainvoke(given, CONFIG, version="v2"))


def events_v3(app: Any, given: Any) -> Any:
    run = app.stream_events(given, CONFIG, version="v3")
    values = list(run.values)
    return [values, run.output]


def states(app: Any, given: Any) -> Any:
    app.invoke(given, CONFIG)
    return app.get_state(CONFIG).values


WAYS = [invoked, invoked_v2, streamed_v1, streamed_v2, invoked_async_v2, events_v3, states]


# every way with one schema, and half of them, in turn, with each of the others
CASES = [
    (schemas, way, compiled)
    for at, schemas in enumerate(SCHEMAS)
    for number, (way, compiled) in enumerate((way, compiled) for compiled in (False, True) for way in WAYS)
    if PATIENT or ((at == 0 or (at + number) % 2) and (not compiled or way in (streamed_v2, states)))
]


def named(part: Any) -> str:
    return (
        "-".join(kind.__name__ for kind in part.values())
        if isinstance(part, dict)
        else getattr(part, "__name__", str(part))
    )


@pytest.mark.parametrize(("schemas", "way", "compiled"), CASES, ids=named)
def test_a_state_keeps_its_type(
    schemas: dict[str, Any], way: Callable[[Any, Any], Any], compiled: bool, compile_graph: Any
) -> None:
    def seen(app: Any) -> Any:
        try:
            return repr(way(app, {"y": "given"}))
        except Exception as error:  # noqa: BLE001  # whatever it is: the plain graph has to raise the same
            return f"{type(error).__name__}: {error}"

    graph = build(schemas)
    plain = seen(graph.compile(checkpointer=InMemorySaver()))
    ours = compile_graph(graph.compile() if compiled else graph, checkpointer=InMemorySaver())
    assert seen(ours) == plain


def test_no_attribute_of_the_plain_graph_is_missing_or_of_another_kind(compile_graph: Any) -> None:
    @entrypoint()
    def flow(given: int) -> int:
        return given

    agent = create_agent(GenericFakeChatModel(messages=iter([])), [])
    for graph in (*(build(schemas).compile() for schemas in SCHEMAS), agent, flow):
        graph.marked = "by its owner"
        app = compile_graph(graph)
        for name, value in vars(graph).items():
            assert type(vars(app)[name]) is type(value), name
        replaced = {"nodes", "channels", "cache_policy"}
        copied = {name for name, value in vars(graph).items() if vars(app)[name] == value}
        assert vars(graph).keys() - copied <= {*replaced, "trigger_to_nodes"}
        assert vars(app).keys() - vars(graph).keys() == {"session"}
