"""Group commits of the run store: one thread writes, and all jobs that wait when a transaction begins share it.

**Siblings.** Steps that end at about the same time share a transaction and its fsync. Each step announces its commit
when its code has ended (`coming`), before its world is sealed. A batch waits for announced commits, but not longer
than about the time of an fsync. The layers of the whole batch are flushed once (`barrier`), before the rows that name
them.

**Lingering jobs** (`linger_s`), for which nobody waits, stay in the queue until an urgent job comes or their time is
up, so that they share that transaction. The order of submission is kept. LangGraph's saver submits its rows here if
its tables are in the same database: then a node's row, its writes and the checkpoint are one commit.

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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine

from ramify.fork_engine import crash_points
from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import StoreError, UsedAfterFork
from ramify.runtime.records import RunId
from ramify.runtime.store import leases
from ramify.runtime.store.batch_writer import BatchWriter, Job
from ramify.runtime.store.database_errors import PATIENCE_S, Retries, is_connection_lost
from ramify.runtime.store.lease_keeper import LeaseKeeper
from ramify.runtime.store.leases import FileLock

LINGER_S = 0.005
JOIN_NEXT_COMMIT_S = 0.1  # how long a lingering job waits for a commit that is expected soon


@dataclass(eq=False, slots=True)
class _Waiting:
    job: Job
    due: float = 0.0
    alone: Callable[[], None] | None = None  # work with a lease, outside a transaction of ours
    future: Future[None] = field(default_factory=Future)


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
        self._timer, self._sleep = timer, sleep
        self._linger_s, self._patience_s = linger_s, patience_s
        self.keeper = LeaseKeeper(engine, leases.this_process(secrets.token_hex(8), lease_s), clock=clock)
        self._writer = BatchWriter(engine, self.keeper, clock=clock, pooled=pooled)
        self._queue: deque[_Waiting] = deque()
        self._announced = 0
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

        def take() -> None:
            self.keeper.take(run, lock)
            self._writer.recheck_texts(run)

        return self._put(_Waiting(Job(_nothing), alone=take), None)

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
                raise StoreError("the database is closed, because its store was closed: open the store again")
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
            self._writer.close()

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
            self._writer.next_batch()
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
            except Exception as error:  # noqa: BLE001  # `pause_after` raises it
                for undone in {one.job.undone for one in batch if one.job.undone is not None}:
                    undone()
                pause_s = retries.pause_after(error)
                if is_connection_lost(error):
                    self._writer.disconnect()
            self._sleep(pause_s)

    def _transact(self, batch: list[_Waiting]) -> None:
        if (work_alone := batch[0].alone) is not None:
            work_alone()
            return
        self._writer.write([one.job for one in batch])


def _nothing(_: Connection) -> None:
    pass


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
