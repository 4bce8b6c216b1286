"""One thread that writes: what waits when a transaction begins is committed with it.

A commit costs one fsync, whatever is in it. LangGraph hands over the writes of each task of a superstep and then the
checkpoint; nobody waits for the writes alone, so they linger for the checkpoint that is about to come, and a
superstep is one commit. What comes alone is committed when its time is up.

Where a run is recorded in the same database, its thread commits for this one, too (`follow`): the rows of the nodes
and the checkpoint that follows them are one transaction.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine

from ramify.runtime.store.committer import COMPANY_S, Committer, Job
from ramify.runtime.store.failures import is_gone

Work = Callable[[Connection], Any]


IDLE_S = 1.0  # a connection that was not used for so long is asked first whether it is still there


def _nothing(_: Connection) -> None:
    pass


@dataclass(eq=False, slots=True)
class _Job:
    work: Work
    urgent: bool
    due: float
    future: Future[None] = field(default_factory=Future)


class Writer:
    """`linger_s`: how long work that nobody waits for may stay uncommitted. `undone` hears of each rollback. `finish`
    ends each transaction, after the work in it."""

    def __init__(
        self,
        engine: Engine,
        *,
        undone: Callable[[], None],
        finish: Work = _nothing,
        linger_s: float = 0.02,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine.execution_options(write=True)
        self._undone = undone
        self._finish = finish
        self._connection: Connection | None = None
        self._used = 0.0
        self._linger_s = linger_s
        self._clock = clock
        self._jobs: deque[_Job] = deque()
        self._lost: list[BaseException] = []  # of work that nobody waited for: raised to the next who waits
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._lead: Committer | None = None
        self._handed: set[Future[None]] = set()  # to the lead, and not committed yet
        self._thread: threading.Thread | None = None

    def submit(self, work: Work, *, urgent: bool = True) -> Future[None]:
        """Have `work` done in a transaction. The future is done when it is durable.

        `urgent=False`: it may linger, and an error of it is also raised by the next `drain`.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("the saver is closed: open it anew")
            if self._lead is not None:
                linger_s = 0.0 if urgent else COMPANY_S
                return self._hand_over(self._lead, Job(self._finished(work), linger_s=linger_s, undone=self._undone))
            job = _Job(work, urgent, self._clock() + (0.0 if urgent else self._linger_s))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="ramify-saver", daemon=True)
                self._thread.start()
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    def _finished(self, work: Work) -> Work:
        def both(connection: Connection) -> None:
            work(connection)
            self._finish(connection)

        return both

    def follow(self, lead: Committer) -> bool:
        """Have another thread commit for this one, to the same database, until it ends. False where a third does."""
        with self._changed:
            if self._lead is None:
                self._settle()
                self._lead = lead
                lead.before_end(self._leave)
            return self._lead is lead

    def drain(self) -> None:
        """Return when all that was submitted is durable. Raises what went wrong with work that nobody waited for."""
        with self._changed:
            self._settle()
            if self._lead is not None:
                self._settle_with(self._lead)
            if self._lost:
                lost, self._lost = self._lost, []
                raise lost[0]

    def _settle(self) -> None:
        """Until nothing waits for our own thread. Holding the lock."""
        for job in self._jobs:
            job.due = 0.0
        self._changed.notify_all()
        while self._jobs or self._busy:
            self._changed.wait()

    def _settle_with(self, lead: Committer) -> None:
        """Until the lead has what was handed to it before. Holding the lock."""
        handed = set(self._handed)
        lead.hurry()
        while handed & self._handed:
            self._changed.wait()

    def _hand_over(self, lead: Committer, job: Job) -> Future[None]:
        done = lead.submit(job)
        self._handed.add(done)
        done.add_done_callback(lambda done: self._came(job, done))
        return done

    def _came(self, job: Job, done: Future[None]) -> None:
        with self._changed:
            self._handed.discard(done)
            self._changed.notify_all()
            if job.linger_s and (error := done.exception()) is not None:
                self._lost.append(error)

    def _leave(self) -> None:
        """The lead is about to end: what comes from now on is ours again, after what it has."""
        with self._changed:
            lead, self._lead = self._lead, None
            if lead is not None:
                self._settle_with(lead)

    @property
    def idle(self) -> bool:
        return not (self._jobs or self._busy or self._lost or self._handed)

    def close(self) -> None:
        """Commit what lingers and end the thread. Raises as `drain`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._leave()
        if self._thread is not None:
            self._thread.join()
        self.drain()

    def _serve(self) -> None:
        try:
            while (batch := self._next()) is not None:
                try:
                    self._commit(batch)
                finally:
                    with self._changed:
                        self._busy = False
                        self._changed.notify_all()
        finally:
            self._let_go()

    def _next(self) -> list[_Job] | None:
        """All that waits, once some of it is due; None at the end."""
        with self._changed:
            while True:
                if self._jobs and (self._closed or self._due_in() <= 0):
                    batch = list(self._jobs)
                    self._jobs.clear()
                    self._busy = True
                    return batch
                if self._closed and not self._jobs:
                    return None
                self._changed.wait(self._due_in() if self._jobs else None)

    def _due_in(self) -> float:
        return min(job.due for job in self._jobs) - self._clock()

    def _commit(self, batch: list[_Job]) -> None:
        try:
            self._once(batch)
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits
            if len(batch) == 1:
                self._fail(batch[0], error)
                return
            for job in batch:  # one of them spoiled it for all: each for itself
                self._commit([job])
            return
        for job in batch:
            job.future.set_result(None)

    def _once(self, batch: list[_Job]) -> None:
        """One transaction. It begins again where the connection that was held turns out to be gone before its end."""
        while True:
            held = self._connection is not None
            connection = self._connected()
            written = False
            try:
                with connection.begin():
                    for job in batch:
                        job.work(connection)
                    self._finish(connection)
                    written = True
                return
            except BaseException as error:
                self._undone()
                self._let_go()
                if written or not held or not is_gone(error):
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

    def _fail(self, job: _Job, error: BaseException) -> None:
        job.future.set_exception(error)
        if not job.urgent:
            with self._changed:
                self._lost.append(error)
