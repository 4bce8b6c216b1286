"""The gallery's graphs in graphs, in all the ways they can get there."""

from __future__ import annotations

from typing import Any

from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send

from tests.runtime.langgraph.differential.pieces import Log, ask, line, say
from tests.runtime.langgraph.differential.shapes import touch


def parent() -> Any:
    def leave(state: Log) -> Any:
        touch("leave")
        return Command(graph=Command.PARENT, goto="after", update={"log": ["left"]})

    inner = line(("x", say("x")), ("leave", leave), ("never", say("never"))).compile()
    graph = StateGraph(Log).add_node("inner", inner).add_node("other", say("other")).add_node("after", say("after"))
    return graph.add_edge(START, "inner").add_edge("inner", "other")


def parent_of_two() -> Any:
    """A graph in a graph hands over to the graph in between."""

    def leave(state: Log) -> Any:
        touch("leave")
        return [Command(graph=Command.PARENT, goto="end", update={"log": ["left"]})]

    deep = line(("leave", leave)).compile()
    middle = StateGraph(Log).add_node("deep", deep).add_node("end", say("end")).add_edge(START, "deep")
    return line(("a", say("a")), ("middle", middle.compile()), ("z", say("z")))


def closure() -> Any:
    graphs = {"one": line(("x", say("x")), ("asks", ask("asks"))).compile()}

    def node(state: Log) -> Any:
        touch("node")
        return {"log": graphs["one"].invoke({"log": []})["log"]}

    return line(("a", say("a")), ("node", node), ("z", say("z")))


def two_closures() -> Any:
    """A node that runs one stateless graph twice in a row."""
    inner = line(("x", say("x")), checkpointer=False)

    def node(state: Log) -> Any:
        return {"log": [*inner.invoke({"log": ["1"]})["log"], *inner.invoke({"log": ["2"]})["log"]]}

    return line(("node", node), ("z", say("z")))


def remembering() -> Any:
    """A subgraph that keeps its state between the invocations of its thread."""
    inner = line(("x", say("x", n=1)), ("y", ask("y")), checkpointer=True)
    return line(("a", say("a")), ("inner", inner), ("z", say("z")))


def sent_graphs() -> Any:
    inner = line(("x", say("x")), ("asks", ask("asks"))).compile()
    graph = StateGraph(Log).add_node("inner", inner).add_node("z", say("z")).add_edge("inner", "z")
    return graph.add_conditional_edges(
        START, lambda state: [Send("inner", {"log": [str(i)]}) for i in range(2)], ["inner"]
    )


def static_inside() -> Any:
    inner = line(("x", say("x")), ("y", say("y")), interrupt_before=["y"])
    return line(("a", say("a")), ("inner", inner), ("z", say("z")))


def both_asking() -> Any:
    graph = StateGraph(Log)
    for name in ("a", "b"):
        graph.add_node(name, line((f"{name}1", say(f"{name}1")), (f"{name}2", ask(f"{name}2"))).compile())
        graph.add_edge(START, name)
    return graph.add_node("z", say("z")).add_edge(["a", "b"], "z")
