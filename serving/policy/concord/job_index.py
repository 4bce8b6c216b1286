"""`JobIndex`: the jobs of all requests of one engine, kept from decision to decision.

A job is computed once for each view object. Of a thousand waiting requests a step changes a few: only those are
computed again, with the units that they belong to, and moved in the sorted lists. So a decision costs a few short
passes over the waiting jobs. Where nothing was known before, it costs two sorts.
`view_changes` finds what has changed between two lists of views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from operator import attrgetter, is_not
from typing import NamedTuple

from ramify.serving.policy.concord.jobs import NEVER, Job, JobFactory, RunningJobs, SortedColumns
from ramify.serving.policy.cost_model import Goodput, LengthPrior, pace_of
from ramify.serving.policy.types import Capacity, Finished, RequestId, RequestView, State, View

_DRIFT = 1.1  # keys are kept while the pace is within this factor of the one that they were computed with


_LAXITY = attrgetter("start_by", "id")
_ID = attrgetter("id")


class DeadlineColumns(NamedTuple):
    """Columns of the waiting and paused jobs, earliest deadline first. Callers must not change them."""

    due: Sequence[float]
    before_s: Sequence[float]
    late_at: Sequence[float]
    work_s: Sequence[float]


class SloColumns(NamedTuple):
    """The waiting and paused jobs with an SLO, earliest deadline first, and their columns. Callers must not change
    them.
    """

    jobs: list[Job]
    ids: Sequence[RequestId]
    first_late_at: float
    due: Sequence[float]
    start_by: Sequence[float]
    work_s: Sequence[float]
    late_at: Sequence[float]
    density: Sequence[float]  # NEVER if other calls of the job's unit wait too


_DUE = attrgetter("due", "id")
_IN_TEST: tuple[Callable[[Job], float], ...] = tuple(map(attrgetter, DeadlineColumns._fields))
_IN_SWEEP: tuple[Callable[[Job], float], ...] = (
    *map(attrgetter, SloColumns._fields[3:-1]),
    lambda job: NEVER if job.shared else job.density,
)
_DENSITY = len(_IN_SWEEP) - 1  # its place among them


class JobIndex:
    """All jobs of one engine. Call `follow` with the view of a decision first; the other methods are about that view.

    Args:
        median: quantile of the length for price and order.
        optimistic: quantile of the length for saying that a deadline cannot be met.
        best_effort_s: default deadline of best effort, in seconds after arrival.
        best_effort_weight: worth of best effort beside requests with an SLO.
        goodput: what counts as worth.
    """

    def __init__(
        self,
        median: float,
        optimistic: float,
        best_effort_s: float,
        best_effort_weight: float,
        goodput: Goodput = Goodput.WORKFLOW,
    ) -> None:
        self._prior = LengthPrior()
        self._factory = JobFactory(self._prior, median, optimistic, best_effort_s, best_effort_weight, goodput)
        self.started_s = 0.0  # GPU time of the prompts that have started; the reader sets it back to 0
        self._reset()

    def _reset(self) -> None:
        self._jobs: dict[RequestId, Job] = {}
        self._views: dict[RequestId, RequestView] = {}  # the view that each job was computed from
        self._calls: list[RequestView] = []  # all calls of the last view
        self._units: dict[str, dict[RequestId, Job]] = {}
        self._capacity: Capacity | None = None
        self._token_s = 0.0
        self._ranked, self._lax = SortedColumns(attrgetter("rank")), SortedColumns(_LAXITY)
        self._due, self._late = SortedColumns(_DUE, *_IN_TEST), SortedColumns(attrgetter("late_at", "id"))
        self._promised = SortedColumns(_DUE, *_IN_SWEEP)
        self._weights = Counter[float]()  # of waiting and paused jobs
        self.running = RunningJobs()
        self.clients = Counter[str]()  # how many jobs each has
        self.context = 0  # tokens of the running calls: prompts and answers so far

    def learn(self, done: Finished) -> None:
        self._prior.learn(done)

    def follow(self, view: View, token_s: float | None = None, slowdown: float = 1.0) -> float:
        """Bring every job up to date, and return the pace in seconds a token.

        The pace is `token_s`, or if that is None the pace of the present batch, `slowdown` times slower.
        """
        capacity, known = view.capacity, self._capacity
        reset = known is None or known.step != capacity.step or known.slots != capacity.slots
        if reset:
            self._reset()
        self._capacity = capacity
        calls = [*view.waiting, *view.running, *view.paused]
        fresh, gone = self._changed(calls)
        if token_s is None:
            token_s = slowdown * pace_of(capacity, self.context, len(view.running))
        if reset:
            self._token_s = token_s
        elif not self._token_s / _DRIFT <= token_s <= self._token_s * _DRIFT:
            self._set_pace(token_s)
        jobs, dirty = self._jobs, set[str]()
        if len(fresh) + len(gone) > len(jobs) // 4:
            self._disturb()
        for call in fresh:
            old = jobs.get(call.id)
            job = self._factory.job(call, capacity, self._token_s, old)
            if old is None:
                self._add(job, dirty)
            elif old.waits or job.waits or old.unit != job.unit:
                if old.waits and not job.waits:
                    self.started_s += old.prefill_s
                self._forget(old, dirty)
                self._add(job, dirty)
            else:
                self._renew(old, job, dirty)
        for id_ in gone:
            self._forget(jobs[id_], dirty)
        for unit in dirty:
            self._price_unit(unit)
        return token_s

    def _changed(self, calls: list[RequestView]) -> tuple[list[RequestView], list[RequestId]]:
        """Return the calls that are new or have changed since the last view, and the ids that have gone.

        Updates `context`.
        """
        seen = self._views.get
        changed = view_changes(self._calls, calls)
        if changed is None:
            changed = calls, self._jobs.keys() - set(map(_ID, calls))
        fresh = [call for call in changed[0] if seen(call.id) is not call]
        gone = sorted(changed[1])
        self._calls = calls
        for call in fresh:
            self.context += _held(call) - _held(seen(call.id))
        for id_ in gone:
            self.context -= _held(seen(id_))
        return fresh, gone

    def jobs(self, ids: Iterable[RequestId]) -> Iterator[Job]:
        return map(self._jobs.__getitem__, ids)

    def jobs_of(self, calls: Iterable[RequestView]) -> list[Job]:
        """Return the jobs of calls that are in the view."""
        return list(map(self._jobs.__getitem__, map(_ID, calls)))

    def by_density(self) -> list[RequestId]:
        """Return the waiting and paused jobs, the densest unit first. Callers must not change the list."""
        return self._ranked.ids()

    def by_laxity(self) -> list[RequestId]:
        """Return the waiting and paused jobs, the earliest latest start first. Callers must not change the list."""
        return self._lax.ids()

    def by_deadline(self) -> DeadlineColumns:
        return DeadlineColumns(*self._due.columns())

    def promised(self) -> SloColumns:
        slo_jobs = self._promised
        return SloColumns(slo_jobs.jobs(), slo_jobs.ids(), self.next_late(), *slo_jobs.columns())

    def late(self, now: float) -> list[Job]:
        """Return the waiting and paused jobs that cannot be in time any more, the earliest latest start first."""
        return sorted(self._late.jobs()[: self._late.up_to((now, NEVER))], key=_LAXITY)

    def overdue(self, now: float) -> list[Job]:
        """Return best-effort jobs whose default deadline has passed, the oldest first."""
        return [job for job in self._due.jobs()[: self._due.up_to((now,))] if not job.counts]

    def heaviest(self) -> float:
        """Return the greatest weight of a waiting or paused job; 0 if there is none."""
        return max(self._weights, default=0.0)

    def worth(self) -> float:
        """Return the sum of the weights of the waiting and paused jobs."""
        return sum(weight * count for weight, count in self._weights.items())

    def next_late(self, now: float = -NEVER) -> float:
        """Return when the next waiting or paused job becomes late; NEVER if none is in time at `now`."""
        late = self._late.jobs()
        at = self._late.up_to((now, NEVER))
        return late[at].late_at if at < len(late) else NEVER

    def next_start(self, now: float) -> float:
        """Return the first latest start after `now`; NEVER if there is none."""
        lax = self._lax.jobs()
        at = self._lax.up_to((now, NEVER))
        return lax[at].start_by if at < len(lax) else NEVER

    def _disturb(self) -> None:
        for sorted_jobs in (self._ranked, self._lax, self._due, self._late, self._promised):
            sorted_jobs.disturbed()
        self.running.disturbed()

    def _set_pace(self, token_s: float) -> None:
        self._token_s = token_s
        self._disturb()
        for job in self._jobs.values():
            job.set_pace(token_s)

    def _add(self, job: Job, dirty: set[str]) -> None:
        self._jobs[job.id], self._views[job.id] = job, job.view
        self.clients[job.view.client] += 1
        if job.unit is not None:
            self._join(job, job.unit, dirty)
        if job.waits:
            for sorted_jobs in self._columns_of(job):
                sorted_jobs.add(job)
            self._weights[job.weight] += 1
        else:
            self.running.add(job)

    def _columns_of(self, job: Job) -> tuple[SortedColumns, ...]:
        plain = (self._ranked, self._lax, self._due, self._late)
        return (*plain, self._promised) if job.counts else plain

    def _join(self, job: Job, unit: str, dirty: set[str]) -> None:
        members = self._units.setdefault(unit, {})
        if members:  # the unit's price until it is computed again
            first = next(iter(members.values()))
            job.density, job.rank = first.density, (*first.rank[:2], job.id)
            if job.own:
                job.weight = first.weight
        members[job.id] = job
        dirty.add(unit)

    def _renew(self, old: Job, job: Job, dirty: set[str]) -> None:
        """Replace the job of a call that runs as before and has moved on."""
        self._jobs[job.id], self._views[job.id] = job, job.view
        self.running.renew(old, job)
        if job.unit is not None:
            del self._units[job.unit][job.id]
            self._join(job, job.unit, dirty)

    def _forget(self, job: Job, dirty: set[str]) -> None:
        del self._jobs[job.id], self._views[job.id]
        self.clients[job.view.client] -= 1
        if not self.clients[job.view.client]:
            del self.clients[job.view.client]
        if job.waits:
            for sorted_jobs in self._columns_of(job):
                sorted_jobs.remove(job)
            self._unweigh(job)
        else:
            self.running.remove(job)
        if job.unit is not None:
            del self._units[job.unit][job.id]
            dirty.add(job.unit)

    def _price_unit(self, unit: str) -> None:
        """Compute the price and worth that the calls of a stage or fork group share: those of their program.

        A fork group's prompt is computed once: the dearest prefill among its members counts, not their sum.
        """
        members = self._units[unit].values()
        if not members:
            del self._units[unit]
            return
        shared = sum([job.waits for job in members]) > 1
        for job in members:
            if job.shared is not shared:
                job.shared = shared
                if job.waits and job.counts:
                    self._promised.renew(job, _DENSITY)
        first = next(iter(members))
        prefills = [job.prefill_s for job in members]
        prefill = max(prefills) if first.view.group is not None else sum(prefills)
        price = sum([job.gpu_s for job in members]) + prefill + first.later.gpu_s
        worth = max([job.given for job in members])
        if first.own:
            worth = self._factory.worth(first.view, worth, sum([job.own for job in members]), first.later)
        density = worth / price
        if len(members) > 1 and abs(density - first.density) <= 0.01 * density:
            return  # a running sibling moved on a little: not worth moving them all
        arrived = min([job.view.arrived for job in members])
        in_place = not self._ranked.stale
        for job in members:
            if job.waits and in_place:
                self._ranked.remove(job)
            if job.weight != worth and job.own:
                self._reweigh(job, worth)
            job.density = density
            job.rank = (-density, arrived, job.id)
            if job.waits and in_place:
                self._ranked.add(job)
            if job.waits and job.counts and not shared:
                self._promised.renew(job, _DENSITY)

    def _reweigh(self, job: Job, weight: float) -> None:
        if job.waits:
            self._unweigh(job)
            self._weights[weight] += 1
        job.weight = weight

    def _unweigh(self, job: Job) -> None:
        self._weights[job.weight] -= 1
        if not self._weights[job.weight]:
            del self._weights[job.weight]


def _held(call: RequestView | None) -> int:
    return call.prompt_tokens + call.generated if call is not None and call.state is State.RUNNING else 0


_FIRST_STRETCH, _LONGEST_STRETCH = 32, 128  # views that are compared at once
_FEW = 64  # differences, beside a sixteenth of the list: with more, a pass over the whole list is faster
_AHEAD = 16  # views to look ahead for the place where the lists agree again


def view_changes(
    old: Sequence[RequestView], new: Sequence[RequestView], most: int | None = None
) -> tuple[list[RequestView], set[RequestId]] | None:
    """Return the views of `new` that may not be in `old`, and the ids that are not in `new` any more.

    Returns None if the lists differ in more than `most` places. No call may be twice in a list.

    From one decision to the next a host's list differs by a few calls. So equal stretches are compared as lists,
    which compares addresses first, and takes a fraction of the time of asking each view for its id. Equal views
    count as the same.
    """
    i, j, stretch = 0, 0, _FIRST_STRETCH
    budget = _FEW + len(new) // 16 if most is None else most
    left: list[RequestView] = []
    come: list[RequestView] = []
    while i < len(old) and j < len(new):
        both = min(stretch, len(old) - i, len(new) - j)
        aligned, was, now = True, old[i : i + both], new[j : j + both]
        for at in () if was == now else compress(range(both), map(is_not, was, now)):
            budget -= 1
            if budget < 0:
                return None
            gone, here = old[i + at], new[j + at]
            if gone.id == here.id:  # replaced in its place
                left.append(gone)
                come.append(here)
                continue
            i, j, aligned, stretch = i + at, j + at, False, _FIRST_STRETCH
            skip_old, skip_new = _realign(old, i, new, j)
            left += old[i : i + skip_old]
            come += new[j : j + skip_new]
            i, j = i + skip_old, j + skip_new
            break
        if aligned:
            i, j, stretch = i + both, j + both, min(2 * stretch, _LONGEST_STRETCH)
    left += old[i:]
    come += new[j:]
    return come, set(map(_ID, left)).difference(map(_ID, come))


def _realign(old: Sequence[RequestView], i: int, new: Sequence[RequestView], j: int) -> tuple[int, int]:
    """Return how many views to skip in each list until they agree again."""
    gone, here = old[i], new[j]
    for k, (ahead, beyond) in enumerate(zip(old[i + 1 : i + _AHEAD], new[j + 1 : j + _AHEAD], strict=False), 1):
        if ahead is here:
            return k, 0
        if beyond is gone:
            return 0, k
    return 1, 1
