"""Fork a run: start a new run from a checkpoint of an existing one.

The new run has its own id, and a copy of the other run's journal up to the checkpoint. Forking executes nothing and
copies no files, since the copied rows name the same snapshots. When the fork is resumed, the journal answers for the
copied part and the rest is executed. Irreversible steps are then restricted as on a branch (`InFork`), because the
original run may have performed the same effect already. `for_real` lifts that restriction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.errors import RunError
from ramify.runtime.records import (
    DECORATORS,
    CheckpointId,
    CheckpointRecord,
    EffectRecord,
    EffectStatus,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunStatus,
    checkpoint_id,
)

if TYPE_CHECKING:
    from ramify.runtime.store import RunStore

FORKED = "forked"
"""The key of the row that names the run from which this run was forked. Only forked runs have one."""


def ancestor_runs(ops: Iterable[OpRecord]) -> list[RunId]:
    """Return the ids of the runs that this run was forked from, nearest first."""
    forks = [row for row in ops if row.key == FORKED]
    return [RunId(row.attrs["from_run"]) for row in reversed(forks)]


def journal_as_of(ops: Sequence[OpRecord], seq: int) -> list[OpRecord]:
    """Return the journal as of row `seq`: rows that were undone only later have the status DONE in it."""
    back = {row.seq: row.attrs["to"] for row in ops if row.kind is OpKind.RESTORE and "to" in row.attrs}
    if not back:
        return [row for row in ops if row.seq <= seq]
    ids = {checkpoint_id(row.run_id, row.seq): row.seq for row in ops}
    undone = [(ids.get(CheckpointId(to), 0), restore) for restore, to in back.items() if restore <= seq]

    def status(row: OpRecord) -> OpStatus:
        if row.status is not OpStatus.UNDONE:
            return row.status
        if any(to < row.seq < restore for to, restore in undone):
            return OpStatus.UNDONE
        return OpStatus.READ if row.kind is OpKind.CALL_LLM else OpStatus.DONE

    return [replace(row, status=status(row)) for row in ops if row.seq <= seq]


_CHECKPOINT_ATTRIBUTES = ("theirs_checkpoint", "checkpoint", "to")
"""Row attributes whose value is a checkpoint id of the row's own run."""

_COPIED = (EffectStatus.DONE, EffectStatus.APPROVED, EffectStatus.COMPENSATING, EffectStatus.COMPENSATED)
"""Effects with these statuses are copied into a fork, if the fork's journal has their steps."""


@dataclass(frozen=True, slots=True)
class ForkedRun:
    """The start of a forked run.

    run: the new run's row.
    journal: the rows of the original run.
    names: checkpoint ids of the original run to those of the new one.
    here: the checkpoint at which the new run begins.
    """

    run: RunRecord
    journal: Sequence[OpRecord]
    names: Mapping[CheckpointId, CheckpointId]
    here: CheckpointRecord

    def name(self, checkpoint: str) -> CheckpointId:
        """Return the new run's id for a checkpoint of the original run."""
        return self.names.get(CheckpointId(checkpoint), CheckpointId(checkpoint))


ThreadCopy = Callable[[ForkedRun], Awaitable[str]]
"""Copies the LangGraph thread of the run and returns the new thread's id."""


async def fork_run(
    store: RunStore,
    record: RunRecord,
    at: CheckpointRecord,
    new: RunId,
    *,
    clock: Callable[[], float],
    edited: Snapshot | None = None,
    theirs: CheckpointRecord | None = None,
    for_real: bool = False,
    thread: ThreadCopy | None = None,
) -> RunRecord:
    """Record a new run that continues from checkpoint `at` of the run `record`, and return its row. Resume it to run.

    clock: returns Unix seconds.
    edited: a snapshot to use in place of the checkpoint's.
    theirs: the checkpoint that was merged into `edited`, if any.
    for_real: perform irreversible steps as in an ordinary run.
    thread: copies the thread of a LangGraph run, whose state is not only in the journal. Called before any write.

    Raises `RunError` if the checkpoint belongs to another run, or if a LangGraph run has no thread to copy.
    """
    _check_forkable(record, at, thread)
    ops, llm = await store.ops(record.id), await store.llm(record.id)
    checkpoints = await store.checkpoints(record.id)
    names = {one.id: checkpoint_id(new, one.seq) for one in checkpoints}
    kept = [_op(row, new, names) for row in journal_as_of(ops, at.seq)]
    states = [_checkpoint(one, new, names) for one in checkpoints if one.seq <= at.seq]
    now = clock()
    if edited is not None:
        kept = _with_edited_state(kept, at, edited)
        states = [_edited_checkpoint(one, edited) if one.seq == at.seq else one for one in states]
    stands = next(one for one in states if one.seq == at.seq)
    calls = [replace(call, run_id=new) for call in llm if call.seq <= at.seq]
    seq = max([row.seq for row in kept] + [call.seq for call in calls], default=0) + 1
    said = _fork_row(record, at, stands, seq, now, theirs, for_real=for_real)
    done = {row.key for row in kept if row.status is OpStatus.DONE}
    fork = replace(
        record,
        id=new,
        base_snapshot=stands.snapshot_id if at.seq == 0 else record.base_snapshot,
        status=RunStatus.FORKED,
        created_at=now,
        updated_at=now,
        consumed_s=0.0,
        result_json=None,
        error=None,
    )
    here = _start_checkpoint(stands, said, theirs)
    if thread is not None:
        fork = replace(fork, thread_id=await thread(ForkedRun(fork, ops, names, here)))
    await store.commit(
        new,
        begin=fork,
        ops=[*kept, said],
        llm=calls,
        checkpoints=[*states, here],
        effects=_effects(await store.effects(record.id), new, done),
    )
    return fork


