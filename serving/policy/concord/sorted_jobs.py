"""Jobs in the order of a key, kept from decision to decision."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection

from ramify.serving.policy.concord.job import Job
from ramify.serving.policy.types import RequestId, SloClass


class SortedColumns:
    """A few changes are put in place; after many it is sorted when next asked for.

    Beside the jobs stand columns of what a pass over all of them reads: thousands of jobs are not in the processor's
    cache, and going to each takes several times as long as going through plain numbers.
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
        """Its key must be the one that it was added with."""
        if self.stale:
            self._jobs.remove(job)
            return
        at = bisect_left(self._keys, self._key(job))
        del self._keys[at], self._jobs[at], self._ids[at]
        for column in self._columns:
            del column[at]

    def renew(self, job: Job, column: int) -> None:
        """Its value in `column` has changed, and its key has not."""
        if not self.stale:
            self._columns[column][bisect_left(self._keys, self._key(job))] = self._values[column](job)

    def disturbed(self) -> None:
        """Many keys are about to change."""
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
        """How many come before `key`."""
        self.jobs()
        return bisect_left(self._keys, key)


Due = tuple[float, float, float]  # due, work_s, late_at


class Running:
    """Jobs that hold a slot. What is asked of it is not to be changed."""

    __slots__ = ("_due", "_holds", "_jobs", "_slot_s", "_stale", "_tbts")

    def __init__(self) -> None:
        self._jobs: dict[RequestId, Job] = {}
        self._holds = Counter[SloClass]()
        self._tbts = Counter[float]()
        self._due: list[Due] = []
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
        """At the pace that it was added with, or disturbed since."""
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
        """A job that runs has moved on."""
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
        """Many are about to change."""
        self._stale = True

    def jobs(self) -> Collection[Job]:
        """In no particular order."""
        return self._jobs.values()

    def holds(self, slo_class: SloClass) -> int:
        """Slots that a class has."""
        return self._holds[slo_class]

    def tightest(self) -> float | None:
        """The least time between tokens that one of them is promised; None where none is."""
        return min(self._tbts, default=None)

    def by_due(self) -> list[Due]:
        """The earliest deadline first."""
        self._sort()
        return self._due

    def by_end(self) -> list[float]:
        """Seconds that each will still hold its slot, the shortest first."""
        self._sort()
        return self._slot_s

    def _sort(self) -> None:
        if self._stale:
            self._due = sorted([(job.due, job.work_s, job.late_at) for job in self._jobs.values()])
            self._slot_s = sorted([job.slot_s for job in self._jobs.values()])
            self._stale = False
