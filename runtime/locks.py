"""Which process works on a run: a lock that the kernel drops when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from ramify.runtime.errors import RunLocked
from ramify.runtime.records import RunId


class RunLock:
    """Held while a process works on a run. Raises `RunLocked` where another one does."""

    def __init__(self, folder: Path, run: RunId) -> None:
        self._path = folder / f"{run}.lock"
        self._run = run
        self._fd: int | None = None

    def __enter__(self) -> RunLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise RunLocked(
                f"run {self._run} is being worked on by another process: wait for it or stop it"
            ) from error
        self._fd = fd
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_held(folder: Path, run: RunId) -> bool:
    """Whether a living process works on the run."""
    try:
        fd = os.open(folder / f"{run}.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
