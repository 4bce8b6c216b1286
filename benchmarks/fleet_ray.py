"""Runs on a Ray cluster of this machine: what a node adds to a run, and how soon a run goes on after its node died.

Two raylets with one CPU each, and a head that takes no runs. A killed raylet takes its processes with it. The time
from the kill to Ray's verdict is Ray's; the figure begins with the verdict.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks import fleet_search
from benchmarks.rows import Row, median_row, not_measured, row
from ramify import DidNotHappen, Happened, Runtime, Sandbox, step, workflow
from ramify.fleet.errors import NodesDied
from ramify.fleet.fleet import Fleet
from ramify.fleet.types import FleetEvent, NodeJoined, NodeLost, Placed

GOES_ON, COSTS = "node killed to its run's going on, after detection", "what a node adds to a run of one step"
KILLS = "kills of nodes and of their processes at random moments: runs lost, or effects done twice"
NAMES = (COSTS, KILLS, GOES_ON)
STORE_BYTES = 80 << 20
MAILS, LANES = 6, 4


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


async def was_sent(key: str, *, folder: str, word: str) -> Happened | DidNotHappen:
    return Happened(None) if word in _lines(folder) else DidNotHappen()


@step(effect="irreversible", reconcile=was_sent)
async def send(folder: str, word: str) -> None:
    with (Path(folder) / "sent").open("a") as log:
        log.write(f"{word}\n")


@step
async def write(sandbox: Sandbox, word: str) -> None:
    await asyncio.sleep(0.05)
    with (sandbox.path / "words").open("a") as file:
        file.write(f"{word}\n")


@step(effect="readonly")
async def read(sandbox: Sandbox) -> str:
    text: str = (sandbox.path / "words").read_text()
    return text


@workflow
async def mails(folder: str, name: str) -> str:
    for number in range(MAILS):
        await write(f"{name} {number}")
        await send(folder, f"{name} {number}")
    return await read()


def _lines(folder: str) -> list[str]:
    path = Path(folder) / "sent"
    return path.read_text().splitlines() if path.exists() else []


class _Cluster:
    """Raylets on this machine, each with a home of its own. Ray sets handlers of signals: use the main thread."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._cluster, self._folder, self._started = Cluster(), folder, 0
        self._raylets: dict[str, Any] = {}
        self.add(num_cpus=0)
        self.address = str(self._cluster.address)

    def add(self, num_cpus: int = 1, resources: Mapping[str, float] | None = None) -> None:
        self._started += 1
        home = str(self._folder / f"home{self._started}")
        made = self._cluster.add_node(
            num_cpus=num_cpus,
            resources=dict(resources or {}),
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            env_vars={"RAMIFY_HOME": home},
        )
        self._raylets[made.node_id[:8]] = made

    def kill(self, node: str) -> None:
        """Kill the node of that name."""
        id = next(id for id in self._raylets if f"({id})" in node)
        self._cluster.remove_node(self._raylets.pop(id), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


Heard = list[tuple[float, FleetEvent]]  # with the time


class _Heard:
    def __init__(self) -> None:
        self.events: Heard = []
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
        cluster.add(resources={fleet_search.ONE_NODE: 1})
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
    at = time.time()
    await asyncio.to_thread(cluster.kill, placed.node)
    detected, _ = await heard.next(NodeLost, after)
    while len(begun := (folder / "begun").read_text().split()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    (folder / "gate").touch()
    await running
    before = len(heard.events)
    cluster.add()
    await heard.next(NodeJoined, before)
    return detected - at, float(begun[1]) - detected


def _killing(cluster: _Cluster, fleet: Fleet, heard: _Heard) -> fleet_search.Kill:
    async def kill(number: int, random: Random) -> None:
        """Kill the process of a node, or with an odd number its raylet, and wait for another one."""
        before = len(heard.events)
        node, facts = random.choice(sorted(fleet.nodes.items()))
        if number % 2:
            await asyncio.to_thread(cluster.kill, node)
            cluster.add()
        else:
            os.kill(facts.pid, signal.SIGKILL)
        await heard.next(NodeLost, before)
        await heard.next(NodeJoined, before)

    return kill


async def _kills(fleet: Fleet, kill_one: fleet_search.Kill, heard: _Heard, folder: Path, kills: int) -> Row:
    """Lanes of runs, each with effects that its hook can look up, while nodes and their processes are killed."""
    folder.mkdir()
    random, begun = Random(29), len(heard.events)
    ended = asyncio.Event()
    results: dict[str, str] = {}

    async def lane(number: int) -> None:
        turn = 0
        while not ended.is_set():
            name = f"{number}.{turn}"
            try:
                results[name] = await fleet.run(mails, str(folder), name)
            except NodesDied as error:  # that many kills in a row met this run
                results[name] = await fleet.resume(error.stranded_run)
            turn += 1

    async def kill() -> None:
        for number in range(kills):
            await asyncio.sleep(random.uniform(0.2, 3.0))
            await kill_one(number, random)
        ended.set()

    await asyncio.gather(kill(), *(lane(number) for number in range(LANES)))
    return _counted(kills, results, Counter(_lines(str(folder))), heard.events[begun:])


def _counted(kills: int, results: Mapping[str, str], sent: Mapping[str, int], heard: Heard) -> Row:
    expected = {name: [f"{name} {number}" for number in range(MAILS)] for name in results}
    lost = sum(results[name].splitlines() != words for name, words in expected.items())
    wrong = sum(sent.get(word, 0) != 1 for words in expected.values() for word in words)
    moved = sum(isinstance(event, Placed) and bool(event.earlier) for _, event in heard)
    said = (
        f"{kills} kills, {len(results)} runs with {len(results) * MAILS} effects, of which {moved} changed their node"
    )
    return row(KILLS, lost + wrong, "runs or effects", target=0, note=said)


async def rows(quick: bool, database: str, kind: str, parts: Collection[str]) -> list[Row]:
    """`database`: an empty one. `kind`: what to call it in the notes. `parts`: of "ray" and "search"."""
    if importlib.util.find_spec("ray") is None:
        why, names = "Ray is not installed (ramify[ray])", {"ray": NAMES, "search": fleet_search.NAMES}
        return [not_measured(name, "", why) for part in parts for name in names[part]]
    heard, found = _Heard(), list[Row]()
    with tempfile.TemporaryDirectory(prefix="ramify-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with _fleet(folder, database, heard) as (cluster, runtime, fleet):
            kill = _killing(cluster, fleet, heard)
            if "search" in parts:
                found += await fleet_search.speed_rows(fleet, folder, quick)
                found.append(await fleet_search.kill_row(fleet, 1 if quick else 150, kill, heard.events))
            if "ray" in parts:
                found.append(await _costs(runtime, fleet, 10 if quick else 50))
                found.append(await _kills(fleet, kill, heard, folder / "kills", 1 if quick else 150))
                took = [await _goes_on(cluster, fleet, heard, folder / f"round{n}") for n in range(1 if quick else 5)]
                found.append(_goes_on_row(took, kind))
    return found


def _goes_on_row(took: Sequence[tuple[float, float]], kind: str) -> Row:
    detected = ", ".join(f"{one:.1f}" for one, _ in took)
    said = f"on {kind}; Ray noticed the kill after {detected} s; a lease that is waited for costs up to 15 s"
    return median_row(GOES_ON, [one for _, one in took], "s", target=5.0, note=said)
