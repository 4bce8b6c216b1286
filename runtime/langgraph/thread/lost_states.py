"""Recompute a lost or damaged state of a thread from its journal and its checkpoints.

The journal says what made each state: a node, starting from the state where its superstep began, or a merge of
siblings. From the lost state, these rows are followed back to states that are complete, and computed again from
there. A node runs as it ran before (`app/rerun_node.py`), on the channel values, answers and writes of its own
checkpoint. The result must have the recorded content key. A journal row then names it as the stand-in for the lost
state: the next process finds it, and after a crash only what was not recomputed yet is left to do.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ramify.compiler.plan import OpKind, Plan, PlanOp
from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.estimates.cost_model import Choice
from ramify.runtime.estimates.recorded_runs import FILES, files_written
from ramify.runtime.events import Level
from ramify.runtime.execution.new_runs import Services
from ramify.runtime.langgraph.errors import StateGone
from ramify.runtime.records import AGAIN, BranchPath, CheckpointId, OpRecord, OpStatus, RunRecord, checkpoint_id
from ramify.runtime.worlds.recovery import LOST

_SHOWN = 4  # paths shown in an error


class CannotRecompute(Exception):
    """Says why a state cannot be recomputed."""


class RunWithLostStates(Protocol):
    """What recomputing a run's lost states needs of the run."""

    @property
    def record(self) -> RunRecord: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def services(self) -> Services: ...
    def row(self, kind: OpKind, op: PlanOp, key: str, branch: BranchPath, **changes: object) -> OpRecord: ...
    async def record_rows(self, *rows: OpRecord) -> None: ...
    def recovered(self, branch: BranchPath, level: Level, why: str, took_s: float) -> None: ...


R = TypeVar("R", bound=RunWithLostStates)
R_contra = TypeVar("R_contra", bound=RunWithLostStates, contravariant=True)


class RerunsNodes(Protocol[R_contra]):
    """Runs nodes of one thread again."""

    async def rerun_node(
        self, run: R_contra, rows: Sequence[OpRecord], row: OpRecord, kept: ExitStack
    ) -> SnapshotId | None:
        """Run a node as it ran when `row` was recorded. Return the state that it leaves, not yet flushed; None if the
        thread's checkpoints do not tell where it ran.

        `rows` are all rows of the run. `kept` protects the states that are sealed on the way from garbage collection.

        Raises `CannotRecompute`.
        """
        ...


