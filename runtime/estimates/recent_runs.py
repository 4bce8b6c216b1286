"""What finished runs recorded, kept in memory: a process that runs a workflow often reads only its new runs, and
looks for them once a second."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramify.runtime.records import LLMRecord, OpRecord, RunId, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.estimates.recorded_runs import RecordedEstimates
    from ramify.runtime.store import RunStore
    from ramify.runtime.store.reader import Reader

FRESH_S = 1.0
"""For how many seconds the estimates of a workflow serve further runs."""

_MOST_ROWS = 5_000  # rows that are kept, of all runs together


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run with its journal and its model calls."""

    run: RunRecord
    ops: tuple[OpRecord, ...]
    llm: tuple[LLMRecord, ...]

    @property
    def size(self) -> int:
        return 1 + len(self.ops) + len(self.llm)


class RecentRuns:
    """Reads finished runs, and keeps those that were read last. A run that changed since is read again.

    timer: returns monotonic seconds.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self.reading = asyncio.Lock()  # one task reads, and the others take what it found
        self._estimates: dict[tuple[str, str | None], tuple[float, RecordedEstimates]] = {}
        self._kept: OrderedDict[RunId, RecordedRun] = OrderedDict()
        self._size = 0

    async def read(self, store: RunStore | Reader, run: RunRecord) -> RecordedRun:
        found = self._kept.get(run.id)
        if found is not None and found.run.updated_at == run.updated_at:
            self._kept.move_to_end(run.id)
            return found
        ops, llm = await store.journal(run.id)
        self._drop(run.id)
        made = RecordedRun(run, tuple(ops), tuple(llm))
        self._kept[run.id] = made
        self._size += made.size
        while self._size > _MOST_ROWS:
            self._drop(next(iter(self._kept)))
        return made

    def estimates(self, workflow: str, workspace: str | None) -> RecordedEstimates | None:
        """Return the estimates that were kept less than `FRESH_S` ago, or None."""
        at, found = self._estimates.get((workflow, workspace), (0.0, None))
        return found if self._timer() - at < FRESH_S else None

    def keep(self, workflow: str, workspace: str | None, found: RecordedEstimates) -> None:
        now = self._timer()
        self._estimates = {key: kept for key, kept in self._estimates.items() if now - kept[0] < FRESH_S}
        self._estimates[workflow, workspace] = now, found

    def _drop(self, run: RunId) -> None:
        if (old := self._kept.pop(run, None)) is not None:
            self._size -= old.size
