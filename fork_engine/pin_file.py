"""The snapshots that one process keeps from `ramify gc`, in one file that the process holds locked.

A pin costs one small write without a flush: what a crash of the machine loses, no process needs any more. The kernel
lets go of the lock of a process that is killed, and the next collection removes its file. A record is a line break,
`+` or `-`, and an id: a record that was cut off names no snapshot.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ramify import paths
from ramify.fork_engine.close_on_fork import close_in_children, close_lock
from ramify.fork_engine.types import SnapshotId

PREFIX = "owner."
_FEWEST = 1024  # records before a file is written again without those that cancel each other

_files: weakref.WeakSet[PinFile] = weakref.WeakSet()
_hooked = False


class PinFile:
    """Counts pins of this process. The file exists while there are any. Safe for threads. A forked child begins
    without pins: its parent's protect what the parent has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begin()
        _files.add(self)
        _hook()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._counts: Counter[SnapshotId] = Counter()
        self._dropped: deque[SnapshotId] = deque()
        self._open: tuple[int, str] | None = None  # descriptor, path
        self._records = 0

    def add(self, id: SnapshotId) -> None:
        with self._lock:
            if not self._counts[id]:
                if self._open is None:
                    self._open = self._locked()
                self._write((f"\n+{id}",))
            self._counts[id] += 1
        self._settle()

    def drop(self, id: SnapshotId) -> None:
        """Undo one `add`. May be called by the garbage collector of Python, also in the middle of another call."""
        self._dropped.append(id)
        self._settle()

    def drop_with(self, holder: object, id: SnapshotId) -> None:
        """Undo one `add` once nothing refers to `holder` any more."""
        weakref.finalize(holder, self._drop_in, self._process, id).atexit = False

    def _drop_in(self, process: int, id: SnapshotId) -> None:
        if os.getpid() == process:  # not the copy of the holder in a forked child
            self.drop(id)

    def _settle(self) -> None:
        while self._dropped and self._lock.acquire(blocking=False):  # whoever has it looks here when it is done
            try:
                self._forget()
            finally:
                self._lock.release()

    def _forget(self) -> None:
        gone = []
        while self._dropped:
            id = self._dropped.popleft()
            self._counts[id] -= 1
            if not self._counts[id]:
                del self._counts[id]
                gone.append(f"\n-{id}")
        if self._open is None or not gone:
            return
        if not self._counts:
            self._remove(self._open)
            self._open = None
        elif self._records > max(_FEWEST, 4 * len(self._counts)):
            self._begin_again(self._open, gone)
        else:
            with suppress(OSError):  # a full disk: kept a little longer
                self._write(gone)

    def _begin_again(self, before: tuple[int, str], gone: list[str]) -> None:
        """Write a new file of what is kept now. The one before goes on if none can be made: another try follows after
        as many records."""
        try:
            self._open = self._locked()
            self._write(f"\n+{id}" for id in self._counts)
        except OSError:  # no descriptor, or a full disk
            if self._open is not None and self._open != before:
                self._remove(self._open)
            self._open, self._records = before, 0
            with suppress(OSError):
                self._write(gone)
        else:
            self._remove(before)

    def _write(self, records: Iterable[str]) -> None:
        assert self._open is not None
        data = memoryview("".join(records).encode())
        self._records += len(data) // 66
        while data:
            data = data[os.write(self._open[0], data) :]

    def _locked(self) -> tuple[int, str]:
        paths.make_private(self._folder)
        while True:
            fd, name = tempfile.mkstemp(prefix=PREFIX, dir=self._folder)
            try:
                close_in_children(fd)
                fcntl.flock(fd, fcntl.LOCK_SH)
                if os.fstat(fd).st_nlink:
                    self._records = 0
                    return fd, name
            except BaseException:
                self._remove((fd, name))
                raise
            close_lock(fd)  # a collection removed the file before it was locked: try again

    def _remove(self, opened: tuple[int, str]) -> None:
        Path(opened[1]).unlink(missing_ok=True)
        close_lock(opened[0])


def pinned(raw: bytes) -> set[SnapshotId]:
    """The snapshots that the content of such a file keeps."""
    found: dict[SnapshotId, None] = {}
    for record in raw.decode("ascii", "replace").split("\n"):
        id = SnapshotId(record[1:])
        if record.startswith("+"):
            found[id] = None
        else:
            found.pop(id, None)
    return set(found)


def _hook() -> None:
    global _hooked
    if not _hooked:
        _hooked = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    for file in list(_files):
        file._begin()
