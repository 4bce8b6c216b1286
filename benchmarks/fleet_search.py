"""A search on the nodes of a Ray cluster of this machine: two nodes beside one, what a branch on a node takes, and
kills in the middle of searches. `fleet_ray` has the cluster."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.rows import Row, median_row, row
from ramify import World, search
from ramify.fleet.fleet import Fleet
from ramify.fleet.fleet_world import FleetWorld
from ramify.fleet.types import FleetEvent, Needs, WorldMoved
from ramify.tree_search.command_turns import CommandTurns, CommandWorld
from ramify.tree_search.search import Beam, BestOf
from ramify.tree_search.types import Turn

ONE_NODE = "first"
"""A resource that one node has, so that a world can ask for it."""

SPEEDUP = "search with leaves that compute, two nodes beside one"
ADDS = "what a branch on a node takes, its command apart"
SURVIVES = "kills in searches: branches lost, or actions that count twice"
NAMES = (SPEEDUP, ADDS, SURVIVES)

WIDTH, DEPTH, KEEP, LANES = 3, 4, 2, 2

Kill = Callable[[int, Random], Awaitable[None]]
"""Kills something, and waits until the fleet is as large as before: (number of the kill, source) to nothing."""


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


async def speed_rows(fleet: Fleet, folder: Path, quick: bool) -> list[Row]:
    branches, loops = (12, 150_000) if quick else (64, 300_000)
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
    rows = [row(SPEEDUP, round(took["one"] / took["two"], 2), "x", target=1.7, at_least=True, note=said)]
    adds, here = [], []
    for number in range(2 if quick else 4):
        async with fleet.world(needs=one) as world, World.create(home=folder / "own", sandbox="copy") as own:
            await world.exec("true")
            theirs = await _took(world, branches, ":", 1) / branches * 1000
            ours = await _took(own, branches, ":", 1) / branches * 1000
        if number:  # the first round opens stores
            adds.append(theirs)
            here.append(ours)
    said = f"one after the other, with the seal and the upload; {min(here):.0f} ms in this process, without an upload"
    return [*rows, median_row(ADDS, adds, "ms", target=30.0, note=said)]


async def kill_row(fleet: Fleet, kills: int, kill_one: Kill, events: Sequence[tuple[float, FleetEvent]]) -> Row:
    """Lanes of searches, while nodes and their processes are killed. Each action adds its word to a file of its
    world, so a state whose file differs from its history has lost an action or has one twice."""
    random, ended = Random(29), asyncio.Event()
    searches, states, wrong, failed = 0, 0, 0, 0

    async def propose(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        return [f"sleep 0.05; echo {word} >> words" for word in "abc"[:n]]

    async def score(environment: CommandTurns[FleetWorld], history: Sequence[Turn[str]]) -> float:
        nonlocal states, wrong
        words = (await environment.world.read("words")).decode().split()
        states += 1
        wrong += words != [turn.action.split()[3] for turn in history]
        return float(sum("abc".index(word) for word in words))

    async def lane() -> None:
        nonlocal searches, failed, wrong
        while not ended.is_set():
            async with fleet.world() as world:
                method = Beam(keep=KEEP)
                async with search(
                    CommandTurns(world), propose, width=WIDTH, depth=DEPTH, method=method, score=score
                ) as found:
                    searches += 1
                    failed += found.failed
                    complete = WIDTH + (DEPTH - 1) * KEEP * WIDTH
                    wrong += complete - found.steps
                    wrong += await found.best.environment.world.read("words") != b"c\n" * DEPTH

    async def kill() -> None:
        for number in range(kills):
            await asyncio.sleep(random.uniform(0.1, 1.5))
            await kill_one(number, random)
        ended.set()

    begun = len(events)
    await asyncio.gather(kill(), *(lane() for _ in range(LANES)))
    moved = sum(isinstance(event, WorldMoved) for _, event in events[begun:])
    said = f"{kills} kills, {searches} searches with {states} states, of which {moved} went on on another node"
    return row(SURVIVES, wrong + failed, "branches or actions", target=0, note=said)
