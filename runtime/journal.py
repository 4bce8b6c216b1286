"""A run's journal in memory: what is served from it, and the one place that commits to it.

A row's key is its place in the workflow: branch, plan operation, digest of the arguments, and which occurrence of
these three it is. It holds nothing of the run or of time, so a resumed or repeated run meets the same keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.types import Snapshot
from ramify.runtime.errors import BranchReleased
from ramify.runtime.events import Event, LLMDone, OpDone
from ramify.runtime.records import (
    ROOT,
    BranchPath,
    CheckpointId,
    CheckpointRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunUpdate,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.connect import to_its_end
from ramify.runtime.worlds import Branch


def checkpoint_id(run: RunId, seq: int) -> CheckpointId:
    return CheckpointId(hashlib.sha256(f"{run}#{seq}".encode()).hexdigest()[:24])


class Journal:
    """Serves what the run did already, and records what it does now, one transaction at a time."""

    def __init__(
        self,
        store: RunStore,
        run: RunRecord,
        *,
        ops: Sequence[OpRecord],
        llm: Sequence[LLMRecord],
        clock: Callable[[], float],
        timer: Callable[[], float] = time.monotonic,
        emit: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._emit = emit
        self._lock = asyncio.Lock()
        self._timer = timer
        self._begun = timer()
        self._ops = {row.key: row for row in ops if row.status is OpStatus.DONE}
        self._llm = {row.key: row for row in llm}
        self._seq = max(max((row.seq for row in ops), default=0), max((row.seq for row in llm), default=0))
        self._occurrences: Counter[str] = Counter()
        self._places: Counter[tuple[BranchPath, OpId]] = Counter()
        self._over = False
        self._last_sealed: dict[BranchPath, int] = {}
        for row in ops:
            if row.snapshot_out is not None:
                self._last_sealed[row.branch] = row.seq
            if (theirs := row.attrs.get("theirs_branch")) is not None:
                self._last_sealed[BranchPath(theirs)] = row.seq  # a merge freezes the branch that it takes in
            if row.kind is OpKind.FORK and row.status is OpStatus.DONE:
                self._places[row.branch, row.op_id] += 1

    def key(self, *parts: str) -> str:
        """A key for this place, told apart from earlier calls at the same place. Call it in program order."""
        place = "|".join(parts)
        occurrence = self._occurrences[place]
        self._occurrences[place] += 1
        return f"{place}|{occurrence}"

    def forget_place(self, *parts: str) -> None:
        """A step starts again: its inner keys count from nought."""
        prefix = "|".join(parts)
        for place in [p for p in self._occurrences if p.startswith(prefix)]:
            del self._occurrences[place]

    def next_place(self, branch: BranchPath, op: OpId) -> int:
        """Which of the forks of that operation on that branch the next new one is."""
        place = self._places[branch, op]
        self._places[branch, op] += 1
        return place

    def served(self, key: str, at: Snapshot | None = None) -> OpRecord | None:
        """The recorded outcome of an operation, where it still holds.

        It holds where the branch stands `at` the state that the operation began in: another order of the calls
        before it leads to another state, and then it is done again. A step that changed a world which no later
        snapshot of its branch holds has to run again, too.
        """
        row = self._ops.get(key)
        if row is None or (at is not None and row.snapshot_in not in (None, at.id)):
            return None
        lost = row.snapshot_in is not None and row.snapshot_out is None
        if lost and self._last_sealed.get(row.branch, 0) < row.seq:
            return None
        self._emit(OpDone(row, replayed=True))
        return row

    def knows(self, key: str) -> bool:
        """Whether an operation of that key was done, in whatever state."""
        return key in self._ops

    def row(self, key: str) -> OpRecord:
        """A DONE row of this run by its key."""
        return self._ops[key]

    def checkpoint_of(self, row: OpRecord) -> CheckpointId:
        """The checkpoint that a recorded row made."""
        return checkpoint_id(self._run.id, row.seq)

    def served_llm(self, key: str) -> LLMRecord | None:
        row = self._llm.get(key)
        if row is not None:
            self._emit(LLMDone(row, replayed=True))
        return row

    def consumed_s(self) -> float:
        """Seconds of the deadline used by this run so far, over all processes that worked on it."""
        return self._run.consumed_s + self._timer() - self._begun

    async def record(self, *rows: OpRecord, checkpoint: tuple[Branch, Snapshot, str] | None = None) -> None:
        """Commit rows, and the checkpoint that the last of them made, in one transaction.

        `checkpoint` is (branch, snapshot, label); the branch's position moves on once it is durable.
        """
        async with self._lock:
            await to_its_end(self._record(rows, checkpoint))

    async def _record(self, rows: tuple[OpRecord, ...], checkpoint: tuple[Branch, Snapshot, str] | None) -> None:
        """Not to be cancelled half way: what the database holds and what this object knows move on together."""
        self._refuse_when_over()
        numbered = [replace(row, seq=self._seq + i) for i, row in enumerate(rows, 1)]
        made: list[CheckpointRecord] = []
        if checkpoint is not None:
            branch, snapshot, label = checkpoint
            made.append(self._checkpoint(numbered[-1], branch, snapshot, label))
        await self._store.commit(self._run.id, ops=numbered, checkpoints=made, update=self._touch())
        self._seq += len(numbered)
        self._ops.update({row.key: row for row in numbered if row.status is OpStatus.DONE})
        if checkpoint is not None:
            checkpoint[0].checkpoint = made[0].id
        for row in numbered:
            self._emit(OpDone(row))

    async def record_llm(self, row: LLMRecord) -> None:
        async with self._lock:
            await to_its_end(self._record_llm(row))

    async def _record_llm(self, row: LLMRecord) -> None:
        self._refuse_when_over()
        numbered = replace(row, seq=self._seq + 1)
        await self._store.commit(self._run.id, llm=[numbered], update=self._touch())
        self._seq += 1
        self._llm[numbered.key] = numbered
        self._emit(LLMDone(numbered))

    def close(self) -> None:
        """Nothing is recorded after this: another process may work on the run from now on."""
        self._over = True

    def _refuse_when_over(self) -> None:
        if self._over:
            raise BranchReleased(f"run {self._run.id} is over in this process: nothing more is recorded for it")

    async def finish(self, update: RunUpdate) -> None:
        """The run's own row, last."""
        touched = self._touch()
        await self._store.commit(
            self._run.id, update=replace(update, consumed_s=touched.consumed_s, updated_at=touched.updated_at)
        )

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
    """The workspace as it was when the run began."""
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
