"""Kills at random moments, while runs and searches go on on the nodes of a fleet: of the fleet's process on a node,
of a whole raylet, of the head of the cluster, of the database and of the object store.

The runs have effects whose hook can look them up; each must happen once. In the searches, each action adds its word
to a file of its world, so a state whose file differs from its history has lost an action or has one twice. What ends
with an error of the cluster, of the database or of the bucket is resumed, as a user would. A killed head costs the
cluster: another one is started, the runs go on there, and so do worlds from the last states that a search saw.

A call is a chunk: with a file for a tally, the rows are about all chunks that the file has.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fleet_cluster import Heard, RayletCluster, open_cluster
from benchmarks.fleet_kills_tally import NAMES, Chunk, begin, end, rows_of, total
from benchmarks.object_server import ObjectServer
from benchmarks.rows import Row, not_measured
from ramify import DidNotHappen, Happened, Runtime, Sandbox, search, step, workflow
from ramify.fleet.errors import ClusterUnreachable, FleetClosed, FleetError, NodesDied
from ramify.fleet.fleet import Fleet
from ramify.fleet.fleet_world import FleetWorld
from ramify.fleet.types import NodeJoined, NodeLost, Placed, WorldMoved
from ramify.fork_engine.errors import RemoteError
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import LeaseHeld, RunCancelled, StoreError
from ramify.tree_search.command_turns import CommandTurns
from ramify.tree_search.search import Beam
from ramify.tree_search.types import SearchError, Turn

MAILS, RUN_LANES, SEARCH_LANES = 6, 3, 2
WIDTH, DEPTH, KEEP = 3, 4, 2
MOST_RESUMES = 40
INTERRUPTIONS = (NodesDied, ClusterUnreachable, FleetClosed, RunCancelled, LeaseHeld, StoreError, RemoteError)
"""What a run may end with when its nodes, the head, the database or the bucket are killed: it is kept."""

HEAD_EVERY = 12
"""One of so many kills is of the head: each costs a cluster."""

RAY_ENDS_S = 60
"""Seconds after which Ray ends the processes of a cluster without a head. The fleet gives up after half of them."""

KINDS = ("process", "node", "database", "object store")


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


@dataclass
class Site:
    """Where the lanes work: the fleet of now, while there is one."""

    runtime: Runtime
    folder: Path
    chunk: Chunk
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    results: dict[str, str] = field(default_factory=dict)
    _fleet: Fleet | None = None
    _there: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._there.set()

    def gone(self) -> None:
        self._there.clear()

    async def fleet(self) -> Fleet:
        await self._there.wait()
        assert self._fleet is not None
        return self._fleet

    async def interrupted(self, error: Exception) -> None:
        self.chunk.interrupted[type(error).__name__] += 1
        self.chunk.told.setdefault(type(error).__name__, str(error))
        if isinstance(error, ClusterUnreachable | FleetClosed):
            self.gone()
        elif isinstance(error, LeaseHeld | RunCancelled):
            await asyncio.sleep(1.0)  # a process of the cluster before may live for a while


async def rows(
    cluster: RayletCluster, runtime: Runtime, fleet: Fleet, heard: Heard, folder: Path, kills: int
) -> list[Row]:
    """A few kills of processes and nodes of an open fleet."""
    site = _site(runtime, folder)
    site.open(fleet)
    random, begun = Random(29), len(heard.events)
    lanes = asyncio.gather(*_lanes(site))
    for number in range(kills):
        await asyncio.sleep(random.uniform(0.1, 2.0))
        await _kill_node(cluster, fleet, heard, random, whole=bool(number % 2))
        site.chunk.killed[KINDS[number % 2]] += 1
    site.ended.set()
    await lanes
    return rows_of(_counted(site, heard, begun))


def rows_of_a_cluster(kills: int, seed: int, tally: Path | None) -> list[Row]:
    """As `rows`, on clusters, a PostgreSQL and an object store of its own, which are killed, too."""
    import postgres  # of tests/; the nodes, which load this module for its workflow, lack it

    why = "Ray is not installed (ramify[ray])" if importlib.util.find_spec("ray") is None else postgres.why_not()
    if why or postgres.binaries() is None:
        return [not_measured(name, "", why or "no PostgreSQL here that can be killed") for name in NAMES]
    with (
        tempfile.TemporaryDirectory(prefix="ramify-bench-", ignore_cleanup_errors=True) as name,
        postgres.own_server() as database,
        ObjectServer(Path(name) / "objects") as objects,
    ):
        ends = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(RAY_ENDS_S)}
        os.environ.update(objects.variables | ends)  # for this program and the nodes
        services = {"database": database.kill, "object store": objects.kill}
        begin(tally, seed, kills)
        address = postgres.new_database(database.address)
        chunk = asyncio.run(_chunk(Path(name), address, objects.url, services, kills, Random(seed)))
        end(tally, seed, chunk)
        return rows_of(chunk if tally is None else total(tally))


async def _chunk(
    folder: Path,
    database: str,
    bucket: str,
    services: dict[str, Callable[[float], None]],
    kills: int,
    random: Random,
) -> Chunk:
    heard, left = Heard(), _plan(kills, random)
    async with Runtime(home=folder / "home", database=database, remote=bucket, sandbox="copy") as runtime:
        site = _site(runtime, folder)
        lanes = asyncio.gather(*_lanes(site))
        for number in range(kills + 1):
            with suppress(FleetError, RemoteError, StoreError):  # of leaving a fleet whose head is gone
                async with (
                    open_cluster(folder / f"cluster{number}") as cluster,
                    Fleet(runtime, cluster.address, patience=120, observer=heard) as fleet,
                ):
                    site.open(fleet)
                    while left and await _killed(left.pop(0), cluster, fleet, heard, site, services, random):
                        pass
                    if site.chunk.killed["head"] <= number:  # this cluster has its head: all kills are done
                        site.ended.set()
                        await lanes
            site.gone()
            if site.ended.is_set():
                break
        return _counted(site, heard, 0)


def _plan(kills: int, random: Random) -> list[str]:
    kinds = ["head" if n % HEAD_EVERY == HEAD_EVERY - 1 else KINDS[n % len(KINDS)] for n in range(kills)]
    random.shuffle(kinds)
    return kinds


async def _killed(
    kind: str,
    cluster: RayletCluster,
    fleet: Fleet,
    heard: Heard,
    site: Site,
    services: dict[str, Callable[[float], None]],
    random: Random,
) -> bool:
    """Kill one, and wait until the fleet has noticed. Returns whether the cluster is still there."""
    await asyncio.sleep(random.uniform(0.1, 2.0))
    if kind in services:
        await asyncio.to_thread(services[kind], random.uniform(0.0, 2.0))
    elif kind == "head":
        cluster.kill_head()
        await _head_missed(fleet, site)
    else:
        await _kill_node(cluster, fleet, heard, random, whole=kind == "node")
    site.chunk.killed[kind] += 1
    return kind != "head"


async def _head_missed(fleet: Fleet, site: Site) -> None:
    begun = time.monotonic()
    with suppress(ClusterUnreachable):
        async with fleet.world() as world:
            while time.monotonic() - begun < RAY_ENDS_S:
                with suppress(RemoteError):
                    await world.exec("true")
                await asyncio.sleep(0.2)
    site.chunk.heads.append(round(time.monotonic() - begun, 1))
    site.gone()


async def _kill_node(cluster: RayletCluster, fleet: Fleet, heard: Heard, random: Random, *, whole: bool) -> None:
    """Kill the fleet's process on a node, or the raylet, and wait for another one."""
    before = len(heard.events)
    node, facts = random.choice(sorted(fleet.nodes.items()))
    if whole:
        await asyncio.to_thread(cluster.kill, node)
        cluster.add()
    else:
        os.kill(facts.pid, signal.SIGKILL)
    await heard.next(NodeLost, before)
    await heard.next(NodeJoined, before)


