"""The histories of the runs that the page shows, kept so that the next request reads only what is new."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ramify.browse.web import views
from ramify.browse.web.responses import (
    AnswerStored,
    CheckpointRow,
    HistoryPage,
    ItemRow,
    LineRow,
    MomentRow,
    NotThere,
    RunRow,
    table,
)
from ramify.fork_engine.store import SnapshotStore
from ramify.inspect.history import History, read_now
from ramify.inspect.inbox import store_answer, waiting
from ramify.runtime.records import RunId, RunRecord, RunStatus
from ramify.runtime.store import RunStore
from ramify.runtime.store.reader import Reader as DatabaseReader

RUNS = 500  # that the page lists
MOST_DIGITS = 18  # of a row's number; Python refuses numbers of thousands of digits
_KEPT = 4  # runs: the one that is shown, and those compared with it


@dataclass(frozen=True, slots=True)
class _Known:
    """`generation` counts how often everything was read again: the page's older rows may be void then."""

    generation: int
    history: History


class RunCache:
    """`status` returns a run's status as the command line shows it: a running run without a process is
    interrupted.
    """

    def __init__(
        self,
        store: RunStore | DatabaseReader,
        snapshots: SnapshotStore,
        status: Callable[[RunRecord], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._clock = clock
        self.snapshots = snapshots
        self._status = status
        self._known: OrderedDict[RunId, _Known] = OrderedDict()
        self._locks: dict[RunId, asyncio.Lock] = {}

    @property
    def database(self) -> str | Path:
        address = self.store.address
        return address.file or address.url.render_as_string(hide_password=False)

    async def runs(self) -> list[RunRow]:
        """The newest runs, at most `RUNS`."""
        runs = await self.store.runs(RUNS)
        tallies = await self.store.tallies([run.id for run in runs])
        return [views.run_row(run, self._status(run), tallies[run.id]) for run in runs]

    async def inbox(self) -> list[ItemRow]:
        """What waits for a person, in all runs, the longest waiting first."""
        items = await waiting(self.store, self.database, lambda run: self._status(run) == RunStatus.RUNNING)
        return [views.item_row(item) for item in items]

    async def answer(self, id: str, value: object) -> AnswerStored:
        """Store the answer to a question. Raises as `store_answer`; `NotThere` if the home is read-only."""
        if not isinstance(self.store, RunStore):
            raise NotThere("this home is read-only here: answer where it can be written to")
        stored = await store_answer(
            self.store, self.database, id, value, clock=self._clock, by="the page of `ramify browse --web`"
        )
        return AnswerStored(stored.question.id, stored.question.run_id, len(stored.left))

    async def history(self, run: RunId) -> History:
        """The history as it is now. Raises `RunNotFound`."""
        return (await self._read(run)).history

    async def page(self, run: RunId, cursor: str) -> HistoryPage:
        """What is new since `cursor`, which an earlier page returned; everything for any other cursor."""
        known = await self._read(run)
        history = known.history
        tally = (await self.store.tallies([run]))[run]
        generation, _, after = cursor.partition(".")
        whole = generation != str(known.generation) or not after.isdecimal() or len(after) > MOST_DIGITS
        since = -1 if whole else int(after)
        fresh = since < history.last_seq  # otherwise there is nothing new
        moments = history.moments if fresh else ()
        lines = history.branches.values() if fresh else ()
        states = history.checkpoints if fresh else ()
        return HistoryPage(
            cursor=f"{known.generation}.{history.last_seq}",
            whole=whole,
            run=views.run_row(history.run, self._status(history.run), tally),
            moments=table(MomentRow, (views.moment_row(one) for one in moments if one.seq > since)),
            lines=table(LineRow, (views.line_row(line) for line in lines if views.is_news(line, since))),
            checkpoints=table(CheckpointRow, (views.checkpoint_row(one) for one in states if one.seq > since)),
            effects=tuple(map(views.effect_row, history.effects)),
        )

    async def _read(self, run: RunId) -> _Known:
        lock = self._locks.setdefault(run, asyncio.Lock())
        try:
            async with lock:
                return await self._read_alone(run)
        finally:
            if run not in self._known and not lock.locked():  # a made-up run leaves nothing behind
                self._locks.pop(run, None)

    async def _read_alone(self, run: RunId) -> _Known:
        before = self._known.get(run)
        since = before.history if before else None
        history = await asyncio.to_thread(read_now, self.store.address, run, since)
        if before is None:
            now = _Known(0, history)
        else:
            grown = history.ops[: len(before.history.ops)] == before.history.ops
            now = _Known(before.generation + (not grown), history)
        self._known[run] = now
        self._known.move_to_end(run)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return now
