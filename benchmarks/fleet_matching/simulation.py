"""Jobs that need many devices a round, and devices that come one by one: an event-driven simulation of a matching
rule.

As in Venn's evaluation: a round begins when its last device is there and ends when 80 % of its devices have
responded; if that takes longer than the deadline, the round is repeated. A device serves one round and is gone. A
job's completion time counts from its arrival.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ramify.serving.matching import Atom, Group, JobId, Matching, Order, Rates, Request, TierMatching

ENOUGH = 0.8
"""The share of a round's devices that must respond."""


@dataclass(frozen=True, slots=True)
class Job:
    """demand: devices a round. task_s: seconds of a round's work on a device of capability 1. deadline_s: for the
    responses of a round."""

    id: JobId
    arrives: float
    group: Group
    demand: int
    rounds: int
    task_s: float
    deadline_s: float

    @property
    def total(self) -> int:
        return self.demand * self.rounds


@dataclass(frozen=True, slots=True)
class Device:
    """A device that becomes free. noise: the factor of its response time. fails: it never responds."""

    at: float
    atom: Atom
    capability: float
    noise: float = 1.0
    fails: bool = False


@dataclass(slots=True)
class _Running:
    """A job that has arrived and is not done."""

    job: Job
    rounds_left: int
    asked_at: float
    tiers: TierMatching | None
    mine: list[Device] = field(default_factory=list)
    acquiring: bool = True
    served_s: float = 0.0
    scheduled_s: list[float] = field(default_factory=list)
    responded_s: list[float] = field(default_factory=list)

    @property
    def needs(self) -> int:
        return self.job.demand - len(self.mine) if self.acquiring else 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """completion_s: by job. aborted: rounds that were repeated. delay_s: mean scheduling delay of a round."""

    completion_s: dict[JobId, float]
    aborted: int
    delay_s: float

    @property
    def mean_s(self) -> float:
        return math.fsum(self.completion_s.values()) / len(self.completion_s)


def simulate(
    jobs: Sequence[Job],
    devices: Sequence[Device],
    rates: Rates,
    rule: Matching,
    *,
    tiers: int = 1,
    seed: int = 0,
) -> Outcome:
    """Run all jobs to their end. tiers: V of Venn's second half; 1 is without. Raises ValueError if devices run
    out."""
    return _Simulation(jobs, devices, rates, rule, tiers, random.Random(seed)).run()


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[Job],
        devices: Sequence[Device],
        rates: Rates,
        rule: Matching,
        tiers: int,
        source: random.Random,
    ) -> None:
        self._coming = sorted(jobs, key=lambda one: -one.arrives)
        self._devices, self._rates, self._rule = devices, rates, rule
        self._tiers, self._random = tiers, source
        self._running: dict[JobId, _Running] = {}
        self._ends: list[tuple[float, JobId, bool]] = []  # of rounds: when, whose, whether enough responded
        self._order: Order = {}
        self._alone = {one.id: self._time_alone(one) for one in jobs}
        self._done: dict[JobId, float] = {}
        self._aborted, self._delays = 0, list[float]()

    def run(self) -> Outcome:
        many = len(self._coming)
        for device in self._devices:
            self._until(device.at)
            if len(self._done) == many:
                break
            for id in self._order.get(device.atom, ()):
                one = self._running[id]
                if one.needs and (one.tiers is None or one.tiers.accepts(device.capability)):
                    self._take(one, device)
                    break
        self._until(math.inf)
        if len(self._done) < many:
            raise ValueError(f"{many - len(self._done)} jobs were not done when the devices ran out")
        return Outcome(self._done, self._aborted, math.fsum(self._delays) / len(self._delays))

    def _until(self, now: float) -> None:
        """Let jobs arrive and rounds end that do so before `now`."""
        while True:
            arrives = self._coming[-1].arrives if self._coming else math.inf
            ends = self._ends[0][0] if self._ends else math.inf
            at = min(arrives, ends)
            if at > now or at == math.inf:
                return
            if arrives <= ends:
                self._arrive(self._coming.pop())
            else:
                self._end(*heapq.heappop(self._ends))
            self._reorder(at)

    def _arrive(self, job: Job) -> None:
        tiers = TierMatching(self._tiers, self._random) if self._tiers > 1 else None
        self._running[job.id] = _Running(job, job.rounds, job.arrives, tiers)

    def _take(self, one: _Running, device: Device) -> None:
        one.mine.append(device)
        if one.needs:
            return
        one.acquiring = False
        self._delays.append(device.at - one.asked_at)
        one.scheduled_s.append(device.at - one.asked_at)
        times = sorted(math.inf if d.fails else one.job.task_s * d.noise / d.capability for d in one.mine)
        took = times[math.ceil(ENOUGH * len(times)) - 1]
        ok = took <= one.job.deadline_s
        took = min(took, one.job.deadline_s)
        one.responded_s.append(took)
        if one.tiers is not None:
            for each in one.mine:
                if not each.fails:
                    one.tiers.responded(each.capability, one.job.task_s * each.noise / each.capability)
        heapq.heappush(self._ends, (device.at + took, one.job.id, ok))
        self._reorder(device.at)

    def _end(self, at: float, id: JobId, ok: bool) -> None:
        one = self._running[id]
        one.served_s += one.responded_s[-1]
        one.rounds_left -= ok
        self._aborted += not ok
        if not one.rounds_left:
            del self._running[id]
            self._done[id] = at - one.job.arrives
            return
        one.mine, one.acquiring, one.asked_at = [], True, at
        if one.tiers is not None:
            one.tiers.begin(_mean(one.scheduled_s), _mean(one.responded_s))

    def _reorder(self, now: float) -> None:
        many = len(self._running)
        asking = [
            Request(
                one.job.id,
                one.job.group,
                one.needs,
                one.job.arrives,
                left=one.needs + one.job.demand * (one.rounds_left - 1),
                age_s=now - one.job.arrives,
                served_s=one.served_s,
                fair_s=many * self._alone[one.job.id],
            )
            for one in self._running.values()
            if one.needs
        ]
        self._order = self._rule.order(asking, self._rates)

    def _time_alone(self, job: Job) -> float:
        rate = sum(rate for atom, rate in self._rates.items() if job.group in atom)
        return job.rounds * (job.demand / rate + job.task_s)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
