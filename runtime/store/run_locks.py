"""Which process works on a run: a lock that the kernel drops when the process ends, however it ends.

On one machine it is a file's. Where the database is on a server, which processes on several machines may use, the
server holds one, too, for as long as the connection lasts that writes (store/committer.py).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.runtime.errors import RunLocked
from ramify.runtime.records import RunId

if TYPE_CHECKING:  # the command line asks for locks, and starts without a database
    from ramify.runtime.store import RunStore


class RunLock:
    """Held while a process works on a run. Raises `RunLocked` where another one does."""

    def __init__(self, folder: Path, run: RunId) -> None:
        self._path = folder / f"{run}.lock"
        self._run = run
        self._fd: int | None = None

    def __enter__(self) -> RunLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
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
    """Who only looks (`is_held`) has the lock for a moment, too."""
    for pause_s in (0.002, 0.01, 0.05, None):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if pause_s is not None:
                time.sleep(pause_s)
    return False


@asynccontextmanager
async def hold_run(folder: Path, store: RunStore, run: RunId) -> AsyncIterator[None]:
    """Hold a run on this machine and, where its database is on a server, on all. Raises `RunLocked`."""
    with RunLock(folder, run):
        async with store.held(run):
            yield


def request_cancel(folder: Path, run: RunId) -> None:
    """Have the process that works on the run stop it, within half a second."""
    _wish(folder, run).touch()


def take_cancel_request(folder: Path, run: RunId) -> bool:
    """Whether somebody asked for that; once."""
    try:
        _wish(folder, run).unlink()
    except FileNotFoundError:
        return False
    return True


def _wish(folder: Path, run: RunId) -> Path:
    return folder / f"{run}.cancel"


def was_worked_on_here(folder: Path, run: RunId) -> bool:
    """Whether a process of this home ever worked on the run."""
    return (folder / f"{run}.lock").exists()


def is_held(folder: Path, run: RunId) -> bool:
    """Whether a living process works on the run. Of another user's lock, which cannot be asked: yes."""
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