@dataclass(eq=False, slots=True)
class LostStates(Generic[R]):
    """The lost states of one run and their stand-ins."""

    run: R
    rerunners: dict[str, RerunsNodes[R]] = field(default_factory=dict)  # by thread: what reruns its nodes
    _stand_ins: dict[str, SnapshotId] = field(default_factory=dict)  # by lost state: its stand-in
    # rows that were computed again for the present request, in order
    _again: list[OpRecord] = field(default_factory=list)
    _making: set[SnapshotId] = field(default_factory=set)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def note(self, row: OpRecord) -> None:
        """Learn stand-ins from a row of the journal."""
        if AGAIN in row.attrs and row.snapshot_out is not None:
            self._stand_ins[row.attrs[AGAIN]] = row.snapshot_out

    async def whole(self, id: SnapshotId) -> Snapshot:
        """Return the state ready to be mounted; recompute it if it is lost. Raises `StateGone`."""
        try:
            return await asyncio.to_thread(self._mountable, id)
        except LOST as error:
            why = str(error)
        if (found := await self._there(id)) is not None:  # a rerun node asks for it while the lock is held
            return found
        async with self._lock:
            if (found := await self._there(id)) is not None:
                return found
            self._again.clear()
            begun = time.perf_counter()
            try:
                made = await self.state(id)
            except CannotRecompute as refused:
                whole = await self._whole_before(id)
                raise StateGone(self.run.record.id, id, why, str(refused), whole) from refused
            told = f"{why}; computed again: {', '.join(_what(row) for row in self._again)}"
            branch = self._again[-1].branch
            self.run.recovered(branch, Level.LINEAGE, told, time.perf_counter() - begun)
            return made

    async def state(self, id: SnapshotId) -> Snapshot:
        """Return the state or its stand-in; recompute it if neither exists. Raises `CannotRecompute`."""
        if (found := await self._there(id)) is not None:
            return found
        rows = await self.run.services.store.ops(self.run.record.id)
        known = await self.run.services.store.checkpoints(self.run.record.id)
        content = {one.snapshot_id: one.content_key for one in known}
        marked = {one.seq for one in known}
        makers: dict[SnapshotId, Iterator[OpRecord]] = {}
        now: dict[SnapshotId, OpRecord] = {}
        todo = [id]
        while todo:
            lost = todo[-1]
            if await self._there(lost) is not None:  # several states needed it
                now.pop(todo.pop(), None)
                continue
            if lost in self._making:
                raise CannotRecompute(f"snapshot {lost[:12]} is needed to recompute itself")
            if lost not in now:
                now[lost] = self._next(makers.setdefault(lost, _makers(rows, marked, lost)), rows, lost)
            needs = [one for one in _needs(now[lost]) if await self._there(one) is None]
            if any(one in now for one in needs):
                del now[lost]  # these need the state themselves, so another row made it
            elif needs:
                todo += needs
            elif not await self._made(rows, now[lost], lost, content.get(lost, "")):
                del now[lost]
        made = await self._there(id)
        assert made is not None, "it was made"
        return made

    # Below: how it is done

    def _next(self, makers: Iterator[OpRecord], rows: Sequence[OpRecord], lost: SnapshotId) -> OpRecord:
        row = next(makers, None)
        if row is not None:
            return row
        if lost == self.run.record.base_snapshot:
            raise CannotRecompute("it is the workspace as the run began with it, which cannot be recomputed")
        if any(row.key.startswith("edit ") and row.snapshot_out == lost for row in rows):
            raise CannotRecompute(f"a person edited snapshot {lost[:12]}, which cannot be recomputed")
        known = next((row for row in rows if row.kind is OpKind.RUN and row.snapshot_out == lost), None)
        if known is None:
            raise CannotRecompute(f"nothing in the journal says how snapshot {lost[:12]} was made")
        what = _what(known)
        raise CannotRecompute(f"{what} would have to run again, and no kept checkpoint says on what it ran")

    async def _made(self, rows: Sequence[OpRecord], row: OpRecord, lost: SnapshotId, content: str) -> bool:
        """Compute a row's state again and record it as the stand-in for the lost one. Return False if nothing can
        compute it."""
        with ExitStack() as kept:
            begun = time.perf_counter()
            self._making.add(lost)
            try:
                made = (
                    await self._merged(row) if row.kind is OpKind.MERGE else await self._rerun_node(rows, row, kept)
                )
            finally:
                self._making.discard(lost)
            if made is None:
                return False
            if content and made.content_key != content:
                raise CannotRecompute(await self._differs(row, made, content))
            await self._stands_in(row, lost, made, time.perf_counter() - begun)
        self._again.append(row)
        return True

    async def _stands_in(self, row: OpRecord, lost: SnapshotId, made: Snapshot, took: float) -> None:
        choice = Choice("compute again", max(0.0, row.ended_at - row.started_at), None)
        stands = self.run.row(
            OpKind.SEAL,
            self.run.plan.catch_all,
            f"again {lost}|SEAL",
            row.branch,
            step=row.step,
            result_digest=made.content_key,
            snapshot_in=row.snapshot_in,
            snapshot_out=made.id,
            started_at=self.run.services.clock() - took,
            summary=f"{_what(row)} computed again, for lost {lost[:12]}",
            attrs={AGAIN: lost, **choice.attrs(took)},
        )
        await self.run.record_rows(stands)

    async def _merged(self, row: OpRecord) -> Snapshot | None:
        base, ours, theirs = [await self._there(id) for id in _needs(row)]
        if base is None or ours is None or theirs is None:
            return None
        try:
            return await asyncio.to_thread(self.run.services.snapshots.merge, base, ours, theirs, flush=False)
        except MergeConflict as conflict:
            raise CannotRecompute(f"{_what(row)} was run again, and did not merge: {conflict}") from conflict

    async def _rerun_node(self, rows: Sequence[OpRecord], row: OpRecord, kept: ExitStack) -> Snapshot | None:
        for rerunner in list(self.rerunners.values()):
            if (id := await rerunner.rerun_node(self.run, rows, row, kept)) is not None:
                return await asyncio.to_thread(self.run.services.snapshots.get, id)
        return None

    async def _differs(self, row: OpRecord, made: Snapshot, content: str) -> str:
        before, paths = set(json.loads(row.attrs.get(FILES, "[]"))), set[str]()
        if row.snapshot_in is not None and (entry := await self._there(row.snapshot_in)) is not None:
            paths = set(json.loads(files_written(self.run.services.snapshots, entry, made).get(FILES, "[]")))
        named = sorted(before ^ paths if before and before != paths else before | paths)
        at = f", the first of them {', '.join(named[:_SHOWN])}" if named else ""
        return (
            f"{_what(row)} was run again, and left other files than before (content {made.content_key[:12]}, "
            f"recorded {content[:12]}){at}: it depends on something other than its state and its world"
        )

    async def _there(self, id: SnapshotId) -> Snapshot | None:
        """Return the state or its stand-in; None if neither is complete."""
        for one in (id, self._stand_ins.get(id)):
            if one is not None:
                try:
                    return await asyncio.to_thread(self._mountable, one)
                except LOST:
                    continue
        return None

    def _mountable(self, id: SnapshotId) -> Snapshot:
        """Return the snapshot if all its layers exist. Their bytes are not verified: `ramify fsck` does that."""
        found = self.run.services.snapshots.get(id)
        self.run.services.snapshots.lower_dirs(found)
        self.run.services.snapshots.outside_dirs(found)
        return found

    async def _whole_before(self, lost: str) -> CheckpointId | None:
        """Return the newest checkpoint before a lost one at which LangGraph stood and whose files are complete."""
        run = self.run.record.id
        known = await self.run.services.store.checkpoints(run)
        at = next((number for number, one in enumerate(known) if one.snapshot_id == lost), len(known))
        path = known[at].branch if at < len(known) else "root"
        rows = await self.run.services.store.ops(run)
        joined = {row.attrs.get("checkpoint") for row in rows if row.kind is OpKind.RELEASE}
        between = {checkpoint_id(run, row.seq) for row in rows if row.kind is OpKind.MERGE} - joined
        for one in reversed(known[:at]):
            stood = f"{path}/".startswith(f"{one.branch}/") and one.id not in between
            if stood and await self._there(one.snapshot_id) is not None:
                return one.id
        return None