def _site(runtime: Runtime, folder: Path) -> Site:
    sent = folder / "kills"
    sent.mkdir()
    return Site(runtime, sent, Chunk())


def _lanes(site: Site) -> list[Any]:
    return [*(_run_lane(site, n) for n in range(RUN_LANES)), *(_search_lane(site) for _ in range(SEARCH_LANES))]


async def _run_lane(site: Site, lane: int) -> None:
    turn = 0
    while not site.ended.is_set():
        name, run = f"{lane}.{turn}", None
        for _ in range(MOST_RESUMES):
            try:
                fleet = await site.fleet()
                run = run or (await site.runtime.create(mails, (str(site.folder), name), {})).id
                site.results[name] = await fleet.resume(run)
                break
            except INTERRUPTIONS as error:
                await site.interrupted(error)
        else:
            site.chunk.wrong_runs.append(f"run {run}")
        turn += 1


async def _search_lane(site: Site) -> None:
    seen: list[tuple[SnapshotId, list[str]]] = []

    async def propose(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        return [f"sleep 0.05; echo {word} >> words" for word in "abc"[:n]]

    async def score(environment: CommandTurns[FleetWorld], history: Sequence[Turn[str]]) -> float:
        words = (await environment.world.read("words")).decode().split()
        site.chunk.states += 1
        expected = [turn.action.split()[3] for turn in history]
        if words != expected:
            site.chunk.wrong_searches.append(f"state {words}")
        seen.append((environment.world.state, expected))
        return float(sum("abc".index(word) for word in words))

    how: dict[str, Any] = {"width": WIDTH, "depth": DEPTH, "method": Beam(keep=KEEP), "score": score}
    while not site.ended.is_set():
        fleet = await site.fleet()
        seen.clear()
        try:
            async with fleet.world() as world, search(CommandTurns(world), propose, **how) as result:
                for error in result.errors:
                    if isinstance(error, ClusterUnreachable | FleetClosed):
                        raise error
                site.chunk.searches += 1
                site.chunk.wrong_searches += [f"branch: {error!r}" for error in result.errors]
                if result.steps != WIDTH + (DEPTH - 1) * KEEP * WIDTH:
                    site.chunk.wrong_searches.append(f"{result.steps} steps")
                if await result.best.environment.world.read("words") != b"c\n" * DEPTH:
                    site.chunk.wrong_searches.append("another result")
        except RemoteError as error:  # its first state was not uploaded: nothing had begun
            await site.interrupted(error)
        except SearchError as error:
            if "ClusterUnreachable" not in str(error) and "FleetClosed" not in str(error):
                raise
            await site.interrupted(ClusterUnreachable(str(error)))
            await _states_are_kept(site, seen)
        except (ClusterUnreachable, FleetClosed) as error:
            await site.interrupted(error)
            await _states_are_kept(site, seen)


async def _states_are_kept(site: Site, seen: Sequence[tuple[SnapshotId, list[str]]]) -> None:
    """The last states of a search that ended with its cluster are whole on the next one."""
    for state, words in list(seen[-KEEP:]):
        for _ in range(MOST_RESUMES):
            try:
                async with (await site.fleet()).world(snapshot=state) as world:
                    if (await world.read("words")).decode().split() != words:
                        site.chunk.wrong_searches.append(f"state {state} is not {words}")
                    site.chunk.went_on += 1
                    break
            except INTERRUPTIONS as error:
                await site.interrupted(error)
        else:
            site.chunk.wrong_searches.append(f"state {state}")


def _counted(site: Site, heard: Heard, begun: int) -> Chunk:
    chunk, sent = site.chunk, Counter(_lines(str(site.folder)))
    for name, result in site.results.items():
        words = [f"{name} {number}" for number in range(MAILS)]
        if result.splitlines() != words:
            chunk.wrong_runs.append(f"result {name}")
        chunk.wrong_runs += [f"{sent[word]} x {word}" for word in words if sent[word] != 1]
    events = [event for _, event in heard.events[begun:]]
    chunk.runs, chunk.effects = len(site.results), len(site.results) * MAILS
    chunk.moved = sum(isinstance(event, Placed) and bool(event.earlier) for event in events)
    chunk.moved_worlds = sum(isinstance(event, WorldMoved) for event in events)
    return chunk
