"""Run locks: only one process works on a run at a time.

Each run has a file lock in its home and a lease in its database (`leases.py`). The kernel releases the file lock when
the process ends in any way, so a process that gets it need not wait for the lease of its predecessor. The lease
serves where the file lock does not: between homes and machines, and when the process that has the lock is stopped
(SIGSTOP, a frozen container). Then its lease ends, and the one that takes the lease replaces the file of the lock.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ramify import paths
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.store_folder import flush_folder
from ramify.runtime.errors import RunLocked, RunPushed, StoreError
from ramify.runtime.records import CheckpointRecord, Lease, RunId, RunRecord

if TYPE_CHECKING:  # the command line uses locks, and starts without SQLAlchemy
    from ramify.runtime.store.leases import FileLock


_LONGEST_ID = 200  # bytes: file systems allow 255 for a name
_LONGEST_LOOK_S, _LOOK_AGAIN_S = 1.0, 0.002


class LocksRuns(Protocol):
    """The part of RunStore that takes the lease of a run."""

    def held(self, run_id: RunId, lock: FileLock, /) -> AbstractAsyncContextManager[None]: ...

    def beginning(
        self, run: RunRecord, base: CheckpointRecord, lock: FileLock, /
    ) -> AbstractAsyncContextManager[None]: ...


class RunLock:
    """The file lock of a run. Entering it raises `RunLocked` if another process holds it, and `RunPushed` if the run
    was pushed to another machine."""

    def __init__(self, folder: Path, run: RunId, *, even_pushed: bool = False) -> None:
        """`even_pushed`: also hold a run that was pushed to another machine."""
        self._folder, self._even_pushed = folder, even_pushed
        self._path = _file(folder, run, "lock")
        self._run = run
        self._fd: int | None = None

    def __enter__(self) -> RunLock:
        self._refuse_pushed()
        if (fd := self._open_locked()) is None:
            raise RunLocked(f"run {self._run} is being worked on by another process: wait for it or stop it")
        self._fd = fd
        try:
            self._refuse_pushed()  # again: the one that had the lock may have pushed it
        except RunPushed:
            self.__exit__(None, None, None)
            raise
        return self

    def replace(self) -> None:
        """Take the lock from a process that has it, by another file. The caller has taken the run's lease."""
        self._refuse_pushed()
        self._path.unlink(missing_ok=True)
        self._fd = self._open_locked()

    def _open_locked(self) -> int | None:
        """Open and lock the file. Returns None if another process has the lock."""
        paths.make_private(self._path.parent)
        while True:
            fd = _opened(self._path, os.O_RDWR | os.O_CREAT)
            if not _taken(fd):
                close_lock(fd)
                return None
            if _is_file_at(fd, self._path):
                return fd
            close_lock(fd)  # it was replaced meanwhile: the lock is that of the new file

    def _refuse_pushed(self) -> None:
        if not self._even_pushed and (pushed := pushed_run(self._folder, self._run)) is not None:
            raise RunPushed(
                f"run {self._run} was pushed to {pushed.url}, and continues where it is pulled: "
                f"`ramify pull {self._run}` brings it back, unless another machine has pulled it"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._fd is not None:
            close_lock(self._fd)
            self._fd = None


def _opened(path: Path, flags: int) -> int:
    """Open the file of a lock. Raises `StoreError` if it is a link, which could lead to any file of the user."""
    try:
        return open_lock(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StoreError(
            f"{path} is a link, and not opened. Ramify did not make it: find out who did, and remove it"
        ) from None


def _is_file_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _taken(fd: int) -> bool:
    """Try to take the lock. Waits for processes that only look (`is_held`), also if one is stopped meanwhile."""
    until = time.monotonic() + _LONGEST_LOOK_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # who looks shares the lock, who works on the run does not
        except BlockingIOError:
            return False
        fcntl.flock(fd, fcntl.LOCK_UN)
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_AGAIN_S)


def _names_a_file(run: RunId) -> bool:
    short = len(run.encode(errors="replace")) <= _LONGEST_ID
    return bool(run) and short and not run.startswith(".") and {"/", "\0"}.isdisjoint(run)


def _file(folder: Path, run: RunId, ending: str) -> Path:
    """Raises `StoreError` if the file would lie elsewhere: the id may be from a database that somebody else wrote."""
    if not _names_a_file(run):
        raise StoreError(
            f"the database has a run {run!r}, whose id cannot be the name of a file: no version of Ramify makes such "
            "ids, so do not work on this run, nor in this home unless you know who made it"
        )
    return folder / f"{run}.{ending}"


@asynccontextmanager
async def hold_run(folder: Path, store: LocksRuns, run: RunId, *, even_pushed: bool = False) -> AsyncIterator[None]:
    """Hold a run: its file lock and its lease. Raises `RunLocked`, and `RunPushed` unless `even_pushed`."""
    from ramify.runtime.store.leases import FileLock

    lock = RunLock(folder, run, even_pushed=even_pushed)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock)
            is_taken = True
        except RunPushed:
            raise
        except RunLocked:
            is_taken = False
        async with store.held(run, FileLock(identity(folder), is_taken)):
            if not is_taken:
                stack.push(lock)
                lock.replace()
            yield


