"""Which waiting jobs can meet their deadlines: do all fit, which set fits if not, and which cannot start in time.

- `fits`: the demand test of earliest-deadline-first on one machine. Can every job be in time?
- `feasible_set`: if not, a set that can, which leaves out the jobs of least density (Moore and Hodgson 1968).
  `feasible_set_plainly` is the same algorithm without its data structures: read it first.
- `forecast_starts`: a list schedule of the queue. Which calls will get their slot too late?

In the first two the machine is the GPU, whose time a full batch shares, and a job is a stage with the later stages
of its program. All times of jobs are at the median length.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import compress, count
from math import isfinite
from sys import float_info
from typing import NamedTuple

from ramify.serving.policy.concord.job_index import DeadlineColumns, SloColumns
from ramify.serving.policy.concord.jobs import NEVER, Job, RunningDue
from ramify.serving.policy.types import RequestId

_DENSEST = float_info.max  # stands for the least density kept where nothing is kept
_EQUAL_S = 1e-9  # sums of the same times in another order differ by less
_SURE = 0.75  # share of a predicted time that counts: calls end early, or are cancelled


def fits(waiting: DeadlineColumns, running: Sequence[RunningDue], headroom: float, now: float) -> bool:
    """Can all waiting jobs meet their deadlines, with room for jobs that have not arrived yet?

    True if for each deadline the GPU's time until then covers `headroom` times the work due before it, later stages
    included, and then the job itself. This counts prefill, which the time of slots would not.

    Args:
        waiting: waiting and paused jobs, earliest deadline first.
        running: running jobs, earliest deadline first.
        headroom: how many times the present work must fit.
        now: the time in seconds.
    """
    at, demand_s = 0, 0.0
    next_due = running[0][0] if running else NEVER
    for due, before_s, late_at, work_s in zip(*waiting, strict=True):
        if next_due <= due:
            while at < len(running) and running[at][0] <= due:
                demand_s += running[at][1]
                at += 1
            next_due = running[at][0] if at < len(running) else NEVER
        if headroom * demand_s + before_s > due - now and now < late_at < NEVER:
            return False
        demand_s += work_s
    return True


@dataclass(frozen=True, slots=True)
class Reserve:
    """How much time is kept free for jobs that will still arrive and be denser (docs/decisions/047).

    Of the next `until_s` seconds one `times`-th is given away, of the time after that one `later`-th: that a rush
    goes on for a few seconds is likely, that it goes on for a minute is not.
    """

    times: float
    until_s: float
    later: float

    @property
    def more(self) -> float:
        """By how much a second after `until_s` counts more than one before it. Never below 0."""
        return max(0.0, self.times / self.later - 1.0) if isfinite(self.times) else 0.0

    def room_s(self, left_s: float) -> float:
        """The time until a latest start that may be given away, times `times`."""
        return left_s + self.more * max(0.0, left_s - self.until_s)


def feasible_set_plainly(
    waiting: SloColumns, running: Sequence[RunningDue], reserve: Reserve, now: float
) -> set[RequestId]:
    """Return what `feasible_set` returns, in O(n²). It shows the algorithm, and tests compare the two.

    Take the jobs in the order of their deadlines. Whenever one does not fit any more, leave out the least dense of
    those taken so far. With equal worth the least dense is the longest, which is Moore and Hodgson's rule. The
    calls of one unit (a stage, a fork group) are kept or left out together.
    """
    kept: dict[str | RequestId, list[Job]] = {}
    left_out: set[str | RequestId] = set()
    for job in waiting.jobs:
        unit = job.key
        if unit in left_out or job.late_at <= now:
            continue
        before_s = sum(work_s for due, work_s, late_at in running if due <= job.due and late_at > now)
        room_s = reserve.room_s(job.start_by - now)

        def too_much(unit: str | RequestId = unit, before_s: float = before_s, room_s: float = room_s) -> bool:
            others_s = sum(one.work_s for key, members in kept.items() if key != unit for one in members)
            return reserve.times * (before_s + others_s) > room_s + _EQUAL_S

        least = min([members[0].density for members in kept.values()], default=NEVER)
        if job.start_by < now or (too_much() and job.density <= least):
            left_out.add(unit)
            kept.pop(unit, None)
            continue
        kept.setdefault(unit, []).append(job)
        while unit in kept and too_much():
            worst = min(kept, key=lambda key: (kept[key][0].density, -kept[key][0].view.arrived, -kept[key][0].id))
            left_out.add(worst)
            del kept[worst]
    return {job.id for members in kept.values() for job in members}


def feasible_set(waiting: SloColumns, running: Sequence[RunningDue], reserve: Reserve, now: float) -> set[RequestId]:
    """Return the ids of jobs that can all be in time, leaving out the least dense, in O(n log n).

    Before each deadline the GPU must have time for the work due before it, later stages included, with the reserve,
    and then for the job itself. Jobs that are late in any case are in no set. What is left out is not refused: it
    is placed after what is kept, and the next decision looks at it again.

    The sweep reads columns of numbers instead of jobs (docs/decisions/052): thousands of jobs are not in the
    processor's cache.

    Args:
        waiting: waiting and paused jobs with an SLO, earliest deadline first.
        running: running jobs, earliest deadline first. Those that are late do not count.
        reserve: the time to keep free.
        now: the time in seconds.
    """
    times, until_s, more = reserve.times, reserve.until_s, reserve.more
    jobs, ids, first_late_at, dues, starts, works, late_at, densities = waiting
    some_late = first_late_at <= now
    demand, wanted, at = 0.0, 0.0, 0  # `wanted`: `times` the demand
    next_due = running[0][0] if running else NEVER
    kept = bytearray(len(jobs))  # 1 for each kept job, by its place in `jobs`
    heap: list[float] = []  # densities of what is kept: comparing plain numbers takes a third of the time of tuples
    head = _DENSEST  # the least of them
    rows: dict[float, int] = {}  # the place in `jobs` that each density on the heap came from
    tied: _Tied | None = None
    units: dict[str, tuple[float, list[int]]] = {}  # kept units: their work so far, and the places of their members
    unit_at: dict[int, str] = {}  # by the place of the first member met
    out: set[str] = set()  # units with a member that is left out
    for i, due, start_by, density, work_s in zip(count(), dues, starts, densities, works, strict=False):
        if next_due <= due:
            while at < len(running) and running[at][0] <= due:
                _, running_s, running_late_at = running[at]
                if running_late_at > now:
                    demand += running_s
                at += 1
            next_due = running[at][0] if at < len(running) else NEVER
            wanted = times * demand
        left = start_by - now
        room = left + _EQUAL_S  # Reserve.room_s, without the call
        if left > until_s:
            room += more * (left - until_s)
        if wanted > room and density <= head:
            continue  # it does not fit, and would be the first to be left out
        if some_late and late_at[i] <= now:
            continue
        mine, unit, first = work_s, None, True
        if density < NEVER:
            if left < 0.0:
                continue
        else:
            unit = jobs[i].unit or ""
            if unit in out:
                continue
            before_s, members = units.get(unit) or (0.0, [])
            density = jobs[i].density
            if left < 0.0 or (density <= head and times * (demand - before_s) > room):
                out.add(unit)
                units.pop(unit, None)
                demand -= before_s
                wanted = times * demand
                for member in members:
                    kept[member] = 0
                continue
            if first := not members:
                unit_at[i] = unit
            members.append(i)
            mine += before_s
            units[unit] = mine, members
        demand += work_s
        kept[i] = 1
        if first:
            heappush(heap, density)
            if rows.setdefault(density, i) != i:
                tied = tied or _Tied(jobs)
                tied.add(density, i)
        while times * (demand - mine) > room:
            lowest = heappop(heap)
            least = rows.pop(lowest)
            if tied is not None:
                least = tied.pop_youngest(lowest, least, rows)
            if least not in unit_at:
                demand -= works[least]
                kept[least] = 0
                if least == i:
                    break
                continue
            least_unit = unit_at[least]
            out.add(least_unit)
            least_s, members = units.pop(least_unit, (0.0, []))
            demand -= least_s
            for member in members:
                kept[member] = 0
            if least_unit == unit:
                break
        head = heap[0] if heap else _DENSEST
        wanted = times * demand
    return set(compress(ids, kept))


class _Tied:
    """Jobs of equal density on the heap: the youngest is the first to be left out."""

    __slots__ = ("_jobs", "_places")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._places: dict[float, list[int]] = {}

    def add(self, density: float, place: int) -> None:
        """Add a job whose density another job on the heap already has."""
        self._places.setdefault(density, []).append(place)

    def pop_youngest(self, density: float, place: int, rows: dict[float, int]) -> int:
        """Return the place of the youngest job of this density. `place` was the one in `rows`; another goes there."""
        if density not in self._places:
            return place
        places = sorted([place, *self._places.pop(density)], key=self._age)
        youngest = places.pop()
        rows[density] = places[0]
        if len(places) > 1:
            self._places[density] = places[1:]
        return youngest

    def _age(self, place: int) -> tuple[float, int]:
        job = self._jobs[place]
        return job.view.arrived, job.id


class StartForecast(NamedTuple):
    hopeless: list[tuple[Job, float]]  # calls that will start too late, with the seconds after which each could start
    wait_s: float  # how long a call would wait that came now and went to the end of the queue


def forecast_starts(slots: int, running_s: Sequence[float], queue: Iterable[Job], now: float) -> StartForecast:
    """Find the calls that cannot start in time behind those before them in the queue.

    A list schedule in the queue's order: each call takes the slot that is free first, for as long as its median
    length says. A call that would start too late takes none.

    Args:
        slots: how many calls the engine works on at once.
        running_s: seconds for which each call in the engine will still hold its slot, shortest first. They may be
            more than the slots if the engine has a queue of its own.
        queue: the waiting jobs, in the policy's order.
        now: the time in seconds.
    """
    free_at = [0.0] * max(0, slots - len(running_s)) + list(running_s[:slots])
    if not free_at:
        return StartForecast([], 0.0)
    heapq.heapify(free_at)
    for held_s in running_s[slots:]:
        heapq.heapreplace(free_at, free_at[0] + held_s)
    hopeless = []
    for job in queue:
        wait_s = free_at[0]
        if job.counts and not job.view.generated and wait_s > 0.0 and now + _SURE * (wait_s + job.before_s) > job.due:
            hopeless.append((job, wait_s))
        else:
            heapq.heapreplace(free_at, wait_s + job.slot_s)
    return StartForecast(hopeless, free_at[0])
