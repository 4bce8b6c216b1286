"""Jobs: one request with its price, worth and deadline (`Job`), and jobs that stay sorted.

`JobFactory` makes jobs from views. `SortedColumns` keeps the waiting jobs sorted from one decision to the next, and
`RunningJobs` the running ones. A decision changes few of the hundreds or thousands of jobs. So sorted lists and sums
are kept and changed in place, which takes a fraction of the time of building them again (docs/decisions/052).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from ramify.serving.policy.cost_model import (
    Goodput,
    LengthPrior,
    decode_gpu_s,
    prefill_s,
    remaining_quantiles,
    rest_gpu_s,
    rest_wall_s,
    rest_worth,
    worth,
)
from ramify.serving.policy.types import Capacity, RequestId, RequestView, SloClass, State

NEVER = float("inf")
_LEAST_SHARE = 0.5  # how much of the later stages' times an optimistic bound counts


class BindingDeadline(NamedTuple):
    """The deadline of a job that must be started for first, and the work before it.

    The work is a number of decoding steps, whose time depends on the engine's pace, and seconds that do not.
    """

    due: float  # the deadline, as a time
    tokens: float  # decoding steps at the median length
    wall_s: float  # prefill, and the tools and stages that follow
    least_tokens: float  # the same two at an optimistic length
    least_s: float


class LaterStages(NamedTuple):
    """The cost of the stages that follow. It stays the same while a call has the same `CompoundView` and pace."""

    token_s: float  # the pace: seconds from one token to the next
    gpu_s: float
    wall_s: float
    least_wall_s: float  # at an optimistic length
    worth: float  # if goodput counts calls or tokens: how many; 0 if it counts programs


_NOTHING_LATER = LaterStages(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True, eq=False)
class Job:
    view: RequestView
    id: RequestId
    unit: str | None  # name of the stage or fork group that it belongs to
    key: str | RequestId  # `unit`, or the job's own id if it belongs to none
    binding: BindingDeadline
    admit_by: float  # when it is no longer worth starting
    own_tokens: float  # decoding steps for which it will hold a slot, at the median length
    prefill_s: float  # GPU time, and wall time beside `starts_s`, of its prompt
    gpu_s: float  # GPU time of its own answer
    later: LaterStages
    work_s: float  # GPU time of its own, and its part of the later stages
    given: float  # what it is worth to the operator; a part of that for best effort
    own: float  # what it adds to its program's worth; 0 if goodput counts programs
    weight: float  # what its program is worth if it is in time
    counts: bool  # it has an SLO: it can be late, and the test whether everything fits includes it
    waits: bool  # it holds no slot: waiting, preempted or paused
    starts_s: float = 0.0  # wall time of its start, however long its prompt is
    shared: bool = False  # other calls of its unit wait too
    # The worth of its unit for each second of GPU time. `rank` sorts by it, siblings together, then by age.
    density: float = 0.0
    rank: tuple[float, float, int] = (0.0, 0.0, 0)
    # At the index's pace:
    start_by: float = 0.0  # the latest start that is in time
    late_at: float = NEVER  # from this time on it cannot be in time, even if it is short
    before_s: float = 0.0  # seconds that must pass before its deadline
    slot_s: float = 0.0  # how long it will hold a slot
    due: float = NEVER  # the binding deadline, as a time

    def set_pace(self, token_s: float) -> None:
        """Compute what depends on the pace: `token_s` seconds from one token to the next."""
        due, tokens, wall_s, least_tokens, least_s = self.binding
        self.due = due
        self.before_s = wall_s + tokens * token_s
        self.start_by = due - self.before_s
        self.slot_s = self.starts_s + self.prefill_s + self.own_tokens * token_s
        in_time_s = due - least_s - least_tokens * token_s if self.counts else NEVER
        self.late_at = min(in_time_s, self.admit_by)


@dataclass(frozen=True, slots=True)
class JobFactory:
    """Makes jobs from views, for one engine."""

    prior: LengthPrior
    median: float  # quantile of the length for price and order
    optimistic: float  # quantile of the length for saying that a deadline cannot be met
    best_effort_s: float  # default deadline of best effort, in seconds after arrival
    best_effort_weight: float
    goodput: Goodput = Goodput.WORKFLOW

    def job(self, call: RequestView, capacity: Capacity, token_s: float, old: Job | None = None) -> Job:
        """Return the job of a call. `old` is its job from an earlier view, at the same capacity."""
        group, compound, step = call.group, call.compound, capacity.step
        median, optimistic = self.median, self.optimistic
        if group is not None:  # the join waits for the k-th of n answers: use the quantile of that order statistic
            median = group.need / (group.size + 1)
            optimistic = min(optimistic, median)
        own, least = remaining_quantiles(call, self.prior, median, optimistic)
        holds_kv = call.state is State.RUNNING or call.state is State.PAUSED
        to_prefill = max(1, call.prompt_tokens - call.computed) if holds_kv else call.to_prefill
        prefill = prefill_s(step, to_prefill)
        starts = 0.0 if holds_kv and call.computed else step.per_call_ms / 1000
        gpu = decode_gpu_s(step, capacity.slots, call.prompt_tokens + call.generated, own)
        later, width = _NOTHING_LATER, 1
        if compound is not None:
            width = max(1, compound.width)
            if old is not None and old.view.compound is compound and old.later.token_s == token_s:
                later = old.later
            elif compound.rest:
                later = _later_stages(call, capacity, token_s, self.goodput)
        best_effort = call.slo_class is SloClass.BEST_EFFORT
        same_unit = old is not None and old.view.compound is compound and old.view.group is group
        unit = old.unit if old is not None and same_unit else _unit(call)
        part = self.best_effort_weight if best_effort else 1.0
        given = call.weight * part
        adds = 0.0 if self.goodput is Goodput.WORKFLOW else part * worth(self.goodput, call, own)
        weight = self.worth(call, given, adds, later)
        work = prefill + gpu + later.gpu_s / width
        density = weight / (prefill + gpu + later.gpu_s)
        job = Job(
            call,
            call.id,
            unit,
            call.id if unit is None else unit,
            self._binding(call, later, own, least, starts + prefill, token_s),
            NEVER if call.admit_by is None or call.generated else call.admit_by,
            own,
            prefill,
            gpu,
            later,
            work,
            given,
            adds,
            weight,
            not best_effort,
            call.state is not State.RUNNING,
            starts,
            False,
            density,
            (-density, call.arrived, call.id),
        )
        job.set_pace(token_s)
        return job

    def worth(self, call: RequestView, given: float, adds: float, later: LaterStages) -> float:
        """Return the worth of the program that `call` belongs to. `adds` is the sum over the calls of its stage.

        A workflow is in time as a whole or not at all, so the worth of its past stages is at stake too. If the
        number of stages is known, each past stage counts as much as each of those to come.
        """
        if self.goodput is Goodput.WORKFLOW:
            return given
        whole, compound = adds + later.worth * given, call.compound
        if compound is not None and compound.stages is not None and compound.stages > compound.stage:
            whole *= compound.stages / (compound.stages - compound.stage)
        return whole

    def _binding(
        self, call: RequestView, later: LaterStages, own: float, least: float, prefill: float, token_s: float
    ) -> BindingDeadline:
        """Return that deadline of the request whose latest start comes first."""
        found = []
        if call.ttft is not None and call.generated == 0:
            found.append(BindingDeadline(call.ttft, 1.0, prefill, 0.0, prefill))
        if call.deadline is not None:
            found.append(BindingDeadline(call.deadline, own, prefill, least, prefill))
        compound = call.compound
        if compound is not None and compound.deadline is not None:
            due = compound.deadline
            found.append(BindingDeadline(due, own, prefill + later.wall_s, least, prefill + later.least_wall_s))
        if call.tbt is not None:  # the last token is due at TTFT + n · TBT (thesis, chapter 3)
            begin = call.arrived if call.ttft is None else call.ttft
            found.append(BindingDeadline(begin + (call.generated + own) * call.tbt, own, prefill, 0.0, 0.0))
        if len(found) == 1:
            return found[0]
        if found:
            return min(found, key=lambda binding: binding.due - binding.wall_s - binding.tokens * token_s)
        return BindingDeadline(call.arrived + self.best_effort_s, own, prefill, 0.0, -NEVER)


def _later_stages(call: RequestView, capacity: Capacity, token_s: float, goodput: Goodput) -> LaterStages:
    wall_s = rest_wall_s(call, capacity, token_s)
    least_s = rest_wall_s(call, capacity, token_s, _LEAST_SHARE)
    return LaterStages(token_s, rest_gpu_s(call, capacity), wall_s, least_s, rest_worth(goodput, call))


def _unit(call: RequestView) -> str | None:
    if call.compound is not None:
        return f"c\0{call.compound.id}\0{call.compound.stage}"
    return None if call.group is None else f"g\0{call.group.id}"


RunningDue = tuple[float, float, float]  # due, work_s and late_at of a running job


class SortedColumns:
    """Jobs sorted by a key, with columns of the values that a pass over all of them reads.

    A few changes are made in place. After `disturbed`, the list is sorted when it is next read. The columns hold
    plain numbers: thousands of jobs are not in the processor's cache, so reading each job takes several times as
    long.
    """

    __slots__ = ("_columns", "_ids", "_jobs", "_key", "_keys", "_values", "stale")

    def __init__(self, key: Callable[[Job], tuple[float, ...]], *values: Callable[[Job], float]) -> None:
        self._key, self._values = key, values
        self._jobs: list[Job] = []
        self._ids: list[RequestId] = []
        self._keys: list[tuple[float, ...]] = []
        self._columns = [array("d") for _ in values]
        self.stale = False

    def add(self, job: Job) -> None:
        if self.stale:
            self._jobs.append(job)
            return
        key = self._key(job)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._jobs.insert(at, job)
        self._ids.insert(at, job.id)
        for column, value in zip(self._columns, self._values, strict=True):
            column.insert(at, value(job))

    def remove(self, job: Job) -> None:
        """Remove a job. Its key must be the one that it was added with."""
        if self.stale:
            self._jobs.remove(job)
            return
        at = bisect_left(self._keys, self._key(job))
        del self._keys[at], self._jobs[at], self._ids[at]
        for column in self._columns:
            del column[at]

    def renew(self, job: Job, column: int) -> None:
        """Read the job's value in `column` again. Its key must not have changed."""
        if not self.stale:
            self._columns[column][bisect_left(self._keys, self._key(job))] = self._values[column](job)

    def disturbed(self) -> None:
        """Say that many keys are about to change."""
        self.stale = True

    def jobs(self) -> list[Job]:
        if self.stale:
            self._jobs.sort(key=self._key)
            self._keys = list(map(self._key, self._jobs))
            self._ids = [job.id for job in self._jobs]
            self._columns = [array("d", map(value, self._jobs)) for value in self._values]
            self.stale = False
        return self._jobs

    def ids(self) -> list[RequestId]:
        self.jobs()
        return self._ids

    def columns(self) -> list[array[float]]:
        self.jobs()
        return self._columns

    def up_to(self, key: tuple[float, ...]) -> int:
        """Return how many jobs come before `key`."""
        self.jobs()
        return bisect_left(self._keys, key)


