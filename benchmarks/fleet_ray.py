"""Runs on a Ray cluster of this machine: what a node adds to a run, and how soon a run goes on after its node died.

The time from a kill to Ray's verdict is Ray's; the figure begins with the verdict.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median

from benchmarks import fleet_branches, fleet_kills, fleet_search
from benchmarks.fleet_cluster import Heard, RayletCluster, open_fleet
from benchmarks.fleet_matching import live
from benchmarks.rows import Row, median_row, not_measured
from ramify import Runtime, Sandbox, step, workflow
from ramify.fleet.fleet import Fleet
from ramify.fleet.types import NodeJoined, NodeLost, Placed

GOES_ON, COSTS = "node killed to its run's going on, after detection", "what a node adds to a run of one step"
NAMES = (COSTS, GOES_ON)


@step
async def put(sandbox: Sandbox) -> None:
    (sandbox.path / "file").write_text("content")


@step
async def hold(folder: str) -> None:
    with (Path(folder) / "begun").open("a") as log:
        log.write(f"{time.time()}\n")
    while not (Path(folder) / "gate").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@workflow
async def one() -> None:
    await put()


@workflow
async def held(folder: str) -> None:
    await put()
    await hold(folder)


async def _costs(runtime: Runtime, fleet: Fleet, runs: int) -> Row:
    own, placed = [], []
    for number in range(runs + 2):
        begun = time.perf_counter()
        await runtime.run(one)
        between = time.perf_counter()
        await fleet.run(one)
        if number >= 2:  # the first runs of each node open its store
            own.append((between - begun) * 1000)
            placed.append((time.perf_counter() - between) * 1000)
    added = [theirs - ours for theirs, ours in zip(placed, own, strict=True)]
    said = f"{median(placed):.0f} ms on a node, {median(own):.0f} ms in this process, with an upload before and after"
    return median_row(COSTS, added, "ms", note=said)


async def _goes_on(
    cluster: RayletCluster, fleet: Fleet, heard: Heard, folder: Path, last: bool
) -> tuple[float, float]:
    """Seconds from the kill of a run's node to its detection, and from there to the run's next step. Another node
    takes its place, unless this is the last round."""
    folder.mkdir()
    after = len(heard.events)
    running = asyncio.create_task(fleet.run(held, str(folder)))
    _, placed = await heard.next(Placed, after)
    while not (folder / "begun").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    at = time.time()
    await asyncio.to_thread(cluster.kill, placed.node)
    detected, _ = await heard.next(NodeLost, after)
    while len(begun := (folder / "begun").read_text().split()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    (folder / "gate").touch()
    await running
    before = len(heard.events)
    if not last:
        cluster.add()
        await heard.next(NodeJoined, before)
    return detected - at, float(begun[1]) - detected


async def rows(quick: bool, database: str, kind: str, parts: Collection[str]) -> list[Row]:
    """`database`: an empty one. `kind`: what to call it in the notes. `parts`: of those that need Ray."""
    if importlib.util.find_spec("ray") is None:
        names = {
            "search": (*fleet_search.NAMES, *fleet_branches.NAMES),
            "kills": fleet_kills.NAMES,
            "ray": NAMES,
            "matching-live": live.NAMES,
        }
        return [
            not_measured(name, "", "Ray is not installed (ramify[ray])") for part in parts for name in names[part]
        ]
    heard, found = Heard(), list[Row]()
    with tempfile.TemporaryDirectory(prefix="ramify-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with open_fleet(folder, database, folder / "bucket", heard) as (cluster, runtime, fleet):
            if "search" in parts:
                found += await fleet_search.rows(fleet, folder, quick)
                found += await fleet_branches.rows(runtime, fleet, quick)
            if "matching-live" in parts:
                found += await live.rows(runtime, cluster.address, quick)
            if "kills" in parts:
                found += await fleet_kills.rows(cluster, runtime, fleet, heard, folder, 2)
            if "ray" in parts:
                found.append(await _costs(runtime, fleet, 3 if quick else 50))
                rounds = 1 if quick else 5
                took = [
                    await _goes_on(cluster, fleet, heard, folder / f"round{n}", n == rounds - 1)
                    for n in range(rounds)
                ]
                found.append(_goes_on_row(took, kind))
    return found


def _goes_on_row(took: Sequence[tuple[float, float]], kind: str) -> Row:
    detected = ", ".join(f"{one:.1f}" for one, _ in took)
    said = f"on {kind}; Ray noticed the kill after {detected} s; a lease that is waited for costs up to 15 s"
    return median_row(GOES_ON, [one for _, one in took], "s", target=5.0, note=said)
