"""A tree search with and without reuse, and the same work in LangGraph with and without its cache.

64 leaves, each with a world of its own, in pairs with equal content; each does about a third of a second of work.
LangGraph's cache sees only a task's input, so its tasks get as input what distinguishes the leaves. It has no single
flight and no worlds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from operator import add
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.cache.memory import InMemoryCache
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy, Send

from benchmarks.durability.supersteps import row
from benchmarks.rows import Row
from ramify import Runtime, Sandbox, fork, step, workflow

LEAVES, QUICK, SHARED, ROUNDS = 64, 24, 2, 3
WORK = "x = 0\nfor i in range(3_000_000): x += i"


@step
async def place(sandbox: Sandbox, number: int) -> None:
    (sandbox.path / "number").write_text(str(number))


async def _work(sandbox: Sandbox) -> str:
    done = await sandbox.run([sys.executable, "-c", WORK], check=True)
    return done.stdout


@step(reuse=True)
async def expand_once(sandbox: Sandbox, number: int) -> str:
    return f"{number} {await _work(sandbox)}"


@step
async def expand_each(sandbox: Sandbox, number: int) -> str:
    return f"{number} {await _work(sandbox)}"


@workflow
async def search(reuse: bool, leaves: int) -> int:
    async with fork([leaf % (leaves // SHARED) for leaf in range(leaves)]) as branches:
        await branches.map(place)
        if reuse:
            await branches.map(expand_once)
        else:
            await branches.map(expand_each)
    return leaves


def rows(quick: bool, sandbox: str) -> list[Row]:
    """Alternate our search with and without reuse and LangGraph with and without its cache, so that load affects all
    equally."""
    took: dict[bool, list[float]] = {True: [], False: []}
    executed = {True: 0, False: 0}
    cached, plain = [], []
    leaves = QUICK if quick else LEAVES
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        asyncio.run(_search(Path(folder), sandbox, True, SHARED))  # do the imports before anything is timed
    for _ in range(1 if quick else ROUNDS):
        for reuse in (True, False):
            with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
                seconds, executed[reuse] = asyncio.run(_search(Path(folder), sandbox, reuse, leaves))
            took[reuse].append(seconds)
        cached.append(_langgraph(leaves, cache=True))
        plain.append(_langgraph(leaves, cache=False))
    name = f"tree search, {leaves} leaves, half the work shared"
    time_row = row(f"{name}: time", took[True], "s", "without reuse", took[False], 0.55)
    count = row(f"{name}: executions", [executed[True]], "commands", "without reuse", [executed[False]], 0.55)
    theirs = "LangGraph without a cache"
    graph = row(
        "the same work in LangGraph with CachePolicy: time",
        [seconds for seconds, _ in cached],
        "s",
        theirs,
        [seconds for seconds, _ in plain],
        None,
    )
    graph_count = row("the same: executions", [cached[0][1]], "commands", theirs, [plain[0][1]], None)
    return [time_row, count, graph, graph_count]


async def _search(folder: Path, sandbox: str, reuse: bool, leaves: int) -> tuple[float, int]:
    (folder / "w").mkdir()
    async with Runtime(home=folder / "home", sandbox=sandbox) as runtime:
        begun = time.perf_counter()
        await runtime.run(search, reuse, leaves, workspace=folder / "w")
        took = time.perf_counter() - begun
        journal = await runtime.journal()
    ran = [one for one in journal if one.step in ("expand_once", "expand_each") and one.reused_from is None]
    return took, len([one for one in ran if one.kind == "RUN"])


def _langgraph(leaves: int, *, cache: bool) -> tuple[float, int]:
    """64 tasks in one superstep, as `Send`s: half of them equal. The cache has no single flight."""
    ran: list[int] = []

    class State(TypedDict):
        done: Annotated[list[int], add]

    def work(state: dict[str, int]) -> dict[str, list[int]]:
        ran.append(1)
        subprocess.run([sys.executable, "-c", WORK], check=True)
        return {"done": [state["number"]]}

    def spread(_: dict[str, object]) -> list[Send]:
        return [Send("work", {"number": leaf % (leaves // SHARED)}) for leaf in range(leaves)]

    graph = StateGraph(State)
    graph.add_node("work", work, cache_policy=CachePolicy() if cache else None)  # type: ignore[type-var]
    graph.add_conditional_edges(START, spread, ["work"])
    app = graph.compile(cache=InMemoryCache() if cache else None)
    begun = time.perf_counter()
    app.invoke({"done": []}, {"max_concurrency": 8})
    return time.perf_counter() - begun, len(ran)
