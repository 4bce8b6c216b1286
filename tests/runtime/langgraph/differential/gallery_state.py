"""The gallery's states: schemas, channels, reducers, messages."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any

import pydantic
from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage
from langgraph.channels import EphemeralValue, Topic, UntrackedValue
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from tests.runtime.langgraph.differential.pieces import Log, ask, line, say
from tests.runtime.langgraph.differential.shapes import touch


def merge(left: dict[str, int] | None, right: dict[str, int] | None) -> dict[str, int]:
    return {**(left or {}), **(right or {})}


def largest(left: int, right: int) -> int:
    return max(left, right)


class Channels(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    last: str
    most: Annotated[int, largest]
    merged: Annotated[dict[str, int], merge]
    topic: Annotated[list[str], Topic]
    passing: Annotated[str, EphemeralValue]
    open: Annotated[Any, UntrackedValue]


def channels() -> Any:
    def a(state: Channels) -> Any:
        touch("a")
        return {"log": ["a"], "most": 3, "merged": {"a": 1}, "passing": "now", "open": "held", "topic": "t"}

    def b(state: Channels) -> Any:
        return {"log": [f"{state.get('passing')} {state.get('open')} {state.get('topic')}"], "merged": {"b": 2}}

    def c(state: Channels) -> Any:
        touch("c")
        return {"last": "c", "most": 2, "log": [str(state.get("passing"))]}

    def over(state: Channels) -> Any:
        return {"log": Overwrite(["anew"]), "last": None}

    graph = StateGraph(Channels)
    for name, node in {"a": a, "b": b, "c": c, "over": over}.items():
        graph.add_node(name, node)
    return graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge(["b", "c"], "over")


class Last(TypedDict):
    log: str


def two_last_values() -> Any:
    graph = StateGraph(Last).add_node("a", say("a")).add_node("b", say("b"))
    return graph.add_edge(START, "a").add_edge(START, "b")


def refuses(left: list[str], right: list[str]) -> list[str]:
    if "b" in right:
        raise KeyError("no b")
    return left + right


class Refusing(TypedDict):
    log: Annotated[list[str], refuses]


def failing_reducer() -> Any:
    return line(("a", say("a")), ("b", say("b")), ("c", say("c")), schema=Refusing)


class Checked(pydantic.BaseModel):
    log: Annotated[list[str], operator.add] = []
    n: int = 0


def invalid() -> Any:
    return line(("a", say("a", n="many")), ("b", say("b")), schema=Checked)


def private() -> Any:
    class Given(TypedDict):
        log: Annotated[list[str], operator.add]

    class Hidden(TypedDict):
        secret: str

    class Shown(TypedDict):
        shown: str

    class All(Given, Hidden, Shown):
        pass

    def a(state: Given) -> Any:
        touch("a")
        return {"secret": "s"}

    def b(state: Hidden) -> Any:
        touch("b")
        return {"shown": state["secret"], "log": ["b"]}

    graph = StateGraph(All, input_schema=Given, output_schema=Shown).add_node("a", a).add_node("b", b)
    return graph.add_edge(START, "a").add_edge("a", "b")


def context() -> Any:
    class Context(TypedDict):
        who: str

    def node(state: Log, runtime: Runtime[Context]) -> Any:
        touch("node")
        runtime.stream_writer({"who": runtime.context["who"]})
        assert runtime.store is None
        return {"log": [runtime.context["who"], str(runtime.previous)]}

    return StateGraph(Log, context_schema=Context).add_node(node).add_edge(START, "node")


def messages() -> Any:
    def drop(state: MessagesState) -> Any:
        touch("drop")
        return {"messages": [RemoveMessage(id="h"), AIMessage("new", id="n")]}

    def replace(state: MessagesState) -> Any:
        return {"messages": [AIMessage("newer", id="n"), ("user", "and?")][:1]}

    return line(("drop", drop), ("replace", replace), schema=MessagesState)


@dataclass
class Data:
    log: Annotated[list[str], operator.add] = field(default_factory=list)
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


def data() -> Any:
    return line(("a", say("a")), ("asks", ask("asks")), schema=Data)
