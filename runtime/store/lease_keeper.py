"""LeaseKeeper: takes leases of runs for this process, and renews them from a thread of its own.

It has a connection of its own: a renewal waits neither for the commits of this process nor for the flush of its
layers, which may take longer than a lease lasts. On SQLite its transactions are not flushed to the disk. After a
power cut no owner lives, so a lease that was forgotten does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ramify.runtime.errors import LeaseLost, StoreError
from ramify.runtime.records import RunId
from ramify.runtime.store import leases
from ramify.runtime.store.leases import FileLock, Owner

T = TypeVar("T")


class LeaseKeeper:
    """The leases of one committer. Any thread may call it; `close` gives all leases back.

    clock: returns Unix seconds, for SQLite; a server has its own clock.
    pause: waits for so many seconds, or less; returns True when the keeper is closed.
    """

    def __init__(
        self,
        engine: Engine,
        owner: Owner,
        *,
        clock: Callable[[], float],
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._engine, self.owner, self._clock = engine, owner, clock
        self._ended = threading.Event()
        self._pause = pause or self._ended.wait
        self._connection: Connection | None = None
        self._tokens: dict[RunId, int] = {}
        self._lost: dict[RunId, LeaseLost] = {}
        self._left: set[RunId] = set()  # leases that a transaction gave back, unless it failed
        self._lock = threading.Lock()  # of the three above: never held while the database is asked
        self._using = threading.Lock()  # of the connection
        self._thread: threading.Thread | None = None

    def take(self, run: RunId, lock: FileLock) -> None:
        """Take the lease of a run. Raises `LeaseHeld` and `RunLocked`."""
        taking = partial(leases.take, run=run, owner=self.owner, lock=lock, now=self._clock())
        self.took(run, self._transact(taking, durable=True))

    def took(self, run: RunId, token: int) -> None:
        """Note that a lease was taken, and renew it from now on."""
        with self._lock:
            self._tokens[run] = token
            self._lost.pop(run, None)
            self._left.discard(run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew_for_ever, name="ramify-lease", daemon=True)
                self._thread.start()

    def release(self, run: RunId) -> None:
        """Give a lease back; nothing happens if it is lost."""
        with self._lock:
            token = self._tokens.pop(run, None)
            self._lost.pop(run, None)
            self._left.discard(run)
        if token is not None:
            self._transact(lambda connection: leases.release(connection, run, self.owner, token))

    @contextmanager
    def leaving(self, runs: Collection[RunId | None]) -> Iterator[None]:
        """In this block, a transaction gives these leases back. They are kept if the block raises. But perhaps only
        the answer to the commit was lost: then that they are free does not say that another process took them."""
        with self._lock:
            before = {run: self._tokens.pop(run) for run in runs if run in self._tokens}
            self._left |= before.keys()
        try:
            yield
        except BaseException:
            with self._lock:
                self._tokens |= before
            raise
        with self._lock:
            self._left -= before.keys()

    def held(self) -> list[RunId]:
        """Return the runs whose leases this process has."""
        with self._lock:
            return list(self._tokens)

    def knows(self, run: RunId) -> bool:
        """Whether this process has the lease of a run, or has lost it."""
        return run in self._tokens or run in self._lost

    def tokens(self, runs: Collection[RunId | None], *, every: bool = False) -> dict[RunId, int]:
        """Return the tokens of those of these runs that this process holds; with `every`, of all that it holds.

        Raises `LeaseLost` if one of these was lost.
        """
        with self._lock:
            for run, error in self._lost.items():
                if every or run in runs:
                    raise error
            return {run: token for run, token in self._tokens.items() if every or run in runs}

    def loss_of(self, run: RunId) -> LeaseLost | None:
        """Return the error if the lease of a run that this process works on is known to be lost."""
        return self._lost.get(run)

    def note_lost(self, connection: Connection, tokens: Mapping[RunId, int]) -> NoReturn:
        """Find out which of these leases, not all of which are ours, are lost. Raises `LeaseLost` for the first."""
        self._note(found := leases.lost(connection, self.owner, tokens, self._clock()))
        for run in sorted(found):
            raise found[run]
        raise StoreError(f"the leases of runs {', '.join(sorted(tokens))} changed during a transaction: resume them")

    def renew(self) -> None:
        """Renew all leases, and find out which were lost."""
        with self._lock:
            tokens = dict(self._tokens)
        gone = {run: token for run, token in tokens.items() if not self._renewed(run, token)}
        if gone:
            self._note(self._transact(lambda connection: leases.lost(connection, self.owner, gone, self._clock())))

    def ask_to_stop(self, run: RunId, for_s: float) -> None:
        """Ask the owner of a run, in any process, to cancel it; 0 withdraws that."""
        self._transact(lambda connection: leases.ask_to_stop(connection, run, for_s, self._clock()))

    def end(self, run: RunId, host: str, pid: int) -> bool:
        """End the lease that another process has of a run (see `leases.end`)."""
        return self._transact(lambda connection: leases.end(connection, run, host, pid))

    def close(self) -> None:
        """Give all leases back, and end the thread."""
        self._ended.set()
        with self._lock:
            runs, thread = list(self._tokens), self._thread
        for run in runs:
            with suppress(DBAPIError):  # the server is gone: the leases end by themselves
                self.release(run)
        if thread is not None:
            thread.join()
        with self._using:
            self._disconnect()

    def _renewed(self, run: RunId, token: int) -> bool:
        return self._transact(lambda connection: leases.renew(connection, run, self.owner, token, self._clock()))

    def _note(self, found: Mapping[RunId, LeaseLost]) -> None:
        with self._lock:
            for run, error in found.items():
                if run in self._left:
                    continue
                if self._tokens.pop(run, None) is not None:  # else this process has given it back meanwhile
                    self._lost[run] = error

    def _renew_for_ever(self) -> None:
        while not self._pause(self.owner.renew_every_s) and not self._ended.is_set():
            with suppress(DBAPIError):  # the database is busy or gone: the next round tries again
                self.renew()

    def _transact(self, work: Callable[[Connection], T], *, durable: bool = False) -> T:
        """durable: whether a crash of the server must not undo it. A lost renewal or release only makes others wait;
        a lost lease ends the run that just began."""
        with self._using:
            try:
                connection = self._connected()
                with connection.begin():
                    if self._engine.dialect.name == "postgresql" and not durable:
                        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
                    return work(connection)
            except DBAPIError:
                self._disconnect()
                raise

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._engine.connect()
            connection.detach()  # its settings are not for others
            if self._engine.dialect.name == "sqlite":
                own: Any = connection.connection.dbapi_connection
                own.execute("PRAGMA synchronous = NORMAL")
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.close()
