"""What the committing thread gets: one `Job` for each commit. `commit_of_run` makes the job of a commit of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Connection

from ramify.runtime.errors import StoreError
from ramify.runtime.records import (
    CheckpointRecord,
    EffectRecord,
    LLMRecord,
    OpRecord,
    RunId,
    RunRecord,
    RunStatus,
    RunUpdate,
)
from ramify.runtime.store import rows, statements, tables
from ramify.runtime.store.leases import FileLock
from ramify.runtime.store.raw_sql_commits import SimpleCommit

Work: TypeAlias = Callable[[Connection], None]
Barrier: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One commit.

    work: writes the rows, inside the transaction.
    texts: long texts that the rows name; they are written before.
    barrier: makes durable what the rows name; called before the transaction.
    linger_s: how long the job may stay uncommitted, in seconds.
    undone: called after each rollback of a transaction with this job.
    """

    work: Work
    run: RunId | None = None
    texts: Sequence[str] = ()
    barrier: Barrier | None = None
    linger_s: float = 0.0
    undone: Callable[[], None] | None = None
    simple: SimpleCommit | None = None  # what `work` writes, if it only adds rows and touches the run's own
    takes: FileLock | None = None  # the run is new, and its lease is taken
    leaves: bool = False  # the run ends, and its lease is given back
    begins: bool = False  # the run is new, or gets another plan: its earlier texts must not be bases
    by_saver: bool = False  # LangGraph's, for a thread of any run


def commit_of_run(
    run_id: RunId,
    clock: Callable[[], float],
    *,
    ops: Sequence[OpRecord],
    llm: Sequence[LLMRecord] = (),
    checkpoints: Sequence[CheckpointRecord] = (),
    effects: Sequence[EffectRecord] = (),
    undone_after: int | None = None,
    unasked: Sequence[str] = (),
    amended: Sequence[OpRecord] = (),
    update: RunUpdate | None = None,
    barrier: Barrier | None = None,
    begin: RunRecord | None = None,
) -> Job:
    """Return the job that writes all of this for a run; see `RunStore.commit`."""
    owners = (
        {op.run_id for op in (*ops, *amended)} | {call.run_id for call in llm} | {one.run_id for one in checkpoints}
    )
    owners |= {effect.run_id for effect in effects}
    strangers = owners - {run_id}
    if strangers:
        raise StoreError(f"a commit of run {run_id} holds rows of {', '.join(sorted(strangers))}")
    change = update or RunUpdate()
    long_texts = [text for op in ops for text in rows.texts(tables.ops, op)]
    long_texts += [text for call in llm for text in rows.texts(tables.llm, call)]
    long_texts += [text for effect in effects for text in rows.texts(tables.effects, effect)]
    long_texts += [text for text in (change.result_json, change.plan_json) if text is not None]
    long_texts += [] if begin is None else rows.texts(tables.runs, begin)

    def work(connection: Connection) -> None:
        if begin is not None:
            statements.put(connection, tables.runs, [rows.run_row(begin)])
        statements.update_run(connection, run_id, change, clock)
        if undone_after is not None:
            connection.execute(statements.void_answers_after(run_id, undone_after))
            connection.execute(statements.undo(run_id, undone_after))
        if unasked:
            connection.execute(statements.unask(run_id, unasked))
        for op in amended:
            connection.execute(statements.amend(op))
        statements.put(connection, tables.ops, [rows.op_row(op) for op in ops])
        statements.put(connection, tables.llm, [rows.llm_row(call) for call in llm])
        statements.put(connection, tables.checkpoints, [rows.checkpoint_row(one) for one in checkpoints])
        statements.put_effects(connection, effects)

    begins = begin is not None or change.plan_json is not None
    general = begin is not None or effects or undone_after is not None or unasked or amended
    simple = None if general else _simple_commit(run_id, ops, llm, checkpoints, change)
    return Job(work, run_id, long_texts, barrier, simple=simple, begins=begins)


def _simple_commit(
    run_id: RunId,
    ops: Sequence[OpRecord],
    llm: Sequence[LLMRecord],
    checkpoints: Sequence[CheckpointRecord],
    change: RunUpdate,
) -> SimpleCommit | None:
    """Return what a commit writes, if it only adds rows and touches or ends the run."""
    if change.updated_at is None or change.consumed_s is None:
        return None
    ends = RunUpdate(
        RunStatus.DONE, change.result_json, "", consumed_s=change.consumed_s, updated_at=change.updated_at
    )
    touches = RunUpdate(consumed_s=change.consumed_s, updated_at=change.updated_at)
    if change != touches and (change != ends or change.result_json is None):
        return None
    new = {
        tables.ops: [rows.op_row(op) for op in ops],
        tables.llm: [rows.llm_row(call) for call in llm],
        tables.checkpoints: [rows.checkpoint_row(one) for one in checkpoints],
    }
    result = None if change.result_json is None else rows.digest(change.result_json)
    return SimpleCommit(run_id, new, touched=(change.updated_at, change.consumed_s), done=result)
