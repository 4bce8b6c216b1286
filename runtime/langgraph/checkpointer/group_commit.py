"""Commit in groups: everything that waits when a transaction begins is committed with it.

A commit costs one fsync, however much it contains. LangGraph passes the writes of each task of a superstep and then
the checkpoint. Nothing waits for the writes alone, so they linger for the coming checkpoint, and a superstep is one
commit. Work that stays alone is committed when its time is up.

**The waiting thread commits.** A thread that waits for its work takes everything that is queued and writes it itself,
unless another thread does so already. Handing it to another thread and being woken again would take about as long as
the write. A thread of our own commits what nobody waits for, and what event loops wait for.

If a run is recorded in the same database, its committing thread commits for this writer too (`follow`): the rows of
nodes and the checkpoint that follows them are one transaction.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import Connection, Engine

from ramify.fork_engine import crash_points
from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import UsedAfterFork
from ramify.runtime.store.batch_writer import Job
from ramify.runtime.store.database_errors import Retries, divided, is_busy, is_connection_lost, is_duplicate_key
from ramify.runtime.store.engines import driver_errors, transaction
from ramify.runtime.store.run_committer import JOIN_NEXT_COMMIT_S, RunCommitter

Work = Callable[[Connection], Any]
Commit = Callable[[], None]

LONGEST_REST_S = 0.15  # longer than SQLite's waiters sleep between two tries for the lock
_LOOK_AGAIN_S = 0.05  # how often to check whether the lead has finished: Ctrl-C may prevent its notification
IDLE_S = 1.0  # a connection that was unused for longer is tested first


class WriteMode(Enum):
    """How a transaction writes."""

    # in one statement, as if no row existed; if a server refuses it because another process was faster, it is done
    # again CHECKED
    OPTIMISTIC = auto()
    CHECKED = auto()
    EXCLUSIVE = auto()  # CHECKED, while nobody else writes


class NeedsAnswer(Exception):
    """Raised by work in an optimistic transaction that needs the answer of a statement."""


def _begin(_: Connection, __: WriteMode) -> None:
    pass


def _finish(_: Connection, commit: Commit) -> None:
    commit()


@dataclass(eq=False, slots=True)
class _Job:
    """`lingers`: nobody waits for it. `future` is for a caller that waits on an event loop."""

    work: Work
    due: float
    how: WriteMode = WriteMode.CHECKED
    lingers: bool = False
    future: Future[None] | None = None
    done: bool = False
    error: BaseException | None = None


class GroupCommitter:
    """Commits work in groups.

    `linger_s`: how long work that nobody waits for may stay uncommitted. `undone` is called after each rollback.
    `begin` and `finish` are called first and last in each transaction; `finish` commits it.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        undone: Callable[[], None],
        begin: Callable[[Connection, WriteMode], None] = _begin,
        finish: Callable[[Connection, Commit], None] = _finish,
        linger_s: float = 0.02,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._server = engine.dialect.name == "postgresql"
        # optimistic writes are one statement, which is a transaction by itself
        by_itself = {"isolation_level": "AUTOCOMMIT"} if self._server else {}
        self._engine = engine.execution_options(write=True, **by_itself)
        self._undone = undone
        self._begin, self._finish = begin, finish
        self._connection: Connection | None = None
        self._used = 0.0
        self._linger_s = linger_s
        self._clock, self._sleep = clock, sleep
        self._jobs: deque[_Job] = deque()
        # errors of work that nobody waited for; raised to the next caller that waits
        self._lost: list[BaseException] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._due = threading.Condition(self._lock)  # our thread waits for this
        self._busy: object | None = None  # identifies the thread that commits now
        self._closed = False
        self._lead: RunCommitter | None = None
        self._handed: set[Future[None]] = set()  # passed to the lead, and not committed yet
        self._thread: threading.Thread | None = None
        self._asleep = False  # our thread sleeps until it is woken
        self._stirred = False  # something was submitted since our thread last looked
        self._rested = 0.0  # when the next EXCLUSIVE transaction may begin
        self._owner = os.getpid()

    def commit(self, work: Work, how: WriteMode = WriteMode.CHECKED) -> None:
        """Run `work` in a transaction; it is durable when this returns. Raises what the work and the database
        raise."""
        if how is WriteMode.EXCLUSIVE:
            self._commit_exclusive(work)
        else:
            self._commit_now(work, how)

    def _commit_exclusive(self, work: Work) -> None:
        """Run maintenance, after resting for as long as its last transaction took. Otherwise a series of calls would
        hold the lock nearly all the time. SQLite's waiters try for the lock only now and then, and waiters for the
        epoch's row on a server would find it changed and locked again."""
        began: list[float] = []

        def timed(connection: Connection) -> None:
            began.append(self._clock())
            work(connection)

        if (rest := self._rested - self._clock()) > 0:
            self._sleep(rest)
        try:
            self._commit_now(timed, WriteMode.EXCLUSIVE)
        finally:
            if began:
                now = self._clock()
                self._rested = now + min(now - began[-1], LONGEST_REST_S)

    def _commit_now(self, work: Work, how: WriteMode) -> None:
        with self._lock:
            lead = self._open()
            if lead is not None:
                handed = self._hand_over(lead, work, how)
            else:
                job = _Job(work, 0.0, how)
                self._jobs.append(job)
        if lead is not None:
            handed.result()
            return
        self._serve(job)
        if job.error is not None:
            raise job.error

    def submit(self, work: Work, how: WriteMode = WriteMode.CHECKED) -> Future[None]:
        """Run `work` as `commit` does, for callers that must not block. The future is done when the work is
        durable."""
        with self._lock:
            if (lead := self._open()) is not None:
                return self._hand_over(lead, work, how)
            future: Future[None] = Future()
            future.set_running_or_notify_cancel()  # the caller may give up waiting; the work goes on
            self._jobs.append(_Job(work, 0.0, how, future=future))
            self._attended()
            self._due.notify()
        return future

    def linger(self, work: Work, how: WriteMode = WriteMode.CHECKED) -> None:
        """Run `work` with what comes next, or when its time is up. The next `drain` raises its error."""
        with self._lock:
            if (lead := self._open()) is not None:
                self._hand_over(lead, work, how, JOIN_NEXT_COMMIT_S)
                return
            self._jobs.append(_Job(work, self._clock() + self._linger_s, how, lingers=True))
            self._attended()
            self._stirred = True
            if self._asleep:
                self._due.notify()

    def _open(self) -> RunCommitter | None:
        """Return the committer that commits for us, if any. Call with the lock held."""
        self._refuse_in_child()
        if self._closed:
            raise RuntimeError("the saver is closed: open it again")
        return self._lead

    def _refuse_in_child(self) -> None:
        refuse_in_child(self._owner, "the saver", UsedAfterFork)

    def _attended(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._attend, name="ramify-saver", daemon=True)
            self._thread.start()

    def _finished(self, work: Work, how: WriteMode) -> Work:
        def both(connection: Connection) -> None:
            with driver_errors(connection):
                self._begin(connection, WriteMode.EXCLUSIVE if how is WriteMode.EXCLUSIVE else WriteMode.CHECKED)
                work(connection)
                self._finish(connection, lambda: None)  # the lead commits

        return both

    def follow(self, lead: RunCommitter) -> bool:
        """Let another thread commit for this writer, to the same database, until that thread ends. Return False if a
        third one does."""
        with self._lock:
            if self._lead is None:
                while self._jobs or self._busy:
                    self._serve()
                self._lead = lead
                lead.before_end(self._leave)
            return self._lead is lead

    def drain(self) -> None:
        """Return when everything that was submitted is durable. Raises errors of work that nobody waited for."""
        self._refuse_in_child()
        self._serve()
        with self._lock:
            if self._lead is not None:
                self._settle_with(self._lead)
            if self._lost:
                lost, self._lost = self._lost, []
                raise lost[0]

    def _settle_with(self, lead: RunCommitter) -> None:
        """Wait until the lead has committed what was passed to it before. Call with the lock held."""
        handed = set(self._handed)
        lead.hurry()
        while left := handed & self._handed:
            if not self._changed.wait(_LOOK_AGAIN_S) and all(done.done() for done in left):
                self._handed -= left

    def _hand_over(self, lead: RunCommitter, work: Work, how: WriteMode, linger_s: float = 0.0) -> Future[None]:
        job = Job(self._finished(work, how), linger_s=linger_s, undone=self._undone, by_saver=True)
        done = lead.submit(job)
        self._handed.add(done)
        done.add_done_callback(lambda done: self._came(job, done))
        return done

    def _came(self, job: Job, done: Future[None]) -> None:
        with self._lock:
            self._handed.discard(done)
            self._changed.notify_all()
            if job.linger_s and (error := done.exception()) is not None:
                self._lost.append(error)

    def _leave(self) -> None:
        """Take over again, since the lead is about to end: commit what comes next after what the lead has."""
        with self._lock:
            # one thread uses what is remembered: two must never write at once
            while self._lead is not None and self._handed:
                self._settle_with(self._lead)
            self._lead = None

    def close(self) -> None:
        """Commit what lingers and end the thread. Raises as `drain`."""
        self._refuse_in_child()
        with self._lock:
            self._closed = True
            self._due.notify()
        self._leave()
        if self._thread is not None:
            self._thread.join()
        try:
            self.drain()
        finally:
            self._let_go()

    def _attend(self) -> None:
        """Commit, on our thread, what is due and nobody commits."""
        while True:
            with self._lock:
                while self._busy or not self._jobs or (self._due_in() > 0 and not self._closed):
                    if self._closed and not self._busy:
                        return
                    self._due.wait(self._pause_s())
                    self._asleep = False
            self._serve()

    def _pause_s(self) -> float | None:
        """Return how long to sleep; None until woken. While supersteps follow each other, each with work that lingers
        for a moment, the thread looks every `linger_s`: that costs less than being woken by each of them."""
        if self._jobs:
            return None if self._busy else self._due_in()  # the committing thread wakes us afterwards
        self._asleep = not self._stirred
        self._stirred = False
        return None if self._asleep else self._linger_s

    def _due_in(self) -> float:
        return min(job.due for job in self._jobs) - self._clock()

    def _serve(self, own: _Job | None = None) -> None:
        """Commit everything that waits, unless another thread does. Return early if that thread has done `own`.

        If an interrupt hits the caller, the whole batch except its own job waits again, although it may just have
        been committed: work that is done twice has to leave the same.
        """
        turn = object()
        batch: deque[_Job] = deque()
        try:
            with self._lock:
                while self._busy and not (own is not None and own.done):
                    self._changed.wait()
                if own is not None and own.done:
                    return
                # one statement, so that no interrupt comes in between
                batch, self._jobs, self._busy = self._jobs, deque(), turn
            if batch:
                self._commit(batch)
        finally:
            with self._lock:
                if self._busy is turn:
                    self._busy = None
                    self._jobs.extendleft(job for job in reversed(batch) if not job.done and job is not own)
                    self._changed.notify_all()
                    if self._jobs or self._closed:
                        self._due.notify()

    def _commit(self, batch: Collection[_Job]) -> None:
        try:
            self._patiently(batch)
        except Exception as error:  # noqa: BLE001  # handed to whoever waits
            # if the database is busy or gone, no job is at fault, and each alone would wait as long again
            if len(batch) == 1 or is_busy(error) or is_connection_lost(error):
                for job in batch:
                    self._came_to(job, error)
                return
            for job in batch:  # one job made all of them fail: commit each by itself
                self._commit([job])
            return
        for job in batch:
            self._came_to(job, None)

    def _patiently(self, batch: Collection[_Job]) -> None:
        """Commit a batch; retry if the server is gone. A commit whose answer was lost is done again, which leaves the
        same."""
        retries = Retries(timer=self._clock)
        how = self._how(batch)
        while True:
            try:
                self._once(batch, how)
                return
            except Exception as error:  # noqa: BLE001  # `pause_after` raises it
                if how is WriteMode.OPTIMISTIC and (isinstance(error, NeedsAnswer) or is_duplicate_key(error)):
                    how = WriteMode.CHECKED
                    continue
                if how is WriteMode.OPTIMISTIC and divided(error) and not retries.are_over:
                    continue  # a deletion got in between: optimistic again
                pause_s = retries.pause_after(error)
            self._sleep(pause_s)

    def _how(self, batch: Collection[_Job]) -> WriteMode:
        """Return the most careful mode of the batch. OPTIMISTIC is for servers only."""
        found = {job.how for job in batch}
        if WriteMode.EXCLUSIVE in found:
            return WriteMode.EXCLUSIVE
        return WriteMode.OPTIMISTIC if self._server and found == {WriteMode.OPTIMISTIC} else WriteMode.CHECKED

    def _once(self, batch: Collection[_Job], how: WriteMode) -> None:
        """Run one transaction."""
        connection = self._connected()
        try:
            with transaction(connection, single=how is WriteMode.OPTIMISTIC) as commit:

                def end() -> None:
                    crash_points.point("saver's rows written")
                    commit()

                crash_points.point("saver's transaction begun")
                self._begin(connection, how)
                for job in batch:
                    job.work(connection)
                self._finish(connection, end)
            crash_points.point("saver's batch committed")
        except BaseException as error:
            self._undone()
            if is_connection_lost(error):
                connection.invalidate()  # otherwise the pool would roll it back and log that it cannot
            self._let_go()
            raise

    def _connected(self) -> Connection:
        """Return the connection. It is kept between transactions: taking one from the pool costs a round trip to the
        server."""
        now = self._clock()
        if now - self._used > IDLE_S:
            self._let_go()
        self._used = now
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _came_to(self, job: _Job, error: BaseException | None) -> None:
        job.done, job.error = True, error
        if job.lingers and error is not None:
            with self._lock:
                self._lost.append(error)
        if job.future is not None:
            if error is None:
                job.future.set_result(None)
            else:
                job.future.set_exception(error)
