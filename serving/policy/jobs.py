"""What Concord knows of each request, worked out once for as long as its view stays the same object.

The book follows the views from decision to decision. Of a thousand that wait, a step changes a few: those alone are
reckoned anew, with the units that they belong to, and put in their place in lists that stay sorted. So a decision
costs a few short passes over what waits, and two sorts where nothing was known before.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from ramify.serving.policy.types import Capacity, Finished, RequestId, RequestView, SloClass, State, View
from ramify.serving.policy.work import (
    LengthPrior,
    decode_gpu_s,
    prefill_s,
    remaining,
    rest_gpu_s,
    rest_wall_s,
)

NEVER = float("inf")
_DRIFT = 1.1  # keys are kept while the pace is within this factor of the one they were reckoned with
_LEAST_SHARE = 0.5  # of later stages' times, in an optimistic bound


class Binding(NamedTuple):
    """A deadline, and what lies before it: decoding steps, and seconds that do not scale with the pace."""

    due: float
    tokens: float  # at the median length
    wall_s: float  # prefill, and the tools and stages that follow
    least_tokens: float  # the same, optimistically
    least_s: float


@dataclass(slots=True, eq=False)
class Job:
    """One request as the policy reckons with it."""

    view: RequestView
    id: RequestId
    unit: str | None  # the stage or the fork group that it is a part of
    key: str | RequestId  # its unit's name; of what is by itself, its own
    binding: Binding  # the deadline that binds first
    admit_by: float
    own_tokens: float  # steps that it will hold a slot for, at the median length
    prefill_s: float  # GPU time and wall time of what it must prefill before that
    gpu_s: float  # GPU time of its own answer
    program_s: float  # GPU time of the stages that follow
    work_s: float  # GPU time of its own, and its part of the stages that follow
    weight: float
    counts: bool  # has an SLO: may be late, and is looked at in the test whether everything fits
    waits: bool  # holds no slot: waiting, preempted or paused
    # Its unit's worth for each second of GPU time; rank sorts by it, siblings together, then by age.
    density: float = 0.0
    rank: tuple[float, float, int] = (0.0, 0.0, 0)
    # At the book's pace:
    start_by: float = 0.0  # the latest start that is in time
    late_at: float = NEVER  # from then on it cannot be in time, even if it is short
    before_s: float = 0.0  # what must be done before its deadline
    slot_s: float = 0.0  # how long it will hold a slot
    due: float = NEVER

    def set_pace(self, token_s: float) -> None:
        due, tokens, wall_s, least_tokens, least_s = self.binding
        self.due = due
        self.before_s = wall_s + tokens * token_s
        self.start_by = due - self.before_s
        self.slot_s = self.prefill_s + self.own_tokens * token_s
        if self.counts:
            self.late_at = min(due - least_s - least_tokens * token_s, self.admit_by)


class ByDeadline(NamedTuple):
    """What waits or is paused, the earliest deadline first, with columns. Not to be changed."""

    jobs: list[Job]
    due: Sequence[float]
    start_by: Sequence[float]  # -NEVER for what has no SLO
    lone_density: Sequence[float]  # NEVER for a unit's member, whose density changes; 0 for what has no SLO
    late_at: Sequence[float]
    work_s: Sequence[float]
    arrived: Sequence[float]


_IN_SWEEP: tuple[Callable[[Job], float], ...] = (
    attrgetter("due"),
    lambda job: job.start_by if job.counts else -NEVER,
    lambda job: 0.0 if not job.counts else job.density if job.unit is None else NEVER,
    attrgetter("late_at"),
    attrgetter("work_s"),
    attrgetter("view.arrived"),
)


class _Shelf:
    """Jobs in the order of a key. A few changes are put in place; after many it is sorted when next asked for.

    Beside it stand columns in the same order, of what does not change while a job stands here: a pass over thousands
    of jobs, which are not in the processor's cache, is several times as long as one over plain numbers.
    """

    __slots__ = ("_jobs", "_key", "_keys", "_values", "columns", "stale")

    def __init__(self, key: Callable[[Job], tuple[float, ...]], *values: Callable[[Job], float]) -> None:
        self._key, self._values = key, values
        self._jobs: list[Job] = []
        self._keys: list[tuple[float, ...]] = []
        self.columns = [array("d") for _ in values]
        self.stale = False

    def add(self, job: Job) -> None:
        if self.stale:
            self._jobs.append(job)
            return
        key = self._key(job)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._jobs.insert(at, job)
        for column, value in zip(self.columns, self._values, strict=True):
            column.insert(at, value(job))

    def remove(self, job: Job) -> None:
        """Its key must be the one that it was added with."""
        if self.stale:
            self._jobs.remove(job)
            return
        at = bisect_left(self._keys, self._key(job))
        del self._keys[at], self._jobs[at]
        for column in self.columns:
            del column[at]

    def disturbed(self) -> None:
        """Many keys are about to change."""
        self.stale = True

    def sorted(self) -> list[Job]:
        if self.stale:
            self._jobs.sort(key=self._key)
            self._keys = [self._key(job) for job in self._jobs]
            self.columns = [array("d", map(value, self._jobs)) for value in self._values]
            self.stale = False
        return self._jobs

    def up_to(self, key: tuple[float, ...]) -> int:
        """How many come before `key`."""
        self.sorted()
        return bisect_left(self._keys, key)


class JobBook:
    """All jobs of one engine. `follow` takes the view of a decision; then the rest answers about it."""

    def __init__(self, median: float, optimistic: float, best_effort_s: float, best_effort_weight: float) -> None:
        self._median, self._optimistic = median, optimistic
        self._best_effort_s, self._best_effort_weight = best_effort_s, best_effort_weight
        self._prior = LengthPrior()
        self._reset()

    def _reset(self) -> None:
        self._jobs: dict[RequestId, Job] = {}
        self._views: dict[RequestId, RequestView] = {}  # as each job was worked out from
        self._units: dict[str, dict[RequestId, Job]] = {}
        self._capacity: Capacity | None = None
        self._token_s = 0.0
        self._ranked, self._lax = _Shelf(attrgetter("rank")), _Shelf(attrgetter("start_by", "id"))
        self._due, self._late = _Shelf(attrgetter("due", "id"), *_IN_SWEEP), _Shelf(attrgetter("late_at", "id"))
        self._shelves = (self._ranked, self._lax, self._due, self._late)
        self._weights = Counter[float]()  # of what waits or is paused

    def learn(self, done: Finished) -> None:
        self._prior.learn(done)

    def follow(self, view: View, token_s: float) -> None:
        """Bring every job up to date."""
        capacity, known = view.capacity, self._capacity
        if known is None or known.step != capacity.step or known.slots != capacity.slots:
            self._reset()
            self._token_s = token_s
        elif not self._token_s / _DRIFT <= token_s <= self._token_s * _DRIFT:
            self._set_pace(token_s)
        self._capacity = capacity
        jobs, dirty, seen = self._jobs, set[str](), self._views.get
        here = (view.waiting, view.running, view.paused)
        fresh = [call for calls in here for call in calls if seen(call.id) is not call]
        if len(fresh) > len(jobs) // 4:
            self._disturb()
        for call in fresh:
            if (old := jobs.get(call.id)) is not None:
                self._forget(old, dirty)
            self._add(self._job(call, capacity), dirty)
        if len(jobs) != sum(map(len, here)):
            ids = {call.id for calls in here for call in calls}
            gone = [jobs[id_] for id_ in sorted([id_ for id_ in jobs if id_ not in ids])]
            if len(gone) > len(jobs) // 4:
                self._disturb()
            for job in gone:
                self._forget(job, dirty)
        for unit in dirty:
            self._weigh(unit)

    def of(self, calls: Iterable[RequestView]) -> list[Job]:
        jobs = self._jobs
        return [jobs[call.id] for call in calls]

    def by_density(self) -> list[Job]:
        """What waits or is paused, the densest unit first. Not to be changed."""
        return self._ranked.sorted()

    def by_laxity(self) -> list[Job]:
        """What waits or is paused, that which must start first at the head. Not to be changed."""
        return self._lax.sorted()

    def by_deadline(self) -> ByDeadline:
        return ByDeadline(self._due.sorted(), *self._due.columns)

    def overdue(self, now: float) -> list[Job]:
        """Best effort that has waited out its default deadline, the oldest first."""
        return [job for job in self._due.sorted()[: self._due.up_to((now,))] if not job.counts]

    def heaviest(self) -> float:
        """The greatest weight of what waits or is paused; 0 where nothing does."""
        return max(self._weights, default=0.0)

    def next_late(self) -> float:
        """When the first of what waits or is paused cannot be in time any more; NEVER if there is none."""
        late = self._late.sorted()
        return late[0].late_at if late else NEVER

    def next_start(self, now: float) -> float:
        """The first of the latest starts that are still to come; NEVER if none is."""
        lax = self._lax.sorted()
        at = self._lax.up_to((now, NEVER))
        return lax[at].start_by if at < len(lax) else NEVER

    def _disturb(self) -> None:
        for shelf in self._shelves:
            shelf.disturbed()

    def _set_pace(self, token_s: float) -> None:
        self._token_s = token_s
        self._disturb()
        for job in self._jobs.values():
            job.set_pace(token_s)

    def _add(self, job: Job, dirty: set[str]) -> None:
        self._jobs[job.id], self._views[job.id] = job, job.view
        if job.unit is not None:
            members = self._units.setdefault(job.unit, {})
            if members:  # at the unit's price until it is weighed again
                first = next(iter(members.values()))
                job.density, job.rank = first.density, (*first.rank[:2], job.id)
            members[job.id] = job
            dirty.add(job.unit)
        if job.waits:
            for shelf in self._shelves:
                shelf.add(job)
            self._weights[job.weight] += 1

    def _forget(self, job: Job, dirty: set[str]) -> None:
        del self._jobs[job.id], self._views[job.id]
        if job.waits:
            for shelf in self._shelves:
                shelf.remove(job)
            self._weights[job.weight] -= 1
            if not self._weights[job.weight]:
                del self._weights[job.weight]
        if job.unit is not None:
            del self._units[job.unit][job.id]
            dirty.add(job.unit)

    def _weigh(self, unit: str) -> None:
        """A stage's calls, and a fork group's, share one price and one worth: those of their program.

        A group's prompt is prefilled once: the dearest prefill among its members is charged, not their sum.
        """
        members = self._units[unit].values()
        if not members:
            del self._units[unit]
            return
        first = next(iter(members))
        prefills = [job.prefill_s for job in members]
        prefill = max(prefills) if first.view.group is not None else sum(prefills)
        price = sum([job.gpu_s for job in members]) + prefill + first.program_s
        density = max([job.weight for job in members]) / price
        if len(members) > 1 and abs(density - first.density) <= 0.01 * density:
            return  # a running sibling moved on a little: no reason to move them all
        arrived = min([job.view.arrived for job in members])
        in_place = not self._ranked.stale
        for job in members:
            if job.waits and in_place:
                self._ranked.remove(job)
            job.density = density
            job.rank = (-density, arrived, job.id)
            if job.waits and in_place:
                self._ranked.add(job)

    def _job(self, call: RequestView, capacity: Capacity) -> Job:
        group = call.group
        median, optimistic = self._median, self._optimistic
        if group is not None:  # the join comes with the k-th of n: that order statistic's place in the distribution
            median = group.need / (group.size + 1)
            optimistic = min(optimistic, median)
        own = remaining(call, self._prior, median)
        least = remaining(call, self._prior, optimistic)
        holds_kv = call.state is State.RUNNING or call.state is State.PAUSED
        to_prefill = max(1, call.prompt_tokens - call.computed) if holds_kv else call.to_prefill
        prefill = prefill_s(capacity.step, to_prefill)
        gpu = decode_gpu_s(capacity.step, capacity.slots, call.prompt_tokens + call.generated, own)
        program = rest_gpu_s(call, capacity)
        width = max(1, call.compound.width) if call.compound is not None else 1
        best_effort = call.slo_class is SloClass.BEST_EFFORT
        job = Job(
            call,
            call.id,
            unit := _unit(call),
            call.id if unit is None else unit,
            self._binding(call, capacity, own, least, prefill),
            NEVER if call.admit_by is None or call.generated else call.admit_by,
            own,
            prefill,
            gpu,
            program,
            prefill + gpu + program / width,
            call.weight * (self._best_effort_weight if best_effort else 1.0),
            not best_effort,
            call.state is not State.RUNNING,
        )
        job.density = job.weight / (job.prefill_s + job.gpu_s + job.program_s)
        job.rank = (-job.density, call.arrived, job.id)
        job.set_pace(self._token_s)
        return job

    def _binding(self, call: RequestView, capacity: Capacity, own: float, least: float, prefill: float) -> Binding:
        """Of all the deadlines that a request has, the one whose latest start comes first."""
        found = []
        if call.ttft is not None and call.generated == 0:
            found.append(Binding(call.ttft, 1.0, prefill, 0.0, prefill))
        if call.deadline is not None:
            found.append(Binding(call.deadline, own, prefill, least, prefill))
        compound = call.compound
        if compound is not None and compound.deadline is not None:
            later = rest_wall_s(call, capacity, self._token_s)
            soonest = rest_wall_s(call, capacity, self._token_s, _LEAST_SHARE)
            found.append(Binding(compound.deadline, own, prefill + later, least, prefill + soonest))
        if call.tbt is not None:  # the last token is due at TTFT + n · TBT (thesis, chapter 3)
            begin = call.arrived if call.ttft is None else call.ttft
            found.append(Binding(begin + (call.generated + own) * call.tbt, own, prefill, 0.0, 0.0))
        if len(found) == 1:
            return found[0]
        if found:
            pace = self._token_s
            return min(found, key=lambda binding: binding.due - binding.wall_s - binding.tokens * pace)
        return Binding(call.arrived + self._best_effort_s, own, prefill, 0.0, -NEVER)


def _unit(call: RequestView) -> str | None:
    if call.compound is not None:
        return f"c\0{call.compound.id}\0{call.compound.stage}"
    return None if call.group is None else f"g\0{call.group.id}"
