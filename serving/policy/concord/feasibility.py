"""Which of what waits is worth waiting for: the most programs that can all be in time, and who is not among them.

On one machine the most jobs are in time if they are taken in the order of their deadlines, and, whenever one of them
does not fit any more, the longest of those taken so far is left out (Moore and Hodgson 1968). Here the machine is the
GPU, a job is a stage with the program that follows it, and the one left out is the least dense, which with equal
worths is the longest. What is left out is not refused: it stands behind what is kept, the densest first, and is asked
anew at the next decision.
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

from ramify.serving.policy.concord.job import NEVER, Job
from ramify.serving.policy.concord.job_index import SloColumns
from ramify.serving.policy.concord.sorted_jobs import Due
from ramify.serving.policy.types import RequestId

_DENSEST = float_info.max  # where nothing is kept, so that nothing is denser


@dataclass(frozen=True, slots=True)
class Reserve:
    """Of the next `until_s` seconds a `times`-th is given away, of what lies behind them a `later`-th: that a rush
    goes on is likely, that it goes on for a minute is not (docs/decisions/047)."""

    times: float
    until_s: float
    later: float

    @property
    def more(self) -> float:
        """What a second behind `until_s` counts beyond one before it. Never less: who keeps little for what comes
        next keeps no more behind it."""
        return max(0.0, self.times / self.later - 1.0) if isfinite(self.times) else 0.0


def keep(waiting: SloColumns, running_due: Sequence[Due], reserve: Reserve, now: float) -> set[RequestId]:
    """What is kept. `running_due` is of what runs, the earliest deadline first; what is late of it has no say.

    Before each deadline the GPU must have time for the work due before it, later stages included, with the reserve
    for what has not come yet and will be denser, and then for the request itself; by medians. What is late anyhow is
    not asked about.
    """
    times, until_s, more = reserve.times, reserve.until_s, reserve.more
    jobs, ids, first_late_at, dues, starts, works, late_at, densities = waiting
    some_late = first_late_at <= now
    demand, wanted, at = 0.0, 0.0, 0  # `wanted`: so many `times` the demand
    next_due = running_due[0][0] if running_due else NEVER
    kept = bytearray(len(jobs))  # by its place in `jobs`
    heap: list[float] = []  # densities of what is kept: plain numbers are compared in a third of the time of entries
    head = _DENSEST  # the least of them
    rows: dict[float, int] = {}  # the place that each density on the heap came from
    tied: _Tied | None = None
    units: dict[str, tuple[float, list[int]]] = {}  # kept: their work so far, and the places of the members met
    unit_at: dict[int, str] = {}  # by the place of the member that was met first
    out: set[str] = set()  # units with a member that is left out
    for i, due, start_by, density, work_s in zip(count(), dues, starts, densities, works, strict=False):
        if next_due <= due:
            while at < len(running_due) and running_due[at][0] <= due:
                _, running_s, running_late_at = running_due[at]
                if running_late_at > now:
                    demand += running_s
                at += 1
            next_due = running_due[at][0] if at < len(running_due) else NEVER
            wanted = times * demand
        left = start_by - now
        room = left if left <= until_s else left + more * (left - until_s)  # for what is wanted
        # By itself, does not fit and is what would have to go.
        if wanted > room and density <= head:
            continue
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
                least = tied.settle(lowest, least, rows)
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
    """Places of equal density: of these the youngest is the first to go."""

    __slots__ = ("_jobs", "_places")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._places: dict[float, list[int]] = {}

    def add(self, density: float, place: int) -> None:
        """Beside the one that has this density already."""
        self._places.setdefault(density, []).append(place)

    def settle(self, density: float, place: int, rows: dict[float, int]) -> int:
        """Who goes, where `place` was the one in `rows`; one that stays is put there."""
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


_SURE = 0.75  # of the predicted time: calls end early, or are called off


class StartForecast(NamedTuple):
    hopeless: list[tuple[Job, float]]  # with the seconds after which each could start
    wait_s: float  # of a call that came now and stood behind the whole queue


def foresee(slots: int, running_s: Sequence[float], queue: Iterable[Job], now: float) -> StartForecast:
    """`running_s`: seconds for which each call in the engine will hold its slot, shortest first. They may be more
    than the slots, where the engine holds calls in a queue of its own."""
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
