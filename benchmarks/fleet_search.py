"""A search on the nodes of a Ray cluster of this machine: two nodes beside one, and what a node adds to a branch."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.fleet_cluster import ONE_NODE
from benchmarks.rows import Row, median_row, row
from ramify import World, search
from ramify.fleet.fleet import Fleet
from ramify.fleet.types import Needs
from ramify.tree_search.command_turns import CommandTurns, CommandWorld
from ramify.tree_search.search import BestOf
from ramify.tree_search.types import Turn

SPEEDUP = "search with leaves that compute, two nodes beside one"
ADDS = "what a node adds to a branch of a search"
NAMES = (SPEEDUP, ADDS)


async def _took(world: Any, branches: int, command: str, at_once: int) -> float:
    """Seconds of a search that tries `branches` commands at once, each in a fork."""

    async def propose(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        return [f"{command}; echo {number} > leaf" for number in range(n)]

    async def score(environment: Any, history: Sequence[Turn[str]]) -> float:
        return 1.0

    begun = time.perf_counter()
    how: dict[str, Any] = {"width": branches, "depth": 1, "method": BestOf(), "concurrency": at_once}
    async with search(CommandTurns[CommandWorld](world), propose, score=score, **how) as found:
        took = time.perf_counter() - begun
        if found.steps != branches or found.errors:
            raise RuntimeError(f"{found.steps} of {branches} branches, and {found.errors}")
    return took


async def rows(fleet: Fleet, folder: Path, quick: bool) -> list[Row]:
    branches, loops = (4, 150_000) if quick else (64, 300_000)
    compute = f"for ((i = 0; i < {loops}; i++)); do :; done"
    one = Needs(resources={ONE_NODE: 1})
    took: dict[str, float] = {}
    for name, needs in (("one", one), ("two", Needs())):
        async with fleet.world(needs=needs) as world:
            await world.exec("true")
            took[name] = await _took(world, branches, compute, fleet.slots)
    said = (
        f"{branches} branches took {took['one']:.1f} s on one node and {took['two']:.1f} s on two, with a slot each; "
        f"this machine has {os.cpu_count()} cores, which also run this program, Ray and the uploads"
    )
    speed = row(SPEEDUP, round(took["one"] / took["two"], 2), "x", target=1.7, at_least=True, note=said)
    adds, placed = [], []
    for number in range(2 if quick else 6):
        async with fleet.world(needs=one) as world, World.create(home=folder / "own", sandbox="copy") as own:
            await world.exec("true")
            theirs = await _took(world, branches, ":", 1) / branches * 1000
            ours = await _took(own, branches, ":", 1) / branches * 1000
        if number:  # the first round opens stores
            adds.append(theirs - ours)
            placed.append(theirs)
    said = f"its upload, and Ray; {min(placed):.0f} ms on a node for a fork, a command that does nothing, and a seal"
    return [speed, median_row(ADDS, adds, "ms", target=30.0, note=said)]
