"""Jobs on the slots of a fleet: an event-driven simulation that asks the queue of the fleet itself.

A job is a batch of runs, which wait all at once, or a search, which asks for as many slots at a time as the fleet
has. A slot is held for a run or a command, and for fetching its first state if the node lacks it. Unlike a device in
`simulation`, it is free again afterwards.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import mean
from typing import Any

from benchmarks.rows import Row, row
from ramify.fleet.job_order import JobOrder, order_of
from ramify.fleet.placement import Asked, Member, Slot
from ramify.fleet.slot_queue import SlotQueue
from ramify.fleet.types import HostFacts, Needs, Node, NodeId
from ramify.fork_engine.types import SnapshotId
from ramify.serving.matching import JobId

FACTS = HostFacts("0", "3.11", "m", 1, "boot", "/home", 64 << 30, {"copy": ""}, "")
RULES = ("fifo", "srsf", "venn", "price")

ABILITIES: Sequence[frozenset[str]] = [frozenset(), frozenset({"GPU"}), frozenset({"TPU"}), frozenset({"GPU", "TPU"})]
"""As the four strata of Venn's evaluation: what a node has, or a job needs."""


@dataclass(frozen=True, slots=True)
class FleetJob:
    """needs: names of resources. works: how long each of its runs or commands holds a slot. searches: it asks for a
    few at a time."""

    id: str
    arrives: float
    needs: frozenset[str]
    works: tuple[float, ...]
    kind: str
    searches: bool


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    name: str
    has: frozenset[str]
    slots: int


def nodes(each: int) -> list[SimulatedNode]:
    """Two nodes that have neither resource, one with each, and one with both."""
    return [SimulatedNode(f"node{number}", has, each) for number, has in enumerate([ABILITIES[0], *ABILITIES])]


def fleet_jobs(
    many: int, abilities: Sequence[frozenset[str]], slots: int, load: float, seed: int, *, most: int = 100
) -> list[FleetJob]:
    """Poisson arrivals that are `load` of what the slots can do. Four kinds of work, of 0.5 to 4 units on average;
    two in five jobs are searches. most: runs or commands of a job."""
    source = random.Random(f"fleet {seed}")
    kinds = [(f"kind{n}", 2.0 ** (n - 1)) for n in range(4)]
    drawn = []
    for number in range(many):
        kind, mean = source.choice(kinds)
        tasks = min(most, max(1, round(source.lognormvariate(math.log(6), 1.0))))
        works = tuple(mean * source.lognormvariate(-0.08, 0.4) for _ in range(tasks))
        drawn.append((f"job{number}", source.choice(abilities), works, kind, source.random() < 0.4))
    between = sum(sum(works) for _, _, works, _, _ in drawn) / many / (load * slots)
    at, made = 0.0, list[FleetJob]()
    for id, needs, works, kind, searches in drawn:
        at += source.expovariate(1 / between)
        made.append(FleetJob(id, at, needs, works, kind, searches))
    return made


@dataclass(slots=True)
class _Running:
    job: FleetJob
    asked: int = 0
    done: int = 0
    waits: list[tuple[float, Any]] = field(default_factory=list)


def complete(
    jobs: Sequence[FleetJob], made_of: Sequence[SimulatedNode], order: JobOrder | None, fetch_s: float
) -> dict[str, float]:
    """The completion time of each job. Needs a running event loop, for the futures of the queue."""
    return _Simulation(jobs, made_of, order, fetch_s).run()


class _Simulation:
    def __init__(
        self, jobs: Sequence[FleetJob], made_of: Sequence[SimulatedNode], order: JobOrder | None, fetch_s: float
    ) -> None:
        self._time, self._fetch_s = 0.0, fetch_s
        self._queue: SlotQueue[None] = SlotQueue(order, now=lambda: self._time)
        for one in made_of:
            resources = dict.fromkeys(["CPU", *one.has], float(one.slots))  # so that each slot may use them
            self._queue.add(Member(Node(NodeId(one.name), one.name, resources), FACTS, None, one.slots))
        self._slots = sum(one.slots for one in made_of)
        self._numbers = count()
        self._events: list[tuple[float, int, FleetJob, Slot[None] | None]] = []
        self._running: dict[str, _Running] = {}
        self._there: set[tuple[str, str]] = set()  # nodes and the states that they have
        self._done: dict[str, float] = {}
        for job in jobs:
            self._push(job.arrives, job, None)

    def run(self) -> dict[str, float]:
        while self._events:
            self._time, _, job, slot = heapq.heappop(self._events)
            if slot is None:
                self._running[job.id] = _Running(job)
                for _ in range(min(self._slots, len(job.works)) if job.searches else len(job.works)):
                    self._ask(self._running[job.id])
            else:
                self._end(self._running[job.id], slot)
            self._start()
        assert not self._running, "a job was not done"
        return self._done

    def _ask(self, one: _Running) -> None:
        job, number = one.job, one.asked
        needs = Needs(resources=dict.fromkeys(job.needs, 1.0))
        asked = Asked("copy", needs, SnapshotId(job.id), job=JobId(job.id), kind=job.kind, returns=job.searches)
        if job.searches:
            asked = replace(asked, kind="")
        one.asked += 1
        one.waits.append((job.works[number], self._queue.ask(asked)))

    def _end(self, one: _Running, slot: Slot[None]) -> None:
        one.done += 1
        if one.job.searches and one.asked < len(one.job.works):
            self._ask(one)
        self._queue.release(slot)
        if one.done == len(one.job.works):
            self._done[one.job.id] = self._time - one.job.arrives
            del self._running[one.job.id]

    def _start(self) -> None:
        for one in self._running.values():
            for work, future in [each for each in one.waits if each[1].done()]:
                one.waits.remove((work, future))
                slot = future.result()
                there = (slot.member.node.id, one.job.id)
                fetch = 0.0 if there in self._there else self._fetch_s
                self._there.add(there)
                self._push(self._time + work + fetch, one.job, slot)

    def _push(self, at: float, job: FleetJob, slot: Slot[None] | None) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), job, slot))


async def slot_rows(seeds: Sequence[int], each: int = 4, load: float = 0.9, fetch_s: float = 0.5) -> list[Row]:
    """Jobs on the slots of five unlike nodes, by the queue of the fleet itself."""
    made_of, gains = nodes(each), dict[str, list[float]]()
    for seed in seeds:
        made = fleet_jobs(50, ABILITIES, each * len(made_of), load, seed)
        took = {}
        for rule in ("random", *RULES):
            done = complete(made, made_of, order_of(rule, None, random.Random(seed)), fetch_s)
            took[rule] = mean(done.values())
        for rule in RULES:
            gains.setdefault(rule, []).append(took["random"] / took[rule])
    return [
        row(
            f"{rule}, jobs on the slots of five nodes (simulated)",
            round(mean(values), 3),
            "x over random",
            spread=(min(values), max(values)),
            note=f"{len(seeds)} seeds, load {load}",
        )
        for rule, values in gains.items()
    ]
