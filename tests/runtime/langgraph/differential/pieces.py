"""Parts of which the graphs of the gallery, the manual and the whole programs are made.

Nodes act on a world if there is one, so the same functions run in plain graphs and in graphs over worlds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, interrupt
from typing_extensions import TypedDict

from tests.runtime.langgraph.differential.shapes import touch

RETRY = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=OSError, max_attempts=3)
HUMAN = {"messages": [HumanMessage("hi", id="h")]}


@dataclass(frozen=True)
class Piece:
    """A graph that each `make()` builds anew, its inputs in turn, and how it is compiled and called."""

    make: Callable[[], Any]
    given: tuple[Any, ...] = ({"log": ["in"]},)
    options: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)
    is_racy: bool = False  # the order of its tasks is visible: it runs one task at a time, which needs a loop
    needs_loop: bool = False  # its nodes are async
    at_once: bool = False  # it would wait for ever if its tasks ran one at a time, also in the plain graph


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: Annotated[int, operator.add]


def say(name: str, **more: Any) -> Callable[[Any], Any]:
    def node(state: Any) -> Any:
        touch(name)
        return {"log": [name], **more}

    return node


def ask(name: str, times: int = 1) -> Callable[[Any], Any]:
    def node(state: Any) -> Any:
        touch(name)
        return {"log": [name, *(str(interrupt(f"{name}{i}?")) for i in range(times))]}

    return node


def line(*nodes: tuple[str, Any], schema: Any = Log, **kept: Any) -> Any:
    graph = StateGraph(schema)
    for name, node in nodes:
        graph.add_node(name, node)
    graph.add_edge(START, nodes[0][0])
    for (first, _), (second, _) in pairwise(nodes):
        graph.add_edge(first, second)
    return graph.compile(**kept) if kept else graph


class Scripted(FakeMessagesListChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def calls(*named: tuple[str, dict[str, Any]]) -> AIMessage:
    made = [{"name": name, "args": args, "id": f"call-{name}-{i}"} for i, (name, args) in enumerate(named)]
    return AIMessage("", id=f"m-{'-'.join(name for name, _ in named)}", tool_calls=made)


@tool
def write(path: str) -> str:
    """Write a file."""
    touch(path)
    return f"wrote {path}"


@tool
def confirm(what: str) -> str:
    """Ask a person."""
    touch("asked")
    return str(interrupt(what))
