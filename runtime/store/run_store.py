"""RunStore: reads and writes the runtime's records, on SQLite or PostgreSQL.

One `commit` is atomic: the rows of an operation, the checkpoint that it made, the model calls that it used and the
run's own row are stored together or not at all. Concurrent commits share a transaction and its fsync. Readers, such
as `ramify ls` beside a run, never wait for the writer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import Pool, QueuePool

from ramify import paths
from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import LeaseHeld, LeaseLost, StoreError, UsedAfterFork
from ramify.runtime.records import (
    AnswerRecord,
    CheckpointRecord,
    EffectRecord,
    Lease,
    LLMRecord,
    OpRecord,
    RunId,
    RunRecord,
    RunRows,
    RunUpdate,
)
from ramify.runtime.store import address as addresses
from ramify.runtime.store import leases, rows, statements, tables
from ramify.runtime.store.batch_writer import Barrier, Job, commit_of_run
from ramify.runtime.store.database_errors import PATIENCE_S, as_store_errors
from ramify.runtime.store.engines import finish_despite_cancel, probe, reader, writer
from ramify.runtime.store.leases import FileLock
from ramify.runtime.store.migrate import bring_up_to_date
from ramify.runtime.store.pooler_check import shares_sessions
from ramify.runtime.store.raw_sql_commits import SimpleCommit
from ramify.runtime.store.run_committer import AnnouncedCommit, RunCommitter
from ramify.runtime.store.store_queries import StoreQueries
from ramify.runtime.store.stored_texts import Packed, named

T = TypeVar("T")

_LOOKS = 50  # at a lease, in the time that it lasts
_LOOK_AGAIN_S = 0.1  # for how long an answer about requests to stop serves the runs of this process
READS_END_S = 2.0  # for how long closing waits for reads that are under way
_STOP_S = 4.0  # for how long a request to cancel a run stands; it is repeated


class RunStore(StoreQueries):
    """The database of runs. Use it as an async context manager.

    address: a path or `sqlite:///FILE`, created with its folders if missing, or `postgresql://…`.
    clock: returns Unix seconds, for `updated_at`.
    patience_s: for how many seconds a lost connection to a server is retried.
    lease_s: for how many seconds this process may be stopped without losing the runs that it works on.

    Every method raises `StoreError`, which says what to do, if the database cannot be used.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        clock: Callable[[], float],
        patience_s: float = PATIENCE_S,
        lease_s: float = leases.LASTS_S,
    ) -> None:
        super().__init__(addresses.parse(address), patience_s)
        self._clock, self._lease_s = clock, lease_s
        self._writer: Engine | None = None
        self._committer: RunCommitter | None = None
        self._owner = os.getpid()
        self._looking, self._looked = asyncio.Lock(), 0.0  # when requests to stop were looked for
        self._leases: dict[RunId, Lease] = {}

    async def __aenter__(self) -> Self:
        with as_store_errors(self.address):
            if (file := self.address.file) is not None:
                paths.make_private(file.parent)
                await asyncio.to_thread(probe, file)
            pooled = self.address.on_server and await asyncio.to_thread(shares_sessions, self.address)
            self._reader, self._writer = reader(self.address, pooled=pooled), writer(self.address, pooled=pooled)
            try:
                await asyncio.to_thread(bring_up_to_date, self._writer, self.address)
            except BaseException:
                await self._dispose()
                raise
        self._owner = os.getpid()
        self._committer = RunCommitter(
            self._writer, clock=self._clock, patience_s=self._patience_s, lease_s=self._lease_s, pooled=pooled
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            return  # a forked child's copy: the parent closes the store
        committing, self._committer = self._opened(), None
        await finish_despite_cancel(self._close(committing))

    async def _close(self, committing: RunCommitter) -> None:
        await asyncio.to_thread(committing.close)
        await self._dispose()

    async def create_run(self, run: RunRecord, base: CheckpointRecord | None = None) -> None:
        """Insert a run and its base checkpoint. Raises `StoreError` if a run with that id exists."""

        def work(connection: Connection) -> None:
            statements.put(connection, tables.runs, [rows.run_row(run)])
            if base is not None:
                statements.put(connection, tables.checkpoints, [rows.checkpoint_row(base)])

        texts = list(map(named, rows.texts(tables.runs, run)))
        await self._write(Job(work, run.id, texts, begins=True))

    @asynccontextmanager
    async def beginning(
        self,
        run: RunRecord,
        base: CheckpointRecord,
        lock: FileLock = FileLock(),  # noqa: B008
    ) -> AsyncIterator[None]:
        """Insert a run and its base checkpoint, and have the run's lease in this block, as `held` does. The lease is
        taken in the transaction that inserts the run, so nobody else can have worked on it before."""

        def work(connection: Connection) -> None:
            statements.put(connection, tables.runs, [rows.run_row(run)])
            statements.put(connection, tables.checkpoints, [rows.checkpoint_row(base)])

        names = rows.Names()
        new = {tables.runs: [rows.run_row(run, names)], tables.checkpoints: [rows.checkpoint_row(base)]}
        simple = SimpleCommit(run.id, new, taken=lock.folder)
        texts = list(map(names.of, rows.texts(tables.runs, run)))
        try:
            await self._write(Job(work, run.id, texts, simple=simple, takes=lock, begins=True))
            yield
        finally:
            await self._let_go(run.id)

    async def put_rows(self, found: RunRows, *, replace: bool = False) -> None:
        """Insert all rows of a run, in one transaction. With `replace`, the rows that are here are deleted first;
        without it, raises `StoreError` if the run exists."""

        texts = list(map(named, statements.all_texts(found)))

        def work(connection: Connection) -> None:
            if replace:
                statements.delete_run(connection, found.run.id)  # and with it texts that were put before
                statements.put_blobs(
                    connection, {one.name: Packed(one.text, beginnings=one.beginnings) for one in texts}
                )
            statements.put_rows(connection, found)

        await self._write(Job(work, found.run.id, texts, begins=True))

    async def delete_run(self, run_id: RunId) -> None:
        """Delete a run with all its rows, and the texts that no other row names."""

        def work(connection: Connection) -> None:
            statements.delete_run(connection, run_id)
            connection.execute(tables.leases.delete().where(tables.leases.c.run_id == run_id))

        await self._write(Job(work))

    @asynccontextmanager
    async def held(self, run_id: RunId, lock: FileLock = FileLock()) -> AsyncIterator[None]:  # noqa: B008
        """Have the run's lease in this block: no other process works on the run. `lock`: what is known from the run's
        file lock (`run_locks.py`).

        Raises `LeaseHeld`, a `RunLocked`, when another process renews the lease. A lease whose owner was killed on
        another machine is waited for. In the block, every write of the run raises `LeaseLost` once another process
        has taken it, because this one was stopped or cut off for too long.
        """
        await self._hold(run_id, lock)
        try:
            yield
        finally:
            await self._let_go(run_id)

    async def _let_go(self, run_id: RunId) -> None:
        committing = self._committer if os.getpid() == self._owner else None
        if committing is not None and committing.keeper.knows(run_id):  # a closed store has given it back
            await self._wait(asyncio.wrap_future(committing.let_go(run_id)))

    async def _hold(self, run_id: RunId, lock: FileLock) -> None:
        seen: tuple[int, int] | None = None
        until = time.monotonic() + 2 * self._lease_s  # a frozen clock must not make this wait for ever
        while True:
            try:
                await self._wait(asyncio.wrap_future(self._opened().hold(run_id, lock)))
                return
            except LeaseHeld as error:
                is_renewed = seen is not None and error.renewed != seen
                if not lock.taken or is_renewed or time.monotonic() > until:
                    raise
                seen = error.renewed
            await asyncio.sleep(self._lease_s / _LOOKS)

    def loss_of(self, run_id: RunId) -> LeaseLost | None:
        """Return the error if another process is known to have taken over a run that this one works on."""
        return self._opened().keeper.loss_of(run_id)

    async def leases(self, run_ids: Iterable[RunId]) -> dict[RunId, Lease]:
        """Return who works on each of these runs, or did last."""
        wanted, now = list(run_ids), self._clock()
        return await self._read(lambda connection: connection.run_sync(leases.find, wanted, now))

    async def end_lease(self, run_id: RunId, host: str, pid: int) -> bool:
        """End the lease that process `pid` of `host` has of a run, so that another process need not wait until it
        expires. Call it only if that process is known to be gone, or is to lose the run: what it still wants to write
        is refused. Returns False if that process does not have the lease."""
        with as_store_errors(self.address):
            return await asyncio.to_thread(self._opened().keeper.end, run_id, host, pid)

    @asynccontextmanager
    async def requesting_stop(self, run_id: RunId) -> AsyncIterator[None]:
        """In this block, ask the process that works on the run to cancel it. The request ends shortly after this
        process. If the database is a file, `run_locks.py` does the same."""
        if not self.address.on_server:
            yield
            return
        ended = asyncio.Event()
        await self._ask_to_stop(run_id, _STOP_S)
        asking = asyncio.create_task(self._keep_asking(run_id, ended))
        try:
            yield
        finally:
            ended.set()
            await asyncio.wait([asking])
            await self._ask_to_stop(run_id, 0.0)

    async def _keep_asking(self, run_id: RunId, ended: asyncio.Event) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _STOP_S / 2)
                return
            with suppress(StoreError):  # the caller, who looks at the run meanwhile, meets the error as well
                await self._ask_to_stop(run_id, _STOP_S)

    async def _ask_to_stop(self, run_id: RunId, for_s: float) -> None:
        with as_store_errors(self.address):
            await asyncio.to_thread(self._opened().keeper.ask_to_stop, run_id, for_s)

    async def stop_requested(self, run_id: RunId) -> bool:
        """Whether a process on any machine is in a `requesting_stop` block for the run."""
        if not self.address.on_server:
            return False
        async with self._looking:  # one task asks for all runs of this process
            if time.monotonic() - self._looked > _LOOK_AGAIN_S:
                self._leases = {}
            lease = self._leases.pop(run_id, None)  # once: the next question of this run is about a later time
            if lease is None or lease.is_asked_to_stop:  # a request that has ended must not stop a run
                self._leases = await self.leases({run_id, *self._opened().keeper.held()})
                self._looked = time.monotonic()
                lease = self._leases.pop(run_id, None)
        return lease is not None and lease.is_asked_to_stop

    def coming(self) -> AnnouncedCommit:
        """Announce a commit that follows soon; other commits wait a little to share its fsync."""
        return self._opened().coming()

    async def commit(
        self,
        run_id: RunId,
        *,
        ops: Sequence[OpRecord] = (),
        llm: Sequence[LLMRecord] = (),
        checkpoints: Sequence[CheckpointRecord] = (),
        effects: Sequence[EffectRecord] = (),
        undone_after: int | None = None,
        unasked: Sequence[str] = (),
        amended: Sequence[OpRecord] = (),
        update: RunUpdate | None = None,
        barrier: Barrier | None = None,
        coming: AnnouncedCommit | None = None,
        begin: RunRecord | None = None,
        leaves: bool = False,
    ) -> None:
        """Write all of this in one transaction. Durable when this returns.

        ops, llm, checkpoints, effects: new rows; effects replace existing ones with the same key.
        undone_after: DONE rows with a higher number become UNDONE, and answers to later questions become void.
        unasked: keys of questions that are not open any more.
        amended: recorded rows with other attributes than before.
        update: changes of the run's own row.
        barrier: makes durable what the rows name; called once for all commits of a transaction with the same barrier.
        coming: the announcement that this commit fulfils.
        begin: the run's own row, for a run that starts with a journal (a fork).
        leaves: give the run's lease back. Nothing more may be written for the run.

        A cancelled caller waits for the end of the transaction, so that it knows what is on disk. A run that becomes
        RUNNING loses its error. Raises `RunNotFound`, and `StoreError` for an illegal change of status, a row of
        another run, or a sequence number that is taken.
        """
        job = commit_of_run(
            run_id,
            self._clock,
            ops=ops,
            llm=llm,
            checkpoints=checkpoints,
            effects=effects,
            undone_after=undone_after,
            unasked=unasked,
            amended=amended,
            update=update,
            barrier=barrier,
            begin=begin,
        )
        simple = job.simple and replace(job.simple, left=leaves)
        await self._write(replace(job, leaves=leaves, simple=simple), coming)

    def commit_soon(
        self,
        run_id: RunId,
        *,
        ops: Sequence[OpRecord],
        checkpoints: Sequence[CheckpointRecord] = (),
        update: RunUpdate | None = None,
        barrier: Barrier | None = None,
        coming: AnnouncedCommit | None = None,
        linger_s: float,
    ) -> asyncio.Future[None]:
        """Like `commit`, without waiting: the rows become durable with the next commit, after `linger_s` at the
        latest. Returns a future that is done then."""
        job = commit_of_run(run_id, self._clock, ops=ops, checkpoints=checkpoints, update=update, barrier=barrier)
        durable = asyncio.wrap_future(self._opened().submit(replace(job, linger_s=linger_s), coming))
        return asyncio.ensure_future(self._wait(durable))

    def lead(self, address: str | Path) -> RunCommitter | None:
        """Return the committer if that address is this database, so that others can submit their rows to it."""
        other = addresses.parse(address)
        if self.address.file is None or other.file is None:
            return self._opened() if other.url == self.address.url else None
        same = other.file.exists() and self.address.file.exists() and other.file.samefile(self.address.file)
        return self._opened() if same else None

    async def put_answers(self, run_id: RunId, answers: Sequence[AnswerRecord]) -> AnswerRecord | None:
        """Store answers to a run's questions durably. If one of the questions has an answer already, store none of
        them and return that answer."""

        def work(connection: Connection) -> None:
            for answer in answers:
                if not statements.put_answer(connection, answer):
                    raise _Taken(answer.key)

        try:
            await self._write(
                Job(work, run_id, [named(text) for one in answers for text in rows.texts(tables.answers, one)])
            )
        except _Taken as taken:
            return next(one for one in await self.answers(run_id) if one.key == taken.key)
        return None

    async def void_answers(self, run_id: RunId, keys: Sequence[str]) -> None:
        """Void answers: if their questions are asked again, they take new answers."""

        def work(connection: Connection) -> None:
            connection.execute(statements.void_answers(run_id, keys))

        await self._write(Job(work, run_id))

    async def _dispose(self) -> None:
        if self._writer is not None:
            self._writer.dispose()
        if self._reader is not None:
            await _reads_end(self._reader.pool)
            await self._reader.dispose()
        self._reader = self._writer = None

    def _opened(self) -> RunCommitter:
        refuse_in_child(self._owner, "the database", UsedAfterFork)
        if self._committer is None:
            raise StoreError(f"the database {self.address} is not open: use `async with RunStore(…)`")
        return self._committer

    async def _write(self, job: Job, coming: AnnouncedCommit | None = None) -> None:
        await self._wait(asyncio.wrap_future(self._opened().submit(job, coming)))

    async def _wait(self, durable: asyncio.Future[None]) -> None:
        with as_store_errors(self.address):
            await finish_despite_cancel(durable)

    def _refuse_when_closed(self) -> None:
        self._opened()


async def _reads_end(pool: Pool) -> None:
    """Wait until no read is under way: one that outlived the pool would leave its connection open. Reads that were
    cancelled still give theirs back. After a while the pool is closed all the same."""
    if isinstance(pool, QueuePool):
        until = asyncio.get_running_loop().time() + READS_END_S
        while pool.checkedout() and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  the pool tells nobody
            await asyncio.sleep(0.002)


class _Taken(Exception):
    """The question with that key has an answer already."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)
