"""Jobs in the order of a key, kept from decision to decision."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable

from ramify.serving.policy.job import Job
from ramify.serving.policy.types import RequestId


class Shelf:
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
