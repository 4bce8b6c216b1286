"""Write a batch of jobs in one transaction, on a connection of the committing thread's own.

There is one `Job` for each commit. `commit_of_run` makes the job of a commit of a run. If all jobs are simple
commits, SQL of our own writes them (`raw_sql_commits.py`). Else, and if that is refused, each job does its work in
the general way, with SQLAlchemy, which raises what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from ramify.fork_engine import crash_points
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
from ramify.runtime.store import leases, rows, statements, tables
from ramify.runtime.store.blobs import RecentTexts
from ramify.runtime.store.database_errors import is_busy, is_connection_lost
from ramify.runtime.store.engines import driver_errors
from ramify.runtime.store.lease_keeper import LeaseKeeper
from ramify.runtime.store.leases import FileLock
from ramify.runtime.store.pooler_check import refused, session_of
from ramify.runtime.store.raw_sql_commits import (
    Refused,
    SimpleCommit,
    in_transactions,
    write_to_file,
    write_to_server,
)
from ramify.runtime.store.stored_texts import Digest, Named, Packed

Work: TypeAlias = Callable[[Connection], None]
Barrier: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One commit.

    work: writes the rows, inside the transaction.
    texts: the texts that the rows name; they are written before.
    barrier: makes durable what the rows name; called before the transaction.
    linger_s: how long the job may stay uncommitted, in seconds.
    undone: called after each rollback of a transaction with this job.
    """

    work: Work
    run: RunId | None = None
    texts: Sequence[Named] = ()
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
    change, names = update or RunUpdate(), rows.Names()
    texts = [op.result_json for op in ops if op.result_json is not None]
    texts += [text for call in llm for text in rows.texts(tables.llm, call)]
    texts += [text for effect in effects for text in rows.texts(tables.effects, effect)]
    texts += [text for text in (change.result_json, change.plan_json) if text is not None]
    texts += [] if begin is None else rows.texts(tables.runs, begin)

    def work(connection: Connection) -> None:
        if begin is not None:
            statements.put(connection, tables.runs, [rows.run_row(begin, names)])
        statements.update_run(connection, run_id, change, clock)
        if undone_after is not None:
            connection.execute(statements.void_answers_after(run_id, undone_after))
            connection.execute(statements.undo(run_id, undone_after))
        if unasked:
            connection.execute(statements.unask(run_id, unasked))
        for op in amended:
            connection.execute(statements.amend(op))
        statements.put(connection, tables.ops, [rows.op_row(op, names) for op in ops])
        statements.put(connection, tables.llm, [rows.llm_row(call, names) for call in llm])
        statements.put(connection, tables.checkpoints, [rows.checkpoint_row(one) for one in checkpoints])
        statements.put_effects(connection, effects)

    begins = begin is not None or change.plan_json is not None
    general = begin is not None or effects or undone_after is not None or unasked or amended
    simple = None if general else _simple_commit(run_id, ops, llm, checkpoints, change, names)
    unique = {one.name: one for one in map(names.of, texts)}  # the rows of many steps name the same short text
    return Job(work, run_id, list(unique.values()), barrier, simple=simple, begins=begins)


def _simple_commit(
    run_id: RunId,
    ops: Sequence[OpRecord],
    llm: Sequence[LLMRecord],
    checkpoints: Sequence[CheckpointRecord],
    change: RunUpdate,
    names: rows.Names,
) -> SimpleCommit | None:
    """Return what a commit writes, if it only adds rows and touches the run, or ends it without an error."""
    if change.updated_at is None or change.consumed_s is None:
        return None
    if (change.deadline_s, change.settings, change.plan_json) != (None, None, None):
        return None
    result = None if change.result_json is None else names(change.result_json)
    ended = None if change.status is None else (change.status.value, result)
    if ended is None and (change.error, result) != (None, None):
        return None
    if ended is not None and (change.status not in _ENDS or change.error != ""):
        return None
    new = {
        tables.ops: [rows.op_row(op, names) for op in ops],
        tables.llm: [rows.llm_row(call, names) for call in llm],
        tables.checkpoints: [rows.checkpoint_row(one) for one in checkpoints],
    }
    return SimpleCommit(run_id, new, touched=(change.updated_at, change.consumed_s), ended=ended)


_ENDS = (RunStatus.DONE, RunStatus.WAITING)
_MUCH = 8 << 20  # characters in one transaction


