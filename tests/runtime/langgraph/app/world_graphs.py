"""Graphs whose nodes write files in their world."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

import ramify.graph
from ramify import Sandbox

CONFIG = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    seen: Annotated[list[list[str]], operator.add]
    n: int


def names(sandbox: Any) -> list[str]:
    return sorted(path.name for path in sandbox.path.iterdir())


def writer(name: str, text: str | None = None) -> Callable[..., State]:
    def write(state: State, sandbox: Sandbox) -> State:
        seen = names(sandbox)
        (sandbox.path / name).write_text(text or name)
        return {"seen": [seen]}

    return write


def look(state: State, sandbox: Sandbox) -> State:
    return {"seen": [names(sandbox)]}


def chain(*nodes: tuple[str, Callable[..., Any]]) -> StateGraph[State]:
    graph = StateGraph(State).add_sequence(list(nodes))
    return graph.add_edge(START, nodes[0][0])


def fan(left: Callable[..., Any], right: Callable[..., Any]) -> StateGraph[State]:
    graph = chain(("first", writer("first")))
    graph.add_node("left", left).add_node("right", right).add_node("join", look)
    return graph.add_edge("first", "left").add_edge("first", "right").add_edge(["left", "right"], "join")


def at(app: Any, *following: str) -> Any:
    """Return the newest checkpoint after which these nodes come."""
    return next(state for state in app.get_state_history(CONFIG) if set(state.next) == set(following))


def files(app: Any, config: Any) -> dict[str, str]:
    """Return every file at a checkpoint, read through the store."""
    services = app.session.portal.wait(app.session.services())
    snapshot = services.snapshots.get(ramify.graph.snapshot_of(app, config))
    return {path: services.snapshots.read(snapshot, path).decode() for path in services.snapshots.entries(snapshot)}
