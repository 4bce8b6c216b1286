"""What runs, with what a decision asks of all of it together.

Of hundreds that run, a few have moved on from one decision to the next. So sums and sorted lists are kept and
changed in place, which is a fraction of making them anew (docs/decisions/052).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection

from ramify.serving.policy.job import Job
from ramify.serving.policy.types import RequestId, SloClass

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
