"""One slot and a few jobs: the goodput of any policy beside the optimum, which is found by trying all subsets.

This is the setting of the thesis's appendix D: an engine works on one request at a time and may set it aside at no
cost. Requests have known lengths, and each is worth something if it is done by its deadline. A token takes one unit
of time.

`ratios` counts how far policies are from the optimum, by the spread of densities and slack: theorem 4.1 of the
thesis promises a constant factor, and there is none (docs/decisions/050).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, isfinite
from random import Random
from statistics import fmean

from benchmarks.replay.baselines.single_key import edf, srpt
from ramify.serving.policy.calm import Calm, CalmOptions
from ramify.serving.policy.concord.policy import Concord
from ramify.serving.policy.cost_model import Goodput
from ramify.serving.policy.types import (
    Capacity,
    Finished,
    Policy,
    RequestId,
    RequestView,
    SloClass,
    State,
    StepModel,
    View,
)
from ramify.serving.protocol.length_sketch import LengthSketch

# A step takes one unit of time, a second for the policies. Nothing else costs anything.
UNIT = StepModel(base_ms=1000.0, per_seq_ms=0.0, per_kctx_ms=0.0, per_prefill_ms=0.0)

_HAIR = 1e-6  # policies count a job that ends exactly at its deadline as late


@dataclass(frozen=True, slots=True)
class Job:
    """A job that arrives at `at`, takes `length` units, and is worth `worth` if it is done by `due`. Times are
    whole units.
    """

    at: int
    length: int
    due: int
    worth: float = 1.0

    @property
    def density(self) -> float:
        return self.worth / self.length

    @property
    def slack(self) -> float:
        """The time that it has for each unit that it needs; 1: none to spare."""
        return (self.due - self.at) / self.length


def optimum(jobs: Sequence[Job]) -> float:
    """Return the greatest worth that any schedule can reach, knowing the future. For up to a dozen jobs.

    It tries the subsets, the dearest first: on one machine with preemption a set can be met if and only if earliest
    deadline first meets it.
    """
    able = [job for job in jobs if job.at + job.length <= job.due]
    subsets = [subset for size in range(1, len(able) + 1) for subset in combinations(able, size)]
    subsets.sort(key=lambda subset: -sum(job.worth for job in subset))
    return next((sum(job.worth for job in subset) for subset in subsets if _feasible(subset)), 0.0)


def _feasible(jobs: Sequence[Job]) -> bool:
    """Does the work that lies wholly between each release and each deadline fit between them?"""
    for begin in {job.at for job in jobs}:
        inside = sorted((job.due, job.length) for job in jobs if job.at >= begin)
        work = 0
        for due, length in inside:
            work += length
            if begin + work > due:
                return False
    return True


def earned(policy: Policy, jobs: Sequence[Job]) -> float:
    """Return the worth that the policy earns. A pause or a preemption costs nothing.

    The policy decides whenever a job arrives or ends, and at its own `wake_at`.
    """
    slot = _Slot(policy, jobs)
    slot.run()
    return slot.earned


class _Slot:
    def __init__(self, policy: Policy, jobs: Sequence[Job]) -> None:
        self.earned = 0.0
        self._policy, self._jobs = policy, jobs
        self._coming = sorted(range(len(jobs)), key=lambda i: jobs[i].at, reverse=True)
        self._live: dict[RequestId, RequestView] = {}
        self._running: RequestId | None = None
        self._paused: set[RequestId] = set()
        self._now = 0
        self._wake: float = 0.0

    def run(self) -> None:
        changed = True
        while self._coming or self._live:
            while self._coming and self._jobs[self._coming[-1]].at <= self._now:
                self._arrives(self._coming.pop())
                changed = True
            if self._live and (changed or self._now >= self._wake):
                self._decide()
            changed = self._pass()

    def _arrives(self, i: int) -> None:
        job = self._jobs[i]
        self._live[RequestId(i)] = RequestView(
            RequestId(i),
            float(self._now),
            SloClass.DEADLINE,
            deadline=job.due + _HAIR,
            sketch=LengthSketch.known(job.length),
            weight=job.worth,
        )

    def _decide(self) -> None:
        here = [i for i in self._live if i == self._running]
        others = [i for i in self._live if i != self._running]
        running = self._seen(here, State.RUNNING)
        paused = self._seen([i for i in others if i in self._paused], State.PAUSED)
        waiting = self._seen([i for i in others if i not in self._paused], State.WAITING)
        capacity = Capacity(1, len(running), None, UNIT, can_preempt=True, can_pause=True, can_cancel=True)
        verdict = self._policy.decide(View(capacity, waiting, running, paused), float(self._now))
        for refusal in verdict.drop:
            del self._live[refusal.id]
        self._paused = (self._paused | set(verdict.pause)) - set(verdict.resume)
        if verdict.pause or verdict.preempt or self._running not in self._live:
            self._running = next(iter((*verdict.resume, *verdict.admit)), None)
        self._wake = float("inf") if verdict.wake_at is None else verdict.wake_at

    def _seen(self, ids: Sequence[RequestId], state: State) -> list[RequestView]:
        for i in ids:
            view = self._live[i]
            if view.state is not state:
                self._live[i] = replace(view, state=state, computed=0 if state is State.WAITING else view.generated)
        return [self._live[i] for i in ids]

    def _pass(self) -> bool:
        """Advance the time to the next event: an arrival, an end, a wake-up, or a unit in which nothing runs."""
        until = min(self._wake, self._jobs[self._coming[-1]].at if self._coming else float("inf"))
        if self._running is None:
            self._now = max(self._now + 1, ceil(until) if isfinite(until) and not self._live else self._now + 1)
            return bool(self._live)
        view = self._live[self._running]
        left = self._jobs[self._running].length - view.generated
        units = max(1, min(left, ceil(until - self._now) if isfinite(until) else left))
        self._now += units
        done = view.generated + units
        self._live[self._running] = replace(view, generated=done, computed=done)
        if units < left:
            return False
        job = self._jobs[self._running]
        met = self._now <= job.due
        self.earned += job.worth if met else 0.0
        self._policy.observe(Finished(self._live.pop(self._running), float(self._now), met, done if met else 0))
        self._running = None
        return True


def calm() -> Policy:
    """Make `calm-thesis` as in the proof: no window, no starvation term, no waiting limit, a frame of one step."""
    return Calm(
        CalmOptions(Goodput.REQUEST, frame_steps=1, starvation_step=0.0, waiting_s=None, cutoff=1.0, quantile=0.5)
    )


def _srpt() -> Policy:
    return srpt(displace=0.0)


def _edf() -> Policy:
    return edf(displace=True)


ONE_SLOT_POLICIES: Mapping[str, Callable[[], Policy]] = {
    "concord": Concord,
    "calm-thesis": calm,
    "srpt": _srpt,
    "edf": _edf,
}


@dataclass(frozen=True, slots=True)
class Spread:
    """The densest job is at most `density` times as dense as the least dense. No job has more than `slack` times
    the time that it needs.
    """

    density: float
    slack: float


@dataclass(frozen=True, slots=True)
class Ratios:
    """Shares of the optimum."""

    worst: float
    mean: float


def draw(spread: Spread, chance: Random, most: int = 6) -> list[Job]:
    jobs = []
    for _ in range(chance.randint(2, most)):
        length, at = chance.randint(1, 40), chance.randint(0, 40)
        due = at + int(length * (1 + (spread.slack - 1) * chance.random()))
        jobs.append(Job(at, length, due, length * spread.density ** chance.random()))
    return jobs


def ratios(spread: Spread, cases: int, seed: int = 0) -> dict[str, Ratios]:
    """Return the ratios of each of ONE_SLOT_POLICIES over the same random cases."""
    chance = Random(f"{spread}/{seed}")
    found: dict[str, list[float]] = {name: [] for name in ONE_SLOT_POLICIES}
    for _ in range(cases):
        jobs = draw(spread, chance)
        best = optimum(jobs)
        for name, policy in ONE_SLOT_POLICIES.items():
            found[name].append(earned(policy(), jobs) / best)
    return {name: Ratios(min(of), fmean(of)) for name, of in found.items()}
