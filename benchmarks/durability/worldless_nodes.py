"""What a node that takes no world costs over Ramify: processor time of the process, beside plain LangGraph."""

from __future__ import annotations

import asyncio
import gc
import itertools
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

import ramify
from benchmarks.rows import Row, row

MOST = 1.3  # of plain LangGraph
_THREADS = map(str, itertools.count())


class State(TypedDict):
    left: int


def rows(quick: bool) -> list[Row]:
    nodes, rounds = (100, 3) if quick else (300, 9)
    return [_compared(is_async, saved, nodes, rounds) for is_async in (True, False) for saved in (True, False)]


def _compared(is_async: bool, saved: bool, nodes: int, rounds: int) -> Row:
    """Run both in turns, and compare the turns: which of the two a busy machine slows down is chance."""
    took: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        plain = _graph(is_async, saved)
        (Path(folder) / "workspace").mkdir()
        where = {"workspace": f"{folder}/workspace", "home": f"{folder}/home"}
        app = ramify.compile(_graph(is_async, saved), sandbox="copy", **where)
        try:
            for _ in range(rounds + 1):
                took.append((_node_ms(app, is_async, nodes), _node_ms(plain, is_async, nodes)))
        finally:
            app.close()
    ratios = [ours / theirs for ours, theirs in took[1:]]  # the first ones import and make tables
    kind = (
        f"{'async' if is_async else 'plain'} function, {'a checkpointer in memory' if saved else 'no checkpointer'}"
    )
    least, peer = (min(one) for one in zip(*took[1:], strict=True))
    return row(
        f"node without a world, {kind}",
        round(median(ratios), 2),
        "times",
        target=MOST,
        spread=(round(min(ratios), 2), round(max(ratios), 2)),
        note=f"{least:.2f} ms of processor time, plain LangGraph {peer:.2f} ms",
    )


def _graph(is_async: bool, saved: bool) -> Any:
    async def counts_async(state: State) -> State:
        return {"left": state["left"] - 1}

    def counts(state: State) -> State:
        return {"left": state["left"] - 1}

    graph = StateGraph(State).add_node("node", counts_async if is_async else counts).add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if state["left"] else END, ["node", END])
    return graph.compile(checkpointer=InMemorySaver() if saved else None)


def _node_ms(app: Any, is_async: bool, nodes: int) -> float:
    """Return the milliseconds of each node after the first: an invocation has a beginning and an end, too."""
    return (_invoked_ms(app, is_async, nodes) - _invoked_ms(app, is_async, 1)) / (nodes - 1)


def _invoked_ms(app: Any, is_async: bool, nodes: int) -> float:
    config = {"configurable": {"thread_id": next(_THREADS)}, "recursion_limit": nodes + 2}
    gc.collect()
    gc.disable()
    begun = time.process_time()
    try:
        asyncio.run(app.ainvoke({"left": nodes}, config)) if is_async else app.invoke({"left": nodes}, config)
        return (time.process_time() - begun) * 1000
    finally:
        gc.enable()
