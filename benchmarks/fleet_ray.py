"""Runs on a Ray cluster of this machine: what a node adds to a run, and how soon a run goes on after its node died.

Two raylets with one CPU each, and a head that takes no runs. A killed raylet takes its processes with it. The time
from the kill to Ray's verdict is Ray's; the figure begins with the verdict.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rows import Row, median_row, not_measured
from ramify import Runtime, Sandbox, step, workflow
from ramify.fleet.fleet import Fleet
from ramify.fleet.types import FleetEvent, NodeJoined, NodeLost, Placed

GOES_ON, COSTS = "node killed to its run's going on, after detection", "what a node adds to a run of one step"
STORE_BYTES = 80 << 20


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


class _Cluster:
    """Raylets on this machine, each with a home of its own. Ray sets handlers of signals: use the main thread."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._cluster, self._folder, self._started = Cluster(), folder, 0
        self._raylets: dict[str, Any] = {}
        self.add(num_cpus=0)
        self.address = str(self._cluster.address)

    def add(self, num_cpus: int = 1) -> None:
        self._started += 1
        home = str(self._folder / f"home{self._started}")
        made = self._cluster.add_node(
            num_cpus=num_cpus,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            env_vars={"RAMIFY_HOME": home},
        )
        self._raylets[made.node_id[:8]] = made

    def kill(self, node: str) -> None:
        """Kill the node of that name."""
        id = next(id for id in self._raylets if id in node)
        self._cluster.remove_node(self._raylets.pop(id), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


class _Heard:
    def __init__(self) -> None:
        self.events: list[tuple[float, FleetEvent]] = []
        self._changed = asyncio.Event()

    def __call__(self, event: FleetEvent) -> None:
        self.events.append((time.time(), event))
        self._changed.set()

    async def next(self, kind: type[FleetEvent], after: int) -> tuple[float, Any]:
        """The first event of a kind from that position on."""
        while True:
            for at, event in self.events[after:]:
                if isinstance(event, kind):
                    return at, event
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 120)


@asynccontextmanager
async def _fleet(folder: Path, database: str, heard: _Heard) -> AsyncIterator[tuple[_Cluster, Runtime, Fleet]]:
    cluster = _Cluster(folder)
    try:
        for _ in range(2):
            cluster.add()
        async with (
            Runtime(home=folder / "home", database=database, remote=folder / "bucket", sandbox="copy") as runtime,
            Fleet(runtime, cluster.address, observer=heard) as fleet,
        ):
            yield cluster, runtime, fleet
    finally:
        await asyncio.to_thread(cluster.close)


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


async def _goes_on(cluster: _Cluster, fleet: Fleet, heard: _Heard, folder: Path) -> tuple[float, float]:
    """Seconds from the kill of a run's node to its detection, and from there to the run's next step."""
    folder.mkdir()
    after = len(heard.events)
    running = asyncio.create_task(fleet.run(held, str(folder)))
    _, placed = await heard.next(Placed, after)
    while not (folder / "begun").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    killed = time.time()
    await asyncio.to_thread(cluster.kill, placed.node)
    detected, _ = await heard.next(NodeLost, after)
    while len(begun := (folder / "begun").read_text().split()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    (folder / "gate").touch()
    await running
    before = len(heard.events)
    cluster.add()
    await heard.next(NodeJoined, before)
    return detected - killed, float(begun[1]) - detected


async def rows(quick: bool, database: str, kind: str) -> list[Row]:
    """`database`: an empty one. `kind`: what to call it in the notes."""
    if importlib.util.find_spec("ray") is None:
        why = "Ray is not installed (ramify[ray])"
        return [not_measured(COSTS, "ms", why), not_measured(GOES_ON, "s", why, target="5")]
    heard = _Heard()
    with tempfile.TemporaryDirectory(prefix="ramify-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with _fleet(folder, database, heard) as (cluster, runtime, fleet):
            costs = await _costs(runtime, fleet, 10 if quick else 50)
            took = [await _goes_on(cluster, fleet, heard, folder / f"round{n}") for n in range(1 if quick else 5)]
    detected = ", ".join(f"{one:.1f}" for one, _ in took)
    said = f"on {kind}; Ray noticed the kill after {detected} s; a lease that is waited for costs up to 15 s"
    return [costs, median_row(GOES_ON, [one for _, one in took], "s", target=5.0, note=said)]
