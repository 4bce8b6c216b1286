"""Graphs whose threads lose snapshots, ways to lose them, and a log of which nodes ran."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from ramify import Sandbox, llm, paths
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.events import Event, Recovered
from ramify.runtime.store import RunStore
from ramify.runtime.worlds.garbage_collection import EvictionMarks, collect

CONFIG: Any = {"configurable": {"thread_id": "t"}}
LOG: list[str] = []
"""The names of the nodes that ran, in order."""


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    seen: list[str]


def maker(name: str, text: str | None = None) -> Callable[..., Any]:
    """Return a node that writes what a model says about the node."""

    async def make(state: State, sandbox: Sandbox) -> State:
        LOG.append(name)
        said = text or (await llm.chat(f"{name}?")).text
        found = sorted(path.name for path in sandbox.path.iterdir())
        (sandbox.path / name).write_text(f"{said} after {found}")
        return {"said": [name]}

    make.__name__ = name
    return make


async def look(state: State, sandbox: Sandbox) -> State:
    return {"seen": [f"{path.name}: {path.read_text()}" for path in sorted(sandbox.path.iterdir())]}


def line() -> StateGraph[State]:
    nodes = [(name, maker(name)) for name in "abc"]
    return StateGraph(State).add_sequence([*nodes, ("look", look)]).add_edge(START, "a")


def sides() -> StateGraph[State]:
    graph = StateGraph(State).add_node("a", maker("a")).add_node("look", look).add_edge(START, "a")
    for name in ("l", "m", "r"):
        graph.add_node(name, maker(name)).add_edge("a", name)
    return graph


def fan() -> StateGraph[State]:
    return sides().add_edge(["l", "m", "r"], "look")


def merging() -> StateGraph[State]:
    return sides().add_node("z", maker("z")).add_edge(["l", "m", "r"], "z").add_edge("z", "look")


def sends() -> StateGraph[State]:
    async def one(state: dict[str, str], sandbox: Sandbox) -> State:
        LOG.append(state["of"])
        (sandbox.path / state["of"]).write_text((await llm.chat(state["of"])).text)
        return {"said": [state["of"]]}

    graph = StateGraph(State).add_node("a", maker("a")).add_node("one", one).add_node("look", look)
    graph.add_edge(START, "a").add_edge("one", "look")
    return graph.add_conditional_edges("a", lambda state: [Send("one", {"of": name}) for name in "xy"], ["one"])


def asking() -> StateGraph[State]:
    async def ask(state: State, sandbox: Sandbox) -> State:
        LOG.append("ask")
        answers = [interrupt("first?"), interrupt("second?")]
        (sandbox.path / "ask").write_text(str(answers))
        return {"said": answers}

    nodes: Any = [("a", maker("a")), ("ask", ask), ("b", maker("b")), ("look", look)]
    return StateGraph(State).add_sequence(nodes).add_edge(START, "a")


def inside() -> StateGraph[State]:
    """A graph as a node, and a graph that a node's code calls, both on the node's world."""
    inner = StateGraph(State).add_sequence([("i", maker("i")), ("j", maker("j"))]).add_edge(START, "i").compile()
    other = StateGraph(State).add_sequence([("k", maker("k"))]).add_edge(START, "k").compile()

    async def call(state: State, sandbox: Sandbox) -> State:
        LOG.append("call")
        (sandbox.path / "before").write_text("before")
        await other.ainvoke({"said": []})
        (sandbox.path / "after").write_text(str(sorted(path.name for path in sandbox.path.iterdir())))
        return {"said": ["call"]}

    nodes: Any = [("a", maker("a")), ("inner", inner), ("call", call), ("look", look)]
    return StateGraph(State).add_sequence(nodes).add_edge(START, "a")


def loop() -> StateGraph[State]:
    async def count(state: State, sandbox: Sandbox) -> State:
        LOG.append("count")
        said = (await llm.chat(f"round {len(state['said'])}")).text
        with (sandbox.path / "count").open("a") as file:
            file.write(f"{said}\n")
        return {"said": ["."]}

    graph = StateGraph(State).add_node("count", count).add_node("look", look).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda state: "look" if len(state["said"]) > 2 else "count")


def commanding() -> StateGraph[State]:
    """A sync node that continues by a `Command`."""

    def turn(state: State, sandbox: Sandbox) -> Command[str]:
        LOG.append("turn")
        (sandbox.path / "turn").write_text("turned")
        return Command(update={"said": ["turn"]}, goto="b")

    graph = StateGraph(State).add_node("turn", turn, destinations=("b",)).add_node("b", maker("b"))
    return graph.add_node("look", look).add_edge(START, "turn").add_edge("b", "look")


SHAPES = [line, fan, merging, sends, asking, inside, loop, commanding]


async def stopped(app: Any, config: Any = CONFIG) -> list[str]:
    """Run the thread up to its last node; return the snapshots of its run, the workspace's first."""
    state = await app.ainvoke({"said": []}, config, interrupt_before=["look"])
    for answer in ("yes", "no"):
        if "__interrupt__" in state:
            state = await app.ainvoke(Command(resume=answer), config, interrupt_before=["look"])
    assert (await app.aget_state(config)).next == ("look",)
    return states(app)


def before(app: Any, node: str) -> Any:
    return next(state for state in app.get_state_history(CONFIG) if state.next == (node,))


def states(app: Any) -> list[str]:
    services = app.session.portal.wait(app.session.services())
    known = app.session.portal.wait(services.store.checkpoints(app.session.last_run_id))
    return list(dict.fromkeys(one.snapshot_id for one in known))


def contents(app: Any) -> dict[str, str]:
    """Return what the journal says of each state."""
    services = app.session.portal.wait(app.session.services())
    known = app.session.portal.wait(services.store.checkpoints(app.session.last_run_id))
    return {one.snapshot_id: one.content_key for one in known}


def lose(home: Path, *ids: str) -> None:
    for id in set(ids):
        (paths.snapshots(home) / "snapshots" / f"{id}.json").unlink()


async def collected(home: Path) -> None:
    """Delete everything that no row names, however young."""
    pins, marks = Pins(paths.locks(home)), EvictionMarks(paths.evicted(home))
    async with RunStore(paths.database(home), clock=time.time) as store:
        await collect(store, SnapshotStore(paths.snapshots(home)), pins, marks, grace_s=0)


class Heard:
    def __init__(self) -> None:
        self.recovered: list[Recovered] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Recovered):
            self.recovered.append(event)
