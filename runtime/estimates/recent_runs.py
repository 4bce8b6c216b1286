"""What finished runs recorded, kept in memory: a process that runs a workflow often reads only its new runs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramify.runtime.records import LLMRecord, OpRecord, RunId, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.store import RunStore
    from ramify.runtime.store.reader import Reader

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
    """Reads finished runs, and keeps those that were read last. A run that changed since is read again."""

    def __init__(self) -> None:
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

    def _drop(self, run: RunId) -> None:
        if (old := self._kept.pop(run, None)) is not None:
            self._size -= old.size