class RunningJobs:
    """The jobs that hold a slot. Callers must not change what the methods return."""

    __slots__ = ("_due", "_holds", "_jobs", "_slot_s", "_stale", "_tbts")

    def __init__(self) -> None:
        self._jobs: dict[RequestId, Job] = {}
        self._holds = Counter[SloClass]()
        self._tbts = Counter[float]()
        self._due: list[RunningDue] = []
        self._slot_s: list[float] = []
        self._stale = False

    def add(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._holds[job.view.slo_class] += 1
        if job.view.tbt is not None:
            self._tbts[job.view.tbt] += 1
        if not self._stale:
            insort(self._due, (job.due, job.work_s, job.late_at))
            insort(self._slot_s, job.slot_s)

    def remove(self, job: Job) -> None:
        """Remove a job, at the pace that it was added with, or after `disturbed`."""
        del self._jobs[job.id]
        self._holds[job.view.slo_class] -= 1
        if (tbt := job.view.tbt) is not None:
            self._tbts[tbt] -= 1
            if not self._tbts[tbt]:
                del self._tbts[tbt]
        if not self._stale:
            del self._due[bisect_left(self._due, (job.due, job.work_s, job.late_at))]
            del self._slot_s[bisect_left(self._slot_s, job.slot_s)]

    def renew(self, old: Job, new: Job) -> None:
        """Replace a running job that has moved on."""
        if old.view.tbt != new.view.tbt or old.view.slo_class is not new.view.slo_class:
            self.remove(old)
            self.add(new)
            return
        self._jobs[new.id] = new
        if self._stale:
            return
        was, now = (old.due, old.work_s, old.late_at), (new.due, new.work_s, new.late_at)
        if was != now:
            del self._due[bisect_left(self._due, was)]
            insort(self._due, now)
        if old.slot_s != new.slot_s:
            del self._slot_s[bisect_left(self._slot_s, old.slot_s)]
            insort(self._slot_s, new.slot_s)

    def disturbed(self) -> None:
        """Say that many jobs are about to change."""
        self._stale = True

    def jobs(self) -> Collection[Job]:
        """Return the jobs, in no particular order."""
        return self._jobs.values()

    def holds(self, slo_class: SloClass) -> int:
        """Return how many slots a class holds."""
        return self._holds[slo_class]

    def tightest(self) -> float | None:
        """Return the least time between tokens that a running job is promised, in seconds; None if none is."""
        return min(self._tbts, default=None)

    def by_due(self) -> list[RunningDue]:
        """Return due, work_s and late_at of each, the earliest deadline first."""
        self._sort()
        return self._due

    def by_end(self) -> list[float]:
        """Return the seconds for which each will still hold its slot, the shortest first."""
        self._sort()
        return self._slot_s

    def _sort(self) -> None:
        if self._stale:
            self._due = sorted([(job.due, job.work_s, job.late_at) for job in self._jobs.values()])
            self._slot_s = sorted([job.slot_s for job in self._jobs.values()])
            self._stale = False