class BatchWriter:
    """Writes one batch at a time.

    keeper: has the leases of this process; a batch is written only with those of its runs. clock: returns Unix
    seconds. pooled: a pooler gives each transaction another session.
    """

    def __init__(self, engine: Engine, keeper: LeaseKeeper, *, clock: Callable[[], float], pooled: bool) -> None:
        self._engine, self._keeper, self._clock, self._pooled = engine, keeper, clock, pooled
        self._on_server = engine.dialect.name == "postgresql"
        self._batches = 0
        self._new_leases: dict[RunId, int] = {}  # the token of each lease that the present batch takes
        self._connection: Connection | None = None
        self._session = 0  # the connection's session on the server, which has our settings
        self._recent = RecentTexts()

    def next_batch(self) -> None:
        """Count a batch. Until the next call, `write` writes the same batch, at most once."""
        self._batches += 1
        self._new_leases = {}

    def write(self, jobs: Sequence[Job]) -> None:
        """Write the batch, and commit."""
        by_saver = any(job.by_saver for job in jobs)
        tokens = self._keeper.tokens({job.run for job in jobs}, every=by_saver)
        leaving = {job.run for job in jobs if job.leaves and job.run in tokens}
        connection = self._connected()
        for job in jobs:
            if job.begins and job.run is not None:
                self._recent.forget(job.run)
        texts = dict(
            self._recent.packed(job.run if job.run in tokens else None, each) for job in jobs for each in job.texts
        )
        with self._keeper.leaving(leaving):
            if not self._write_simple(connection, jobs, texts, tokens):
                self._write_general(connection, jobs, texts, tokens)
        for job in jobs:
            if job.takes is not None and job.run is not None:
                self._keeper.took(job.run, self._new_leases.get(job.run, 1))
            if job.takes is not None or job.run in tokens:
                self._recent.named(job.run, job.texts)
        if not self._on_server and sum(len(each.text) for job in jobs for each in job.texts) > _MUCH:
            self.disconnect()  # SQLite keeps the values of a statement until it gets others

    def recheck_texts(self, run: RunId) -> None:
        """Let only texts be bases that the run names now. Call it when the run's lease was taken: before, another
        process may have replaced its rows."""
        if not (known := self._recent.names(run)):
            return
        try:
            connection = self._connected()
            if self._on_server:
                in_transactions(connection)
            with connection.begin():
                self._recent.keep(run, statements.named_texts(connection, run, known))
        except (DBAPIError, StoreError):  # the next commit tries again, or raises the error
            self._recent.forget(run)
            self.disconnect()

    def disconnect(self) -> None:
        """Give the connection up. The next batch gets a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _write_general(
        self, connection: Connection, jobs: Sequence[Job], texts: Mapping[Digest, Packed], tokens: Mapping[RunId, int]
    ) -> None:
        owner = self._keeper.owner
        if self._on_server:
            in_transactions(connection)
        with connection.begin() as transaction:
            crash_points.point("transaction begun")
            if not self._may_write(connection, tokens):
                transaction.rollback()  # this batch was committed before; only the answer was lost
                return
            statements.put_blobs(connection, texts)
            for job in jobs:
                job.work(connection)
                if (run := job.run) is None:
                    continue
                if job.takes is not None:
                    self._new_leases[run] = leases.take(connection, run, owner, job.takes, self._clock())
                if job.leaves and run in tokens:
                    leases.release(connection, run, owner, tokens[run])
            crash_points.point("rows written")

    def _write_simple(
        self, connection: Connection, jobs: Sequence[Job], texts: Mapping[Digest, Packed], tokens: Mapping[RunId, int]
    ) -> bool:
        """Write a batch of simple commits. Returns False, with nothing written, if that does not do."""
        found = [job.simple for job in jobs if job.simple is not None]
        if len(found) < len(jobs) or self._pooled:
            return False
        owner, now = self._keeper.owner, self._clock()
        crash_points.point("transaction begun")
        try:
            if not self._on_server:
                before_commit = partial(crash_points.point, "rows written")
                write_to_file(connection, found, texts, tokens, owner, now, before_commit)
                return True
            session = write_to_server(connection, found, texts, tokens, owner, (owner.writer, self._batches, now))
        except Refused:
            return False
        except DBAPIError as error:
            if is_connection_lost(error) or is_busy(error):
                raise
            return False  # the general way raises what is wrong
        if session != self._session:
            raise refused(self._engine.url.render_as_string())
        return True

    def _may_write(self, connection: Connection, tokens: Mapping[RunId, int]) -> bool:
        """Check that the leases are ours until the commit, and on a server write the batch's number. Returns False if
        the number is there already. Raises `LeaseLost`."""
        if not self._on_server:
            if tokens:
                own: Any = connection.connection.dbapi_connection
                with driver_errors(connection):
                    ours = own.execute(*leases.fence(self._keeper.owner, tokens)).fetchall()
                if len(ours) < len(tokens):
                    self._keeper.note_lost(connection, tokens)
            return True
        values = {"id": self._keeper.owner.writer, "batch": self._batches, "at": self._clock()}
        query = f"{_BATCH_NUMBER}, 0"
        if tokens:
            fence, more = leases.fence(self._keeper.owner, tokens)
            values |= more
            query = f"WITH ours AS ({fence} FOR SHARE) {_BATCH_NUMBER}, (SELECT count(*) FROM ours)"
        found = connection.execute(text(query), values).first()
        if found is None:
            return False
        session, ours = found
        if not self._pooled and session != self._session:
            raise refused(self._engine.url.render_as_string())
        if ours < len(tokens):
            self._keeper.note_lost(connection, tokens)
        return True

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._engine.connect()
            try:
                if self._on_server:
                    with connection.begin():
                        self._session = session_of(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


_BATCH_NUMBER = (
    "INSERT INTO writers (id, batch, at) VALUES (:id, :batch, :at) "
    "ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, at = excluded.at WHERE writers.batch < excluded.batch "
    "RETURNING pg_backend_pid()"
)
