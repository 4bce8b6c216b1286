"""Group commits of the run store: one thread writes, and all jobs that wait when a transaction begins share it.

**Siblings.** Steps that end at about the same time share a transaction and its fsync. Each step announces its commit
when its code has ended (`coming`), before its world is sealed. A batch waits for announced commits, but not longer
than about the time of an fsync. The layers of the whole batch are flushed once (`barrier`), before the rows that name
them.

**Lingering jobs** (`linger_s`), for which nobody waits, stay in the queue until an urgent job comes or their time is
up, so that they share that transaction. The order of submission is kept. LangGraph's saver submits its rows here if
its
tables are in the same database: then a node's row, its writes and the checkpoint are one commit.

**Lost connections** to a server. The batch is retried, with growing pauses, for up to `patience_s`. If the answer to
a commit was lost, the retry finds out whether the commit took place: each batch first writes its number under this
writer's id.

**Fencing.** A batch with rows of a run that this process works on is written only while it has the run's lease
(`leases.py`), which is checked in the same transaction. A job of LangGraph's saver does not say whose it is: it is
written while no lease was lost.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from ramify.fork_engine import crash_points
from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import StoreError, UsedAfterFork
from ramify.runtime.records import RunId
from ramify.runtime.store import leases, statements
from ramify.runtime.store.blobs import RecentTexts
from ramify.runtime.store.database_errors import is_busy, is_connection_lost
from ramify.runtime.store.engines import driver_errors
from ramify.runtime.store.lease_keeper import LeaseKeeper
from ramify.runtime.store.leases import FileLock
from ramify.runtime.store.plain_rows import PlainRows, Refused, in_transactions, write_to_file, write_to_server
from ramify.runtime.store.pooler_check import refused, session_of
from ramify.runtime.store.retries import FIRST_PAUSE_S as FIRST_PAUSE_S
from ramify.runtime.store.retries import LONGEST_PAUSE_S as LONGEST_PAUSE_S
from ramify.runtime.store.retries import PATIENCE_S as PATIENCE_S
from ramify.runtime.store.retries import Retries
from ramify.runtime.store.stored_texts import Digest, Packed

Work = Callable[[Connection], None]
Barrier = Callable[[], None]

LINGER_S = 0.005
JOIN_NEXT_COMMIT_S = 0.1  # how long a lingering job waits for a commit that is expected soon


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
    plain: PlainRows | None = None  # what `work` writes, if it only adds rows and touches the run's own
    takes: FileLock | None = None  # the run is new, and its lease is taken
    leaves: bool = False  # the run ends, and its lease is given back
    begins: bool = False  # the run is new, or gets another plan: its earlier texts must not be bases
    by_saver: bool = False  # LangGraph's, for a thread of any run


@dataclass(eq=False, slots=True)
class _Waiting:
    job: Job
    due: float = 0.0
    alone: Callable[[], None] | None = None  # work with a lease, outside a transaction of ours
    token: int = 1  # of the lease that the job takes
    future: Future[None] = field(default_factory=Future)


_MUCH = 8 << 20  # characters in one transaction


class RunCommitter:
    """Commits jobs in groups, in a thread of its own. Any thread may submit; `close` commits all that is queued.

    clock: returns Unix seconds. timer: returns monotonic seconds.
    linger_s: how long a batch waits for announced commits. patience_s: how long a lost server is retried.
    lease_s: for how long this process may be stopped without losing its runs. pooled: a pooler gives each transaction
    another session.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float],
        linger_s: float = LINGER_S,
        patience_s: float = PATIENCE_S,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        lease_s: float = leases.LASTS_S,
        pooled: bool = False,
    ) -> None:
        self._engine = engine
        self._on_server = engine.dialect.name == "postgresql"
        self._clock, self._timer, self._sleep = clock, timer, sleep
        self._linger_s, self._patience_s = linger_s, patience_s
        self._name = secrets.token_hex(8)
        self._batches = 0
        self._connection: Connection | None = None
        self._pooled = pooled
        self._session = 0  # the connection's session on the server, which has our settings
        self.keeper = LeaseKeeper(engine, leases.this_process(self._name, lease_s), clock=clock)
        self._queue: deque[_Waiting] = deque()
        self._announced = 0
        self._recent = RecentTexts()
        self._guests: list[Callable[[], None]] = []
        self._closed = False
        self._broken: BaseException | None = None  # what ended the thread
        self._owner = os.getpid()
        self._lock = threading.RLock()  # entered directly: Ctrl-C inside `Condition.__enter__` would leave it locked
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._serve, name="ramify-store", daemon=True)
        self._thread.start()

    def submit(self, job: Job, coming: AnnouncedCommit | None = None) -> Future[None]:
        """Queue a job. The future is done when the job is durable. `coming`: the announcement that this job
        fulfils."""
        return self._put(_Waiting(job, self._timer() + job.linger_s), coming)

    def before_end(self, leave: Callable[[], None]) -> None:
        """Register a function that is called when this committer is about to close. It may still submit jobs."""
        self._guests.append(leave)

    def hurry(self) -> None:
        """Make all lingering jobs due now."""
        with self._lock:
            for one in self._queue:
                one.due = 0.0
            self._changed.notify_all()

    def coming(self) -> AnnouncedCommit:
        """Announce a commit, for which other jobs wait a little. Use the result as a context manager."""
        with self._lock:
            self._announced += 1
        return AnnouncedCommit(self)

    def hold(self, run: RunId, lock: FileLock) -> Future[None]:
        """Take the lease of a run. The future raises `LeaseHeld` and `RunLocked`."""
        return self._put(_Waiting(Job(_nothing), alone=lambda: self.keeper.take(run, lock)), None)

    def let_go(self, run: RunId) -> Future[None]:
        """Give the lease back after all jobs that were submitted before."""
        return self._put(_Waiting(Job(_nothing), alone=lambda: self.keeper.release(run)), None)

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked child's copy has no thread: the parent commits the queue
        for leave in self._guests:
            leave()
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self.keeper.close()

    def arrived(self) -> None:
        """Note that an announced commit has come, or will not come."""
        with self._lock:
            self._announced -= 1
            self._changed.notify_all()

    def _put(self, waiting: _Waiting, coming: AnnouncedCommit | None) -> Future[None]:
        refuse_in_child(self._owner, "the database", UsedAfterFork)
        waiting.future.set_running_or_notify_cancel()  # cancelling the waiter does not cancel the work
        with self._lock:
            if self._broken is not None:
                raise _thread_ended(self._broken) from self._broken
            if self._closed:
                raise StoreError("the database is not open any more: its store was closed")
            self._queue.append(waiting)
            if coming is not None:
                coming.leave()
            self._changed.notify_all()
        return waiting.future

    # On the committing thread

    def _serve(self) -> None:
        batch: Sequence[_Waiting] | None = None
        try:
            while (batch := self._next_batch()) is not None:
                crash_points.point("batch taken")
                self._commit(batch)
                batch = None  # its texts may be long, and the next one may come late
        except BaseException as error:
            self._fail_all(error, batch)
            raise
        finally:
            if self._connection is not None:
                self._connection.close()

    def _fail_all(self, error: BaseException, batch: Sequence[_Waiting] | None) -> None:
        """Fail all queued jobs, because this thread ends by an error; later submissions raise it."""
        with self._lock:
            self._broken = error
            left = [*(batch or ()), *self._queue]
            self._queue.clear()
        for one in left:
            if not one.future.done():
                one.future.set_exception(_thread_ended(error))

    def _next_batch(self) -> list[_Waiting] | None:
        """Return all queued jobs when one of them is due and announced commits have come; None at the end."""
        with self._lock:
            while (due_in := self._due_in()) is None or (due_in > 0 and not self._closed):
                if self._closed:
                    return None
                self._changed.wait(due_in)
            until = self._timer() + self._linger_s
            while self._announced and not self._closed and (left := until - self._timer()) > 0:
                self._changed.wait(left)
            batch = list(self._queue)
            self._queue.clear()
            return batch

    def _due_in(self) -> float | None:
        return min(one.due for one in self._queue) - self._timer() if self._queue else None

    def _commit(self, batch: list[_Waiting]) -> None:
        if len(batch) > 1 and any(one.alone is not None for one in batch):
            self._commit_one_by_one(batch)
            return
        try:
            for barrier in {one.job.barrier for one in batch if one.job.barrier is not None}:
                barrier()
                crash_points.point("layers flushed")
            self._batches += 1
            self._commit_with_retries(batch)
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:
                self._commit_one_by_one(batch)  # one job may have made the whole batch fail
            return
        crash_points.point("batch committed")
        for one in batch:
            one.future.set_result(None)

    def _commit_one_by_one(self, batch: list[_Waiting]) -> None:
        """Commit each job on its own. If a lingering job of a run fails, fail all later jobs of that run."""
        broken: dict[RunId, BaseException] = {}
        for one in batch:
            run = one.job.run
            if run in broken:
                one.future.set_exception(broken[run])
                continue
            self._commit([one])
            if run is not None and one.job.linger_s and (error := one.future.exception()) is not None:
                broken[run] = error

    def _commit_with_retries(self, batch: list[_Waiting]) -> None:
        retries = Retries(self._patience_s, self._timer)
        while True:
            try:
                self._transact(batch)
                return
            except Exception as error:
                for undone in {one.job.undone for one in batch if one.job.undone is not None}:
                    undone()
                if (pause_s := retries.pause_after(error)) is None:
                    raise
                if is_connection_lost(error):
                    self._disconnect()
            self._sleep(pause_s)

    def _transact(self, batch: list[_Waiting]) -> None:
        if (work_alone := batch[0].alone) is not None:
            work_alone()
            return
        by_saver = any(one.job.by_saver for one in batch)
        tokens = self.keeper.tokens({one.job.run for one in batch}, every=by_saver)
        leaving = {one.job.run for one in batch if one.job.leaves and one.job.run in tokens}
        connection = self._connected()
        for one in batch:
            if one.job.begins and one.job.run is not None:
                self._recent.forget(one.job.run)
        texts = dict(self._recent.packed(one.job.run, text) for one in batch for text in one.job.texts)
        with self.keeper.leaving(leaving):
            if not self._write_plain(connection, batch, texts, tokens):
                self._write(connection, batch, texts, tokens)
        for one in batch:
            if one.job.takes is not None and one.job.run is not None:
                self.keeper.took(one.job.run, one.token)
            self._recent.named(one.job.run, one.job.texts)
        if not self._on_server and sum(len(text) for one in batch for text in one.job.texts) > _MUCH:
            self._disconnect()  # SQLite keeps the values of a statement until it gets others

    def _write(
        self,
        connection: Connection,
        batch: list[_Waiting],
        texts: Mapping[Digest, Packed],
        tokens: Mapping[RunId, int],
    ) -> None:
        """Write a batch in the general way."""
        owner = self.keeper.owner
        if self._on_server:
            in_transactions(connection)
        with connection.begin() as transaction:
            crash_points.point("transaction begun")
            if not self._may_write(connection, tokens):
                transaction.rollback()  # this batch was committed before; only the answer was lost
                return
            statements.put_blobs(connection, texts)
            for one in batch:
                one.job.work(connection)
                if (run := one.job.run) is None:
                    continue
                if one.job.takes is not None:
                    one.token = leases.take(connection, run, owner, one.job.takes, self._clock())
                if one.job.leaves and run in tokens:
                    leases.release(connection, run, owner, tokens[run])
            crash_points.point("rows written")

    def _write_plain(
        self,
        connection: Connection,
        batch: list[_Waiting],
        texts: Mapping[Digest, Packed],
        tokens: Mapping[RunId, int],
    ) -> bool:
        """Write a batch without SQLAlchemy. Returns False, with nothing written, if that does not do."""
        found = [one.job.plain for one in batch if one.job.plain is not None]
        if len(found) < len(batch) or self._pooled:
            return False
        owner, now = self.keeper.owner, self._clock()
        crash_points.point("transaction begun")
        try:
            if not self._on_server:
                before_commit = partial(crash_points.point, "rows written")
                write_to_file(connection, found, texts, tokens, owner, now, before_commit)
                return True
            session = write_to_server(connection, found, texts, tokens, owner, (self._name, self._batches, now))
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
                    ours = own.execute(*leases.fence(self.keeper.owner, tokens)).fetchall()
                if len(ours) < len(tokens):
                    self.keeper.note_lost(connection, tokens)
            return True
        values = {"id": self._name, "batch": self._batches, "at": self._clock()}
        query = f"{_BATCH_NUMBER}, 0"
        if tokens:
            fence, more = leases.fence(self.keeper.owner, tokens)
            values |= more
            query = f"WITH ours AS ({fence} FOR SHARE) {_BATCH_NUMBER}, (SELECT count(*) FROM ours)"
        found = connection.execute(text(query), values).first()
        if found is None:
            return False
        session, ours = found
        if not self._pooled and session != self._session:
            raise refused(self._engine.url.render_as_string())
        if ours < len(tokens):
            self.keeper.note_lost(connection, tokens)
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

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


def _nothing(_: Connection) -> None:
    pass


_BATCH_NUMBER = (
    "INSERT INTO writers (id, batch, at) VALUES (:id, :batch, :at) "
    "ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, at = excluded.at WHERE writers.batch < excluded.batch "
    "RETURNING pg_backend_pid()"
)


@dataclass(eq=False, slots=True)
class AnnouncedCommit:
    """An announced commit. The announcement ends with the submission or with the block, whichever comes first."""

    _committer: RunCommitter
    _there: bool = False

    def leave(self) -> None:
        if not self._there:
            self._there = True
            self._committer.arrived()

    def __enter__(self) -> AnnouncedCommit:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def _thread_ended(error: BaseException) -> StoreError:
    return StoreError(
        f"the committing thread has ended ({type(error).__name__}: {error}): close this Runtime or app and resume "
        "its runs with a new one"
    )