def _makers(rows: Sequence[OpRecord], marked: set[int], lost: SnapshotId) -> Iterator[OpRecord]:
    """Yield the rows that made a state, in order: rows inside a node before the node's own. The last ones are states
    that a node's code had made when it called a graph or task; they have checkpoints, whose numbers are in
    `marked`."""
    here = [row for row in rows if row.snapshot_out == lost and row.status is not OpStatus.FAILED]
    for row in here:
        if row.kind in (OpKind.RUN, OpKind.MERGE) and _needs(row) and lost not in _needs(row):
            yield row
    yield from (row for row in here if row.kind is OpKind.FORK and row.seq in marked and "|LEND|" in row.key)


def _needs(row: OpRecord) -> list[SnapshotId]:
    """Return the states that computing the row again needs; of a merge: base, ours, theirs. Empty if the row does not
    say."""
    if row.kind is OpKind.MERGE:
        told = [row.attrs.get("base"), row.attrs.get("ours", row.snapshot_in), row.attrs.get("theirs")]
        return [SnapshotId(one) for one in told if one is not None] if None not in told else []
    return [] if row.snapshot_in is None or row.kind is OpKind.FORK else [row.snapshot_in]


def _what(row: OpRecord) -> str:
    match row.kind:
        case OpKind.MERGE:
            return row.summary
        case OpKind.FORK:
            return f"the first part of node {row.summary.removeprefix('inside ')!r}"
    return f"node {row.step!r}"