def _check_forkable(record: RunRecord, at: CheckpointRecord, thread: ThreadCopy | None) -> None:
    """Raise `RunError` if a run cannot be forked at a checkpoint."""
    if at.run_id != record.id:
        raise RunError(
            f"checkpoint {at.id} is run {at.run_id}'s, not {record.id}'s: name one that `ramify log` shows"
        )
    if record.frontend != DECORATORS and (record.thread_id is None or thread is None):
        raise RunError(
            f"run {record.id} belongs to a LangGraph graph that kept no checkpoints: compile the graph with "
            "checkpointer=ramify.graph.saver(), and invoke it with a thread_id"
        )


def merge_base(ours: Iterable[CheckpointRecord], theirs: Iterable[CheckpointRecord]) -> SnapshotId | None:
    """Return the latest snapshot that both sides descend from, or None. Each side is a checkpoint with its ancestors.

    Compares snapshots, not checkpoints: forked runs share snapshots but have checkpoint ids of their own.
    """
    shared = {one.snapshot_id for one in theirs}
    common = [one for one in ours if one.snapshot_id in shared]
    return max(common, key=lambda one: one.seq).snapshot_id if common else None


def _with_edited_state(rows: Sequence[OpRecord], at: CheckpointRecord, edited: Snapshot) -> list[OpRecord]:
    """Replace the checkpoint's snapshot by `edited`, in the row that made it and in the rows that kept it."""
    changed: dict[int, OpRecord] = {}
    latest_first = [row for row in reversed(rows) if row.branch == at.branch]
    for row, before in zip(latest_first, [*latest_first[1:], None], strict=False):
        if row.snapshot_out != at.snapshot_id:
            break
        began_there = before is not None and before.snapshot_out == row.snapshot_in == at.snapshot_id
        changed[row.seq] = replace(
            row, snapshot_out=edited.id, snapshot_in=edited.id if began_there else row.snapshot_in
        )
    return [changed.get(row.seq, row) for row in rows]


def _op(row: OpRecord, new: RunId, names: dict[CheckpointId, CheckpointId]) -> OpRecord:
    attrs = {
        name: names.get(CheckpointId(value), value) if name in _CHECKPOINT_ATTRIBUTES else value
        for name, value in row.attrs.items()
    }
    return replace(row, run_id=new, attrs=attrs)


def _checkpoint(one: CheckpointRecord, new: RunId, names: dict[CheckpointId, CheckpointId]) -> CheckpointRecord:
    parents = tuple(names.get(parent, parent) for parent in one.parents)
    return replace(one, id=names[one.id], run_id=new, parents=parents)


def _edited_checkpoint(one: CheckpointRecord, snapshot: Snapshot) -> CheckpointRecord:
    return replace(one, snapshot_id=snapshot.id, content_key=snapshot.content_key, label=f"{one.label}, edited")


def _fork_row(
    record: RunRecord,
    at: CheckpointRecord,
    stands: CheckpointRecord,
    seq: int,
    now: float,
    theirs: CheckpointRecord | None,
    *,
    for_real: bool,
) -> OpRecord:
    """Return the row that records which run this one was forked from, and whether for real."""
    return OpRecord(
        run_id=stands.run_id,
        seq=seq,
        key=FORKED,
        op_id=OpId("fork"),
        kind=OpKind.RESTORE,
        branch=stands.branch,
        status=OpStatus.DONE,
        snapshot_in=stands.snapshot_id,
        snapshot_out=stands.snapshot_id,
        started_at=now,
        ended_at=now,
        summary=f"forked from {record.id} at {at.id[:10]}" + (f", merged with {theirs.id[:10]}" if theirs else ""),
        attrs={"from_run": record.id, "from_checkpoint": at.id, "for_real": "yes" if for_real else "no"},
    )


def _start_checkpoint(stands: CheckpointRecord, said: OpRecord, theirs: CheckpointRecord | None) -> CheckpointRecord:
    """Return the checkpoint at which the fork begins, under an id of the new run."""
    return replace(
        stands,
        id=checkpoint_id(stands.run_id, said.seq),
        seq=said.seq,
        parents=(stands.id, *(() if theirs is None else (theirs.id,))),
        created_at=said.ended_at,
        label=said.summary,
    )


def _effects(ledger: Iterable[EffectRecord], new: RunId, done: set[str]) -> list[EffectRecord]:
    """Copy the effects whose steps are done in the fork too, under their original idempotency keys. Earlier attempts
    stay with the original run."""
    return [replace(one, run_id=new, attempt=1) for one in ledger if one.key in done and one.status in _COPIED]
