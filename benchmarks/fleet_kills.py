"""Kills at random moments, while runs and searches go on on the nodes of a fleet: of the fleet's process on a node,
of a whole raylet, of the database and of the object store.

The runs have effects whose hook can look them up; each must happen once. In the searches, each action adds its word
to a file of its world, so a state whose file differs from its history has lost an action or has one twice. What ends
with an error of the database or of the bucket is resumed, as a user would.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fleet_cluster import Heard, RayletCluster, open_fleet
from benchmarks.object_server import ObjectServer
from benchmarks.rows import Row, not_measured, row
from ramify import DidNotHappen, Happened, Runtime, Sandbox, search, step, workflow
from ramify.fleet.errors import NodesDied
from ramify.fleet.fleet import Fleet
from ramify.fleet.fleet_world import FleetWorld
from ramify.fleet.types import NodeJoined, NodeLost, Placed, WorldMoved
from ramify.fork_engine.errors import RemoteError
from ramify.runtime.errors import StoreError
from ramify.tree_search.command_turns import CommandTurns
from ramify.tree_search.search import Beam
from ramify.tree_search.types import Turn

RUNS = "kills at random moments, in runs: runs lost, or effects done twice"
SEARCHES = "the same kills, in searches: branches lost, or actions that count twice"
NAMES = (RUNS, SEARCHES)

MAILS, RUN_LANES, SEARCH_LANES = 6, 3, 2
WIDTH, DEPTH, KEEP = 3, 4, 2
MOST_RESUMES = 20
INTERRUPTIONS = (NodesDied, StoreError, RemoteError)
"""What a run may end with when its nodes, the database or the bucket are killed: it is kept."""


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


@dataclass(slots=True)
class Found:
    """What the lanes did and found. wrong: what was lost or is there twice."""

    results: dict[str, str] = field(default_factory=dict)
    interrupted: Counter[str] = field(default_factory=Counter)
    told: dict[str, str] = field(default_factory=dict)  # the first message of each kind of interruption
    searches: int = 0
    states: int = 0
    wrong: list[str] = field(default_factory=list)


async def rows(
    cluster: RayletCluster,
    runtime: Runtime,
    fleet: Fleet,
    heard: Heard,
    folder: Path,
    kills: int,
    services: Sequence[tuple[str, Callable[[float], None]]] = (),
    seed: int = 29,
) -> list[Row]:
    """`services`: what else is killed, and how: a call that kills it and starts it again after so many seconds."""
    sent = folder / "kills"
    sent.mkdir()
    random, ended, found, begun = Random(seed), asyncio.Event(), Found(), len(heard.events)
    killed: Counter[str] = Counter()

    async def kill_all() -> None:
        for number in range(kills):
            await asyncio.sleep(random.uniform(0.1, 2.0))
            which = number % (2 + len(services))
            if which >= 2:
                name, kill = services[which - 2]
                await asyncio.to_thread(kill, random.uniform(0.0, 2.0))
            else:
                name = ("process", "node")[which]
                await _kill_node(cluster, fleet, heard, random, whole=bool(which))
            killed[name] += 1
        ended.set()

    lanes = [_run_lane(runtime, fleet, sent, number, ended, found) for number in range(RUN_LANES)]
    lanes += [_search_lane(fleet, ended, found) for _ in range(SEARCH_LANES)]
    await asyncio.gather(kill_all(), *lanes)
    return [*_rows(killed, found, Counter(_lines(str(sent))), heard, begun)]


def rows_of_a_cluster(kills: int, seed: int) -> list[Row]:
    """As `rows`, on a cluster, a PostgreSQL and an object store of its own, which are killed, too."""
    import postgres  # of tests/; the nodes, which load this module for its workflow, lack it

    why = "Ray is not installed (ramify[ray])" if importlib.util.find_spec("ray") is None else postgres.why_not()
    if why or postgres.binaries() is None:
        return [not_measured(name, "", why or "no PostgreSQL here that can be killed") for name in NAMES]
    with (
        tempfile.TemporaryDirectory(prefix="ramify-bench-", ignore_cleanup_errors=True) as name,
        postgres.own_server() as database,
        ObjectServer(Path(name) / "objects") as objects,
    ):
        os.environ.update(objects.variables)  # for this program and the nodes
        services = [("database", database.kill), ("object store", objects.kill)]

        async def measured() -> list[Row]:
            heard, folder, address = Heard(), Path(name), postgres.new_database(database.address)
            async with open_fleet(folder, address, objects.url, heard) as (cluster, runtime, fleet):
                return await rows(cluster, runtime, fleet, heard, folder, kills, services, seed)

        return asyncio.run(measured())


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


async def _run_lane(
    runtime: Runtime, fleet: Fleet, folder: Path, lane: int, ended: asyncio.Event, found: Found
) -> None:
    turn = 0
    while not ended.is_set():
        name, run = f"{lane}.{turn}", None
        for _ in range(MOST_RESUMES):
            try:
                run = run or (await runtime.create(mails, (str(folder), name), {})).id
                found.results[name] = await fleet.resume(run)
                break
            except INTERRUPTIONS as error:
                found.interrupted[type(error).__name__] += 1
                found.told.setdefault(type(error).__name__, str(error))
        else:
            found.wrong.append(f"run {run}")
        turn += 1


async def _search_lane(fleet: Fleet, ended: asyncio.Event, found: Found) -> None:
    async def propose(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        return [f"sleep 0.05; echo {word} >> words" for word in "abc"[:n]]

    async def score(environment: CommandTurns[FleetWorld], history: Sequence[Turn[str]]) -> float:
        words = (await environment.world.read("words")).decode().split()
        found.states += 1
        if words != [turn.action.split()[3] for turn in history]:
            found.wrong.append(f"state {words}")
        return float(sum("abc".index(word) for word in words))

    how: dict[str, Any] = {"width": WIDTH, "depth": DEPTH, "method": Beam(keep=KEEP), "score": score}
    while not ended.is_set():
        try:
            async with fleet.world() as world, search(CommandTurns(world), propose, **how) as result:
                found.searches += 1
                found.wrong += [f"branch: {error!r}" for error in result.errors]
                if result.steps != WIDTH + (DEPTH - 1) * KEEP * WIDTH:
                    found.wrong.append(f"{result.steps} steps")
                if await result.best.environment.world.read("words") != b"c\n" * DEPTH:
                    found.wrong.append("another result")
        except RemoteError as error:  # its first state was not uploaded: nothing had begun
            found.interrupted[type(error).__name__] += 1


def _rows(killed: Counter[str], found: Found, sent: Counter[str], heard: Heard, begun: int) -> tuple[Row, Row]:
    expected = {name: [f"{name} {number}" for number in range(MAILS)] for name in found.results}
    wrong = [name for name, words in expected.items() if found.results[name].splitlines() != words]
    wrong += [word for words in expected.values() for word in words if sent.get(word, 0) != 1]
    wrong += [one for one in found.wrong if one.startswith("run")]
    in_search = [one for one in found.wrong if not one.startswith("run")]
    events = [event for _, event in heard.events[begun:]]
    moved = sum(isinstance(event, Placed) and bool(event.earlier) for event in events)
    worlds = sum(isinstance(event, WorldMoved) for event in events)
    kills = ", ".join(f"{count} x {name}" for name, count in killed.items())
    ends = ", ".join(f"{count} x {name}" for name, count in found.interrupted.items()) or "none"
    runs = (
        f"{kills}; {len(found.results)} runs with {len(found.results) * MAILS} effects, of which {moved} went on on "
        f"another node; ended with an error and were resumed: {ends}"
    )
    states = f"{found.searches} searches with {found.states} states, of which {worlds} went on on another node"
    shown: dict[str, Any] = {"errors": found.told} if found.told else {}
    shown |= {"wrong": (wrong + in_search)[:5]} if wrong or in_search else {}
    return (
        row(RUNS, len(wrong), "runs or effects", target=0, note=runs, **shown),
        row(SEARCHES, len(in_search), "branches or actions", target=0, note=states),
    )
