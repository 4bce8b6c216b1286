"""Commits in groups: what waits when a transaction begins is committed with it.

A commit costs one fsync, whatever is in it. LangGraph hands over the writes of each task of a superstep and then the
checkpoint; nobody waits for the writes alone, so they linger for the checkpoint that is about to come, and a
superstep is one commit. What comes alone is committed when its time is up.

**Who waits, commits.** A thread that waits for its work takes all that is there and writes it itself, unless another
is at it: to hand it to a thread and to be woken again would take about as long as the writing. A thread of ours looks
after what nobody waits for, and after what an event loop does.

Where a run is recorded in the same database, its thread commits for this one, too (`follow`): the rows of the nodes
and the checkpoint that follows them are one transaction.
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
from ramify.runtime.store.database_errors import (
    divided,
    is_busy,
    is_connection_lost,
    is_duplicate_key,
    is_serialization_failure,
)
from ramify.runtime.store.engines import driver_errors, transaction
from ramify.runtime.store.run_committer import (
    FIRST_PAUSE_S,
    JOIN_NEXT_COMMIT_S,
    LONGEST_PAUSE_S,
    PATIENCE_S,
    Job,
    RunCommitter,
)

Work = Callable[[Connection], Any]
Commit = Callable[[], None]

LONGEST_REST_S = 0.15  # more than what SQLite's waiters sleep between two looks at the lock
_LOOK_AGAIN_S = 0.05  # whether the lead is done: Ctrl-C may have hit before anybody was to be told of it
IDLE_S = 1.0  # a connection that was not used for so long is asked first whether it is still there


class WriteMode(Enum):
    """How a transaction writes."""

    OPTIMISTIC = auto()  # in one statement; what a server refuses since it met another's rows is done again
    CHECKED = auto()
    ALONE = auto()  # carefully, while nobody else writes


class Asks(Exception):
    """Raised by work that was to be bold and has to wait for an answer."""


def _begin(_: Connection, __: WriteMode) -> None:
    pass


def _finish(_: Connection, commit: Commit) -> None:
    commit()


@dataclass(eq=False, slots=True)
class _Job:
    """`lingers`: nobody waits for it. `future`: who waits on an event loop."""

    work: Work
    due: float
    how: WriteMode = WriteMode.CHECKED
    lingers: bool = False
    future: Future[None] | None = None
    done: bool = False
    error: BaseException | None = None


class Writer:
    """`linger_s`: how long work that nobody waits for may stay uncommitted. `undone` hears of each rollback. `begin`
    and `finish` are the first and the last of each transaction; `finish` commits it."""

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
        # what is written boldly is one statement: by itself it is a transaction
        by_itself = {"isolation_level": "AUTOCOMMIT"} if self._server else {}
        self._engine = engine.execution_options(write=True, **by_itself)
        self._undone = undone
        self._begin, self._finish = begin, finish
        self._connection: Connection | None = None
        self._used = 0.0
        self._linger_s = linger_s
        self._clock, self._sleep = clock, sleep
        self._jobs: deque[_Job] = deque()
        self._lost: list[BaseException] = []  # of work that nobody waited for: raised to the next who waits
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._due = threading.Condition(self._lock)  # what our thread waits for
        self._busy: object | None = None  # the turn of who commits
        self._closed = False
        self._lead: RunCommitter | None = None
        self._handed: set[Future[None]] = set()  # to the lead, and not committed yet
        self._thread: threading.Thread | None = None
        self._asleep = False  # our thread, until it is woken
        self._stirred = False  # something was submitted since it last looked
        self._rested = 0.0  # when who is alone may be so again
        self._owner = os.getpid()

    def commit(self, work: Work, how: WriteMode = WriteMode.CHECKED) -> None:
        """Have `work` done in a transaction: durable when this returns. Raises what it and the database raise."""
        if how is WriteMode.ALONE:
            self._after_a_rest(work)
        else:
            self._commit_now(work, how)

    def _after_a_rest(self, work: Work) -> None:
        """Upkeep, call after call, would have the lock nearly all the time: who waits for SQLite's looks only now and
        then, and who waits for the house's row on a server finds it changed, and locked again. So it rests for as
        long as the last one took."""
        began: list[float] = []

        def timed(connection: Connection) -> None:
            began.append(self._clock())
            work(connection)

        if (rest := self._rested - self._clock()) > 0:
            self._sleep(rest)
        try:
            self._commit_now(timed, WriteMode.ALONE)
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
        """As `commit`, for who must not wait here: the future is done when it is durable."""
        with self._lock:
            if (lead := self._open()) is not None:
                return self._hand_over(lead, work, how)
            future: Future[None] = Future()
            future.set_running_or_notify_cancel()  # who waits may give up waiting: the work goes on
            self._jobs.append(_Job(work, 0.0, how, future=future))
            self._attended()
            self._due.notify()
        return future

    def linger(self, work: Work, how: WriteMode = WriteMode.CHECKED) -> None:
        """Have `work` done with what comes next, or when its time is up. An error of it is raised by the next
        `drain`."""
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
        """Who commits for us, if anybody does. Holding the lock."""
        self._refuse_in_child()
        if self._closed:
            raise RuntimeError("the saver is closed: open it anew")
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
                self._begin(connection, WriteMode.ALONE if how is WriteMode.ALONE else WriteMode.CHECKED)
                work(connection)
                self._finish(connection, lambda: None)  # the lead does

        return both

    def follow(self, lead: RunCommitter) -> bool:
        """Have another thread commit for this one, to the same database, until it ends. False where a third does."""
        with self._lock:
            if self._lead is None:
                while self._jobs or self._busy:
                    self._serve()
                self._lead = lead
                lead.before_end(self._leave)
            return self._lead is lead

    def drain(self) -> None:
        """Return when all that was submitted is durable. Raises what went wrong with work that nobody waited for."""
        self._refuse_in_child()
        self._serve()
        with self._lock:
            if self._lead is not None:
                self._settle_with(self._lead)
            if self._lost:
                lost, self._lost = self._lost, []
                raise lost[0]

    def _settle_with(self, lead: RunCommitter) -> None:
        """Until the lead has what was handed to it before. Holding the lock."""
        handed = set(self._handed)
        lead.hurry()
        while left := handed & self._handed:
            if not self._changed.wait(_LOOK_AGAIN_S) and all(done.done() for done in left):
                self._handed -= left

    def _hand_over(self, lead: RunCommitter, work: Work, how: WriteMode, linger_s: float = 0.0) -> Future[None]:
        job = Job(self._finished(work, how), linger_s=linger_s, undone=self._undone)
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
        """The lead is about to end: what comes from now on is ours again, after what it has."""
        with self._lock:
            while self._lead is not None and self._handed:  # what is at hand is one thread's: never two write at once
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
        """What our thread does: commit what is due and nobody commits."""
        while True:
            with self._lock:
                while self._busy or not self._jobs or (self._due_in() > 0 and not self._closed):
                    if self._closed and not self._busy:
                        return
                    self._due.wait(self._pause_s())
                    self._asleep = False
            self._serve()

    def _pause_s(self) -> float | None:
        """How long to sleep; None until it is woken. While supersteps come one after the other, each with work that
        lingers a moment, it looks every `linger_s`, which costs less than to be woken by each."""
        if self._jobs:
            return None if self._busy else self._due_in()  # who is at it wakes us afterwards
        self._asleep = not self._stirred
        self._stirred = False
        return None if self._asleep else self._linger_s

    def _due_in(self) -> float:
        return min(job.due for job in self._jobs) - self._clock()

    def _serve(self, own: _Job | None = None) -> None:
        """Commit all that waits, when nobody else is at it. Return early where another has done `own`.

        Where an interrupt hits the caller, all of the batch but its own job waits again, although it may just have
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
                batch, self._jobs, self._busy = self._jobs, deque(), turn  # no interrupt comes in between
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
            # nobody's rows are at fault where it is busy or gone, and each would wait as long again
            if len(batch) == 1 or is_busy(error) or is_connection_lost(error):
                for job in batch:
                    self._came_to(job, error)
                return
            for job in batch:  # one of them spoiled it for all: each for itself
                self._commit([job])
            return
        for job in batch:
            self._came_to(job, None)

    def _patiently(self, batch: Collection[_Job]) -> None:
        """A server that goes away is waited for. A commit whose answer was lost is done again: it leaves the same."""
        until, pause = self._clock() + PATIENCE_S, FIRST_PAUSE_S
        how = self._how(batch)
        while True:
            try:
                self._once(batch, how)
                return
            except Exception as error:
                if how is WriteMode.OPTIMISTIC and (isinstance(error, Asks) or is_duplicate_key(error)):
                    how = WriteMode.CHECKED
                    continue
                if (
                    how is WriteMode.OPTIMISTIC and divided(error) and self._clock() < until
                ):  # by who deleted: boldly again
                    continue
                if (
                    not (is_connection_lost(error) or is_serialization_failure(error))
                    or self._clock() + pause > until
                ):
                    raise
            self._sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _how(self, batch: Collection[_Job]) -> WriteMode:
        """As the most careful of them; boldly on a server only."""
        found = {job.how for job in batch}
        if WriteMode.ALONE in found:
            return WriteMode.ALONE
        return WriteMode.OPTIMISTIC if self._server and found == {WriteMode.OPTIMISTIC} else WriteMode.CHECKED

    def _once(self, batch: Collection[_Job], how: WriteMode) -> None:
        """One transaction."""
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
                connection.invalidate()  # the pool would ask it to roll back, and log that it cannot
            self._let_go()
            raise

    def _connected(self) -> Connection:
        """Held from one transaction to the next: to take one from the pool costs a round trip to the server."""
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
