"""The gallery's routes: where a graph goes next, and where it stops."""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from tests.runtime.langgraph.differential.pieces import Log, ask, line, say
from tests.runtime.langgraph.differential.shapes import touch


def goto() -> Any:
    def first(state: Log) -> Any:
        touch("first")
        count = state["log"].count("first")
        where = ["left", Send("right", {"log": [f"sent{count}"]})] if count < 2 else END
        return Command(update={"log": ["first"]}, goto=where)

    def right(state: Log) -> Any:
        touch(f"right{len(state['log'])}")
        return Command(update={"log": [f"right of {state['log']}"]}, goto="first")

    graph = StateGraph(Log).add_node("first", first, destinations=("left", "right"))
    return graph.add_node("left", say("left")).add_node("right", right).add_edge(START, "first")


def deferred() -> Any:
    graph = StateGraph(Log)
    for name in ("a", "b", "b2", "c"):
        graph.add_node(name, say(name))
    graph.add_node("d", say("d"), defer=True)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge("b", "b2")
    return graph.add_edge("b2", "d").add_edge("c", "d")


def asking_sends() -> Any:
    def each(state: Any) -> Any:
        touch(f"each{state['n']}")
        return {"log": [f"{state['n']}: {interrupt(state['n'])}" if state["n"] % 2 else f"{state['n']}"]}

    graph = StateGraph(Log).add_node("a", say("a")).add_node("each", each).add_node("z", say("z"))
    graph.add_edge(START, "a").add_edge("each", "z")
    return graph.add_conditional_edges("a", lambda state: [Send("each", {"n": i}) for i in range(4)], ["each"])


def branches() -> Any:
    graph = StateGraph(Log)
    for name in ("a", "b", "c", "d"):
        graph.add_node(name, say(name))
    graph.add_conditional_edges(START, lambda state: "one", {"one": "a", "two": "d"})
    graph.add_conditional_edges("a", lambda state: ["b", "c"]).add_edge(["b", "c"], "d")
    return graph.add_conditional_edges("d", lambda state: len(state["log"]) < 7, {True: "a", False: END})


def endless() -> Any:
    graph = StateGraph(Log).add_node("a", say("a")).add_node("b", say("b"))
    return graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "a")


def plain_line() -> Any:
    return line(("a", say("a")), ("b", say("b")), ("c", say("c")))


def twice_asking() -> Any:
    return line(("a", ask("a", 2)), ("b", ask("b")))