@asynccontextmanager
async def hold_new_run(folder: Path, store: LocksRuns, run: RunRecord, base: CheckpointRecord) -> AsyncIterator[None]:
    """Write the first rows of a run, and hold it as `hold_run` does."""
    from ramify.runtime.store.leases import FileLock

    with RunLock(folder, run.id):
        async with store.beginning(run, base, FileLock(identity(folder))):
            yield


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identity(folder: Path) -> str:
    """Return a text that identifies a folder on this kernel, as long as it runs; "" if there is none."""
    try:
        boot = _boot_id()
        there = folder.stat()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot} {there.st_dev} {there.st_ino}".encode()).hexdigest()[:32]


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
    aside.replace(_file(folder, run, "pushed"))
    flush_folder(folder)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO in its place has nothing to read


def pushed_run(folder: Path, run: RunId) -> PushedRun | None:
    """Return where the run was pushed to, or None if this machine may work on it.

    Raises `RunPushed` if the file that says so is damaged.
    """
    note = _file(folder, run, "pushed")
    try:
        with open(note, "rb", opener=_without_waiting) as file:  # Path.open takes no opener
            told = json.loads(file.read())
        return PushedRun(str(told["url"]), int(told["generation"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        raise RunPushed(
            f"run {run} was pushed from this machine, but {note}, which says where to, is damaged: pull the run on "
            "another machine and resume it there; or, if you are sure that no other machine works on it, remove the "
            "file"
        ) from None


def note_brought_back(folder: Path, run: RunId) -> None:
    """Let this machine work on a run again. The caller holds it."""
    _file(folder, run, "pushed").unlink(missing_ok=True)
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
    return _file(folder, run, "cancel")


def was_worked_on_here(folder: Path, run: RunId) -> bool:
    """Whether a process that uses this home ever worked on the run."""
    return _names_a_file(run) and _file(folder, run, "lock").exists()


def is_held(folder: Path, run: RunId) -> bool:
    """Whether a process works on the run. True for another user's lock, which cannot be opened."""
    if not _names_a_file(run):
        return False
    try:
        fd = _opened(_file(folder, run, "lock"), os.O_RDONLY | os.O_NONBLOCK)  # also of a FIFO
    except (FileNotFoundError, StoreError):
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


def is_worked_on(folder: Path, run: RunId, lease: Lease | None) -> bool:
    """Whether a process on any machine works on the run. `lease`: the run's. Processes that use this folder are known
    by its lock, without waiting for the end of their lease."""
    if is_held(folder, run):
        return True
    return lease is not None and lease.is_alive and lease.lock_folder != identity(folder)
