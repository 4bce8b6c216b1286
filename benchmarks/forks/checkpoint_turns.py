"""Rows for benchmarks/fork.py: the time that a checkpoint adds to an agent's turn.

A turn is a command, the model's answer (`think_s`), and the next command. A checkpoint is begun when the command has
ended, and goes on while the model answers. What it adds is the call that begins it, and what the next command takes
longer than one after a turn without a checkpoint. The rows "at once" have no model: the next command waits until the
state is taken.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.forks.rounds import Row, row
from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.contract import World

CHANGE = "for n in {{0..99}}; do echo {turn} > d$((n % 10))/f$n; done"
TARGETS = {"after 100 changed files": 2.0, "where nothing changed": 1.0}


async def turn_rows(world: World, store: SnapshotStore, think_s: float, rounds: int) -> list[Row]:
    """Rows for a world whose processes a snapshot keeps."""
    made = []
    for what, target in TARGETS.items():
        changes = "changed" in what and "nothing" not in what
        plain = statistics.median([await _next_command(world, think_s, turn, changes) for turn in range(rounds)])
        added, stored, at_once = [], [], []
        for turn in range(rounds):
            took, on_disk = await _turn(world, store, think_s, turn, changes)
            added.append(max(0.0, took - plain))
            stored.append(on_disk)
            at_once.append(max(0.0, (await _turn(world, store, 0.0, turn + rounds, changes))[0] - plain))
        name = f"time that a checkpoint of a live world adds to a turn, {what}"
        made += [
            row(name, added, target),
            row(f"the same, if the next command comes at once, {what}", at_once, None),
            row(f"the checkpoint itself, on disk behind the turn, {what}", stored, None),
        ]
    return made


async def _next_command(world: World, think_s: float, turn: int, changes: bool) -> float:
    """Milliseconds of the next command after a turn without a checkpoint."""
    await world.run(CHANGE.format(turn=turn) if changes else ":")
    await asyncio.sleep(think_s)
    begun = time.perf_counter()
    await world.run(":")
    return (time.perf_counter() - begun) * 1000


async def _turn(world: World, store: SnapshotStore, think_s: float, turn: int, changes: bool) -> tuple[float, float]:
    """Milliseconds of the call that begins a checkpoint and of the next command, and until the checkpoint is on
    disk."""
    await world.run(CHANGE.format(turn=turn) if changes else ":")
    begun = time.perf_counter()
    sealing = await world.begin_seal()
    call = time.perf_counter() - begun

    async def flushed() -> float:
        await sealing
        await asyncio.to_thread(store.flush)
        return time.perf_counter() - begun

    stored = asyncio.ensure_future(flushed())
    await asyncio.sleep(think_s)
    again = time.perf_counter()
    await world.run(":")
    took = call + time.perf_counter() - again
    return took * 1000, await stored * 1000
