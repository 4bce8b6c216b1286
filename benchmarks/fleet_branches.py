"""Branches of one run's fork on the nodes of a Ray cluster of this machine: two nodes beside one, and what a node
adds to a branch."""

from __future__ import annotations

import os
import time

from benchmarks.rows import Row, median_row, row
from ramify import Runtime, Sandbox, fork, step, workflow
from ramify.compiler.plan import OpKind
from ramify.fleet.fleet import Fleet

SPEEDUP = "branches of one run's fork that compute, two nodes beside one"
ADDS = "what a node adds to a branch of a run's fork"
NAMES = (SPEEDUP, ADDS)


@step
async def leaf(sandbox: Sandbox, item: int, loops: int) -> int:
    await sandbox.run(f"for ((i = 0; i < {loops}; i++)); do :; done; echo {item} > leaf", check=True)
    return item


@workflow
async def leaves(branches: int, loops: int, at_once: int) -> int:
    """The last branch is merged. Returns how many branches have a result."""
    async with fork(list(range(branches))) as made:
        outcomes = await made.map(leaf, loops, concurrency=at_once)
        await outcomes[-1].adopt()
        return sum(one.value == number for number, one in enumerate(outcomes))


async def _took(runtime: Runtime, branches: int, loops: int, at_once: int) -> tuple[float, set[str]]:
    """Seconds of a run with so many branches, `at_once` at the same time, and the nodes where they ran."""
    begun = time.perf_counter()
    done = await runtime.run(leaves, branches, loops, at_once)
    took = time.perf_counter() - begun
    rows = await runtime.store.ops(runtime.last_run_id or "")
    ran = [one for one in rows if one.step == "leaf" and one.kind is OpKind.RUN]
    if done != branches or len(ran) != branches:
        raise RuntimeError(f"{done} of {branches} branches, and {len(ran)} rows")
    return took, {one.attrs.get("node", "") for one in ran}


async def rows(runtime: Runtime, fleet: Fleet, quick: bool) -> list[Row]:
    branches, loops = (4, 150_000) if quick else (64, 300_000)
    await _took(runtime, 4, 1, fleet.slots)  # opens stores
    one, _ = await _took(runtime, branches, loops, 1)
    two, nodes = await _took(runtime, branches, loops, fleet.slots)
    if nodes != set(fleet.nodes):
        raise RuntimeError(f"the branches ran on {nodes}")
    said = (
        f"{branches} branches took {one:.1f} s one at a time and {two:.1f} s on both nodes, with a slot each; this "
        f"machine has {os.cpu_count()} cores, which also run this program, Ray and the uploads"
    )
    speed = row(SPEEDUP, round(one / two, 2), "x", target=1.7, at_least=True, note=said)
    adds, placed = [], []
    async with Runtime(home=runtime.home / "alone", sandbox="copy") as alone:
        for number in range(2 if quick else 6):
            theirs = (await _took(runtime, branches, 1, 1))[0] / branches * 1000
            ours = (await _took(alone, branches, 1, 1))[0] / branches * 1000
            if number:
                adds.append(theirs - ours)
                placed.append(theirs)
    said = f"its upload, and Ray; {min(placed):.0f} ms on a node for a fork, a command that does nothing, and a seal"
    return [speed, median_row(ADDS, adds, "ms", target=30.0, note=said)]
