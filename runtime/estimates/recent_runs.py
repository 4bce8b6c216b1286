"""Estimates from the latest runs of a workflow. What finished runs recorded is kept in memory: a process that runs a
workflow often reads only its new runs, and looks for them once a second."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.runtime.estimates.recorded_runs import LATEST, LEARN_AFTER, RECENT, Code, RecordedEstimates
from ramify.runtime.records import LLMRecord, OpRecord, RunId, RunRecord, RunStatus

if TYPE_CHECKING:
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


async def observed(store: RunStore | Reader, workflow: str, *, but: RunId | None = None) -> RecordedEstimates:
    """Return estimates from the latest runs of a workflow. `but`: a run to leave out."""
    runs = await store.latest_runs(workflow, among=RECENT, most=LATEST + 1)
    return await _estimates_of(store, [run for run in runs if run.id != but][:LATEST], RecentRuns())


async def learned(
    store: RunStore | Reader, workflow: str, workspace: str | Path | None = None, *, recent: RecentRuns | None = None
) -> RecordedEstimates:
    """Return the estimates for the next plan of a workflow: from its latest finished runs, empty while they are few.

    workspace: the folder with which the next run begins. recent: what this process has read before; its estimates
    serve for a second.
    """
    if recent is None:
        return (await _learned(store, workflow, workspace, RecentRuns()))[0]
    folder = None if workspace is None else str(workspace)
    if (kept := recent.estimates(workflow, folder)) is not None:
        return kept
    async with recent.reading:
        if (kept := recent.estimates(workflow, folder)) is not None:
            return kept
        found, is_enough = await _learned(store, workflow, workspace, recent)
        if is_enough:
            recent.keep(workflow, folder, found)
        return found


async def _learned(
    store: RunStore | Reader, workflow: str, workspace: str | Path | None, recent: RecentRuns
) -> tuple[RecordedEstimates, bool]:
    """Return the estimates, and whether there are enough runs."""
    runs = await store.latest_runs(workflow, among=RECENT, most=LATEST, status=RunStatus.DONE)
    if len(runs) < LEARN_AFTER:
        return (_NOTHING if workspace is None else _NOTHING.on(workspace)), False
    return (await _estimates_of(store, runs, recent)).on(workspace), True


_NOTHING = RecordedEstimates(())


async def _estimates_of(store: RunStore | Reader, runs: Sequence[RunRecord], recent: RecentRuns) -> RecordedEstimates:
    found = [await recent.read(store, run) for run in runs]
    return RecordedEstimates(
        [row for one in found for row in one.ops],
        [row for one in found for row in one.llm],
        {one.run.id: Code.of(one.run.plan_json) for one in found},
    )
