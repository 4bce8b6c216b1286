"""A run's journal in memory: it answers for recorded operations, and it is the only place that commits new ones.

The key of a row is its place in the workflow: branch, plan operation, digest of the arguments, and the number of the
occurrence of these three. It contains neither the run's id nor a time, so a resumed run computes the same keys.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto
from types import MappingProxyType

from ramify.compiler.plan import OpKind
from ramify.fork_engine import crash_points
from ramify.fork_engine.types import Snapshot
from ramify.runtime.errors import BranchReleased
from ramify.runtime.events import Event, LLMDone, OpDone
from ramify.runtime.journal.commits_behind import CommitsBehind
from ramify.runtime.journal.recorded_order import CALLED_AFTER, IN_TURNS, RESUMED
from ramify.runtime.journal.recorded_run import RecordedRun
from ramify.runtime.records import (
    LEGAL_SETTLEMENTS,
    ROOT,
    STANDS,
    BranchPath,
    CheckpointId,
    CheckpointRecord,
    EffectRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunUpdate,
    checkpoint_id,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.engines import finish_despite_cancel
from ramify.runtime.store.run_committer import JOIN_NEXT_COMMIT_S, AnnouncedCommit
from ramify.runtime.worlds.world_pool import Branch


class Durable(Enum):
    """When rows have to be durable. The rows of a run become durable in the order in which they were recorded."""

    NOW = auto()  # before the caller continues
    NEXT_STEP = auto()  # before the run's next step begins (`settled`), to share the commit of the next checkpoint
    NEXT_ROW = auto()  # with the next row: a run that is resumed without these rows makes equal ones


_LONG = 1 << 20  # characters of a result that is not kept in memory

LINGER_S = {Durable.NEXT_STEP: JOIN_NEXT_COMMIT_S, Durable.NEXT_ROW: 0.5}


class Journal(RecordedRun):
    """Records what a run does, and answers for what it did before (`RecordedRun`).

    flush: puts all sealed layers on disk; it is called before rows that name a snapshot become durable.
    clock: returns Unix seconds. timer: returns monotonic seconds.
    """

    def __init__(
        self,
        store: RunStore,
        run: RunRecord,
        *,
        ops: Sequence[OpRecord],
        llm: Sequence[LLMRecord],
        effects: Sequence[EffectRecord] = (),
        elsewhere: Sequence[EffectRecord] = (),
        failed: Mapping[str, OpRecord] = MappingProxyType({}),
        was_changed: bool = False,
        flush: Callable[[], None],
        clock: Callable[[], float],
        timer: Callable[[], float] = time.monotonic,
        emit: Callable[[Event], None],
    ) -> None:
        super().__init__(
            run,
            ops=ops,
            llm=llm,
            effects=effects,
            elsewhere=elsewhere,
            failed=failed,
            was_changed=was_changed,
            emit=emit,
        )
        self._store = store
        self._clock = clock
        self._flush = flush
        self._coming: dict[BranchPath, AnnouncedCommit] = {}
        self._timer = timer
        self._begun = timer()
        self._resumed_at = clock() if ops or llm else None  # until a row says so
        self._over = False
        self.unwinds = False
        """Whether the run itself is being stopped, so that what is cancelled is not cancelled by the workflow."""
        self.await_cancels = 0
        """How many operations wait to be cancelled again, as an earlier process cancelled them."""
        self.behind = CommitsBehind()
        self.streams: dict[str, Callable[[], OpRecord | None]] = {}
        """Streamed answers that are being read, by key: each returns the row of what was read since its last row."""
        self._lost: BaseException | None = None  # why rows that nobody waited for were not committed
        self._soon: dict[asyncio.Future[None], Durable] = {}

    def age_s(self) -> float:
        """Return the seconds since this process began to work on the run."""
        return self._timer() - self._begun

    def consumed_s(self) -> float:
        """Return the seconds of the deadline that the run has used, over all processes that worked on it."""
        return self._run.consumed_s + self.age_s()

    async def record(
        self,
        *rows: OpRecord,
        checkpoint: tuple[Branch, Snapshot, str] | None = None,
        effect: EffectRecord | None = None,
        durable: Durable = Durable.NOW,
    ) -> None:
        """Commit rows, the checkpoint that the last of them made, and an effect's result, in one transaction.

        `checkpoint` is (branch, snapshot, label); the branch's position is updated when the commit is durable, or
        queued.
        """
        if durable is not Durable.NOW:
            assert effect is None, "an effect's result must be durable at once"
            self._record_soon(rows, checkpoint, durable)
            return
        await finish_despite_cancel(self._record(rows, checkpoint, effect))

    async def settled(self) -> None:
        """Return when all rows recorded with `NEXT_STEP` are durable. Raises the error if one of them failed."""
        while waiting := [one for one, durable in self._soon.items() if durable is Durable.NEXT_STEP]:
            await asyncio.wait(waiting)
        self._refuse_what_does_not_follow()

    async def _record(
        self,
        rows: tuple[OpRecord, ...],
        checkpoint: tuple[Branch, Snapshot, str] | None,
        effect: EffectRecord | None,
    ) -> None:
        """Commit, then update this object. Must not be cancelled in between, or the two would differ."""
        await self.behind.ended()
        if any(row.status is OpStatus.DONE for row in rows):
            self.behind.refuse_when_failed()
        if effect is not None or any(row.kind is OpKind.INTERRUPT for row in rows):
            rows = (*(row for read in self.streams.values() if (row := read()) is not None), *rows)
        numbered, made = self._numbered(rows, checkpoint)
        ledger = [] if effect is None else [self._settled(effect)]
        await self._store.commit(
            self._run.id,
            ops=numbered,
            checkpoints=made,
            effects=ledger,
            update=self._touch(),
            barrier=self._barrier(numbered, checkpoint),
            coming=self._announced(rows),
        )
        crash_points.point("rows durable")
        self._effects.update({one.key: one for one in ledger})
        self._know(numbered, checkpoint, made)
        for row in numbered:
            self._emit(OpDone(row))

    def _record_soon(
        self, rows: tuple[OpRecord, ...], checkpoint: tuple[Branch, Snapshot, str] | None, durable: Durable
    ) -> None:
        numbered, made = self._numbered(rows, checkpoint)
        done = self._store.commit_soon(
            self._run.id,
            ops=numbered,
            checkpoints=made,
            update=self._touch(),
            barrier=self._barrier(numbered, checkpoint),
            coming=self._announced(rows),
            linger_s=LINGER_S[durable],
        )
        self._know(numbered, checkpoint, made)
        self._soon[done] = durable
        done.add_done_callback(lambda done: self._came(done, numbered))

    def _came(self, done: asyncio.Future[None], numbered: Sequence[OpRecord]) -> None:
        del self._soon[done]
        if done.cancelled() or (error := done.exception()) is None:
            for row in numbered:
                self._emit(OpDone(row))
        else:
            self._lost = self._lost or error

    def _numbered(
        self, rows: tuple[OpRecord, ...], checkpoint: tuple[Branch, Snapshot, str] | None
    ) -> tuple[list[OpRecord], list[CheckpointRecord]]:
        self._refuse_when_over()
        numbered = [self._with_place(row).numbered(self._next_seq()) for row in rows]
        for row in numbered:
            if row.status in (OpStatus.DONE, OpStatus.FAILED):
                self.turns.numbered(row.key, row.seq, is_last=row.status is OpStatus.FAILED)
        made = [] if checkpoint is None else [self._checkpoint(numbered[-1], *checkpoint)]
        crash_points.point("rows numbered")
        return numbered, made

    def _with_place(self, row: OpRecord) -> OpRecord:
        """Return the row of a result with the place of its call, if results were handed out in between."""
        if self._resumed_at is not None and row.kind in IN_TURNS and row.status is OpStatus.DONE:
            row = replace(row, attrs={**row.attrs, RESUMED: repr(self._resumed_at)})
            self._resumed_at = None
        if row.status not in (OpStatus.DONE, OpStatus.FAILED) or (at := self._called_after.get(row.key)) is None:
            return row
        if at == self.turns.handed_out or row.kind not in IN_TURNS:
            return row
        return replace(row, attrs={**row.attrs, CALLED_AFTER: str(at)})

    def _know(
        self,
        numbered: Sequence[OpRecord],
        checkpoint: tuple[Branch, Snapshot, str] | None,
        made: Sequence[CheckpointRecord],
    ) -> None:
        done = [row for row in numbered if row.status is OpStatus.DONE]
        self._ops.update({row.key: self._without_long_result(row) for row in done})
        for row in done:
            self._failed.pop(row.key, None)  # as `standing_failures` reads these rows
        self._failed.update({row.key: row for row in numbered if row.attrs.get(STANDS) == "yes"})
        self._computed.update({row.lineage_key: row for row in done if row.lineage_key is not None})
        if checkpoint is not None:
            checkpoint[0].checkpoint = made[0].id

    def _without_long_result(self, row: OpRecord) -> OpRecord:
        """Return the row as it is kept in memory. A process does not ask again for what its own steps returned."""
        if row.kind is not OpKind.RUN or row.lineage_key is not None or len(row.result_json or "") < _LONG:
            return row
        self._dropped.add(row.key)
        return replace(row, result_json=None)

    def _barrier(
        self, rows: Sequence[OpRecord], checkpoint: tuple[Branch, Snapshot, str] | None
    ) -> Callable[[], None] | None:
        names_layers = checkpoint is not None or any(
            row.snapshot_out is not None and row.kind is not OpKind.COMMAND  # commands are run again if they are lost
            for row in rows
        )
        return self._flush if names_layers else None

    def _announced(self, rows: Sequence[OpRecord]) -> AnnouncedCommit | None:
        return next((one for row in rows if (one := self._coming.get(row.branch)) is not None), None)

    @contextmanager
    def ending(self, branch: BranchPath) -> Iterator[None]:
        """Announce the row of a step that has ended: seal with `flush=False` and record the row inside this block.
        Rows of other branches that become ready meanwhile wait a little, to share the commit."""
        with self._store.coming() as coming:
            self._coming[branch] = coming
            try:
                yield
            finally:
                del self._coming[branch]

    def _next_seq(self) -> int:
        """Return the next sequence number. The numbers of a failed commit stay unused."""
        self._seq += 1
        return self._seq

    def record_with_next(self, row: OpRecord) -> None:
        """Like `record` with `Durable.NEXT_ROW`, for code that cannot await."""
        self._record_soon((row,), None, Durable.NEXT_ROW)

    async def settle(self, effect: EffectRecord) -> None:
        """Commit the new status of an effect."""
        await self.record(effect=effect)

    def _settled(self, effect: EffectRecord) -> EffectRecord:
        before = self._effects.get(effect.key)
        if before is not None and effect.status not in LEGAL_SETTLEMENTS[before.status]:
            raise RuntimeError(f"effect {effect.key} is {before.status}: it cannot become {effect.status}")
        return effect

    async def record_llm(self, row: LLMRecord) -> None:
        await finish_despite_cancel(self._record_llm(row))

    async def _record_llm(self, row: LLMRecord) -> None:
        await self.behind.settled()
        self._refuse_when_over()
        numbered = replace(row, seq=self._next_seq())
        if row.step_key is None and (at := self._called_after.get(row.key)) not in (None, self.turns.handed_out):
            marks = {**json.loads(row.tags_json), CALLED_AFTER: str(at)}
            numbered = replace(numbered, tags_json=json.dumps(marks))
        self.turns.numbered(row.key, numbered.seq)
        crash_points.point("answer numbered")
        await self._store.commit(self._run.id, llm=[numbered], update=self._touch())
        crash_points.point("answer durable")
        self._llm[numbered.key] = numbered
        if self.cancelled_s(numbered.key) is not None:
            del self._failed[numbered.key]  # as `standing_failures` reads these rows
        self._emit(LLMDone(numbered))

    def close(self) -> None:
        """Refuse all further records: another process may work on the run from now on."""
        self._over = True

    @property
    def is_over(self) -> bool:
        return self._over

    def _refuse_when_over(self) -> None:
        if self._over:
            raise BranchReleased(f"run {self._run.id} has ended in this process: nothing more is recorded for it")
        self._refuse_what_does_not_follow()

    def _refuse_what_does_not_follow(self) -> None:
        """Raise the error of a failed commit: no row may follow rows that are missing."""
        if self._lost is not None:
            raise self._lost

    async def finish(
        self,
        update: RunUpdate,
        *,
        unasked: Sequence[str] = (),
        amended: Sequence[OpRecord] = (),
        last: bool = False,
    ) -> None:
        """Commit the final update of the run's own row.

        unasked: keys of questions that are not open any more. amended: rows with other attributes than before. last:
        give the run's lease back; nothing is recorded after that.
        """
        touched = self._touch()
        update = replace(update, consumed_s=touched.consumed_s, updated_at=touched.updated_at)
        await self._store.commit(self._run.id, unasked=unasked, amended=amended, update=update, leaves=last)
        self._over = self._over or last
        while self._soon:  # their rows were committed before this one or with it; wait for the callbacks
            await asyncio.wait(list(self._soon))
        self._refuse_what_does_not_follow()

    def _checkpoint(self, row: OpRecord, branch: Branch, snapshot: Snapshot, label: str) -> CheckpointRecord:
        parents = [branch.checkpoint]
        if (other := row.attrs.get("theirs_checkpoint")) is not None:
            parents.append(CheckpointId(other))
        return CheckpointRecord(
            id=checkpoint_id(self._run.id, row.seq),
            run_id=self._run.id,
            seq=row.seq,
            branch=branch.path,
            snapshot_id=snapshot.id,
            content_key=snapshot.content_key,
            parents=tuple(parents),
            created_at=self._clock(),
            label=label,
        )

    def _touch(self) -> RunUpdate:
        return RunUpdate(consumed_s=self.consumed_s(), updated_at=self._clock())


def base_checkpoint(run: RunId, snapshot: Snapshot, at: float) -> CheckpointRecord:
    """Return the first checkpoint of a run: its workspace. `at`: Unix seconds."""
    return CheckpointRecord(
        id=checkpoint_id(run, 0),
        run_id=run,
        seq=0,
        branch=ROOT,
        snapshot_id=snapshot.id,
        content_key=snapshot.content_key,
        parents=(),
        created_at=at,
        label="workspace",
    )
