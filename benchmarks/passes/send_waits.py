"""How long the worlds of a LangGraph fan-out by `Send` wait after a node that calls a model: what lookahead could
hide."""

from __future__ import annotations

import asyncio
import operator
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Send

import ramify
from benchmarks.rows import Row, median_row
from ramify import Sandbox

FAN_OUT = 16
THINKING_S = 0.5


class State(TypedDict, total=False):
    ideas: list[int]
    done: Annotated[list[int], operator.add]


async def think(state: State) -> State:
    await asyncio.sleep(THINKING_S)
    return {"ideas": list(range(FAN_OUT))}


async def act(state: Any, sandbox: Sandbox) -> State:
    (sandbox.path / f"made-{state['idea']}").write_text("x")
    return {"done": [state["idea"]]}


def send_rows(quick: bool) -> list[Row]:
    """The longest wait of a task for its world, next to the whole invocation. The first one starts the sandboxes and
    is not counted."""
    waits: list[float] = []
    whole: list[float] = []

    async def work(home: Path, workspace: Path) -> None:
        graph: Any = StateGraph(State).add_node("think", think).add_node("act", act).add_edge(START, "think")
        graph.add_conditional_edges(
            "think", lambda state: [Send("act", {"idea": i}) for i in state["ideas"]], ["act"]
        )
        app = ramify.compile(graph, workspace, home=home, sandbox="namespaces", name="sends")
        try:
            for number in range(-1, 3 if quick else 20):
                begun = time.perf_counter()
                await app.ainvoke({})
                took = 1000 * (time.perf_counter() - begun)
                services = await app.session.portal.cross(app.session.services())
                rows = await app.session.portal.cross(services.store.ops(app.session.last_run_id))
                if number >= 0:
                    whole.append(took)
                    waits.append(max(float(row.attrs.get("fork_ms", 0.0)) for row in rows if row.step == "act"))
        finally:
            app.close()

    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as workspace:
        asyncio.run(work(Path(home), Path(workspace)))
    return [
        median_row(
            f"the longest wait for a world of a fan-out of {FAN_OUT} Sends, without lookahead",
            waits,
            "ms",
            peer=f"the whole invocation, with a model that thinks for {THINKING_S:g} s",
            peer_value=sorted(whole)[len(whole) // 2],
        )
    ]
