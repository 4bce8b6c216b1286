"""Run locks: only one process works on a run at a time. The kernel releases the lock when the process ends.

On one machine the lock is a file lock. If the database is on a server, which processes on several machines may use,
the server also holds an advisory lock for as long as the writing connection lives (`run_committer.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.store_folder import flush_folder
from ramify.runtime.errors import RunLocked, RunPushed
from ramify.runtime.records import RunId

if TYPE_CHECKING:  # the command line uses locks, and starts without SQLAlchemy
    from sqlalchemy import Connection


class LocksRuns(Protocol):
    """The part of RunStore that locks a run on a server."""

    def held(self, run_id: RunId, /) -> AbstractAsyncContextManager[None]: ...


class RunLock:
    """The file lock of a run. Entering it raises `RunLocked` if another process holds it, and `RunPushed` if the run
    was pushed to another machine."""

    def __init__(self, folder: Path, run: RunId, *, even_pushed: bool = False) -> None:
        """`even_pushed`: also hold a run that was pushed to another machine."""
        self._folder, self._even_pushed = folder, even_pushed
        self._path = folder / f"{run}.lock"
        self._run = run
        self._fd: int | None = None

    def __enter__(self) -> RunLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = open_lock(self._path, os.O_RDWR | os.O_CREAT)
        if not _taken(fd):
            close_lock(fd)
            raise RunLocked(f"run {self._run} is being worked on by another process: wait for it or stop it")
        if not self._even_pushed and (pushed := pushed_run(self._folder, self._run)) is not None:
            close_lock(fd)
            raise RunPushed(
                f"run {self._run} was pushed to {pushed.url}, and goes on where it is pulled: "
                f"`ramify pull {self._run}` brings it back, unless another machine has pulled it"
            )
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
async def hold_run(folder: Path, store: LocksRuns, run: RunId, *, even_pushed: bool = False) -> AsyncIterator[None]:
    """Hold a run on this machine and, if its database is on a server, on all machines. Raises `RunLocked`, and
    `RunPushed` unless `even_pushed`."""
    with RunLock(folder, run, even_pushed=even_pushed):
        async with store.held(run):
            yield


@dataclass(frozen=True, slots=True)
class PushedRun:
    """Where a run was pushed to. generation: how often it had been pushed then, by any machine."""

    url: str
    generation: int


def note_pushed(folder: Path, run: RunId, pushed: PushedRun) -> None:
    """From now on, refuse the run on this machine (`RunPushed`). Durable when this returns. The caller holds it."""
    aside = folder / f".{run}.pushed"
    with aside.open("w") as file:
        json.dump(asdict(pushed), file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / f"{run}.pushed")
    flush_folder(folder)


def pushed_run(folder: Path, run: RunId) -> PushedRun | None:
    """Return where the run was pushed to, or None if this machine may work on it."""
    try:
        return PushedRun(**json.loads((folder / f"{run}.pushed").read_bytes()))
    except FileNotFoundError:
        return None


def note_brought_back(folder: Path, run: RunId) -> None:
    """Let this machine work on a run again. The caller holds it."""
    (folder / f"{run}.pushed").unlink(missing_ok=True)
    flush_folder(folder)


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
