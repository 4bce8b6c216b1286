"""Jobs that stay sorted from one decision to the next: `SortedColumns` for waiting jobs, `RunningJobs` for running
ones.

A decision changes few of the hundreds or thousands of jobs. So sorted lists and sums are kept and changed in place,
which takes a fraction of the time of building them again (docs/decisions/052).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection

from ramify.serving.policy.concord.job import Job
from ramify.serving.policy.types import RequestId, SloClass

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
