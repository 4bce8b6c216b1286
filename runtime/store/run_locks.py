"""Run locks: only one process works on a run at a time. The kernel releases the lock when the process ends.

On one machine the lock is a file lock. If the database is on a server, which processes on several machines may use,
the server also holds an advisory lock for as long as the writing connection lives (`run_committer.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ramify import paths
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.runtime.errors import RunLocked
from ramify.runtime.records import RunId

if TYPE_CHECKING:  # the command line uses locks, and starts without SQLAlchemy
    from sqlalchemy import Connection


class LocksRuns(Protocol):
    """The part of RunStore that locks a run on a server."""

    def held(self, run_id: RunId, /) -> AbstractAsyncContextManager[None]: ...


class RunLock:
    """The file lock of a run. Entering it raises `RunLocked` if another process holds it."""

    def __init__(self, folder: Path, run: RunId) -> None:
        self._path = folder / f"{run}.lock"
        self._run = run
        self._fd: int | None = None

    def __enter__(self) -> RunLock:
        paths.make_private(self._path.parent)
        fd = open_lock(self._path, os.O_RDWR | os.O_CREAT)
        if not _taken(fd):
            close_lock(fd)
            raise RunLocked(f"run {self._run} is being worked on by another process: wait for it or stop it")
        self._fd = fd
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._fd is not None:
            close_lock(self._fd)
            self._fd = None


def _taken(fd: int) -> bool:
    """Try to take the lock. Retries shortly, because `is_held` takes it for a moment as well."""
    for pause_s in (0.002, 0.01, 0.05, None):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if pause_s is not None:
                time.sleep(pause_s)
    return False


@asynccontextmanager
async def hold_run(folder: Path, store: LocksRuns, run: RunId) -> AsyncIterator[None]:
    """Hold a run on this machine and, if its database is on a server, on all machines. Raises `RunLocked`."""
    with RunLock(folder, run):
        async with store.held(run):
            yield


def request_cancel(folder: Path, run: RunId) -> None:
    """Ask the process that works on the run to cancel it; it does so within half a second."""
    _wish(folder, run).touch()


def take_cancel_request(folder: Path, run: RunId) -> bool:
    """Whether a cancellation was requested; clears the request."""
    try:
        _wish(folder, run).unlink()
    except FileNotFoundError:
        return False
    return True


def _wish(folder: Path, run: RunId) -> Path:
    return folder / f"{run}.cancel"


def was_worked_on_here(folder: Path, run: RunId) -> bool:
    """Whether a process that uses this home ever worked on the run."""
    return (folder / f"{run}.lock").exists()


def is_held(folder: Path, run: RunId) -> bool:
    """Whether a process works on the run. True for another user's lock, which cannot be opened."""
    try:
        fd = open_lock(folder / f"{run}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        close_lock(fd)
    return False


def lock_number(run: RunId, what: str = "run") -> int:
    """Return the number of a run's advisory lock in PostgreSQL, a signed 64-bit integer. `what`: "run" for working on
    the run, "stop" for cancelling it."""
    return int.from_bytes(hashlib.sha256(f"ramify {what} {run}".encode()).digest()[:8], signed=True)


def held_elsewhere(connection: Connection, runs: Iterable[RunId], what: str = "run") -> set[RunId]:
    """Return those of these runs that a process on any machine has locked."""
    rows = connection.exec_driver_sql(
        "SELECT classid::bigint, objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
        "AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    there = {(int(high) << 32) | int(low) for high, low in rows}
    return {run for run in runs if lock_number(run, what) % (1 << 64) in there}
