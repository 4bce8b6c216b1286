"""Pins protect snapshots from `ramify gc` until a journal row names them.

Garbage collection deletes the snapshots that no journal row names. No row names a snapshot yet between its seal and
the commit of its row, or between finding a row to reuse and the commit that names its snapshot again. A process holds
a shared lock during that time, and a collection takes the lock exclusively.

A snapshot under a live world, or one that a process has given out and may restore or fork, needs longer: the process
names it in a file that it holds locked (`PinFile`). Such a pin costs one small write without a flush: what a crash of
the machine loses, no process needs any more. A record of the file is a line break, `+` or `-`, and an id: a record
that was cut off names no snapshot. The kernel releases the locks of a process that is killed, and the next collection
removes its file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import tempfile
import threading
import weakref
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from ramify import paths
from ramify.fork_engine.close_on_fork import close_in_children, close_lock, open_lock
from ramify.fork_engine.types import SnapshotId

_PREFIX = "owner."  # of the files
_OURS = re.compile(rf"{re.escape(_PREFIX)}.*|[0-9a-f]{{64}}\..*")  # the second: of earlier versions
_PINNED, _TURNSTILE, _KEPT = "pinned", "collecting", "kept"  # two locks, and the folder of the files
_PAUSE_S = 0.01
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
            fd, name = tempfile.mkstemp(prefix=_PREFIX, dir=self._folder)
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


def snapshots_named_in(raw: bytes) -> set[SnapshotId]:
    """Return the snapshots that the content of such a file keeps."""
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


class Pins:
    """Pins on the snapshots of a home. `folder`: the folder of its locks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = PinFile(folder / _KEPT)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold off collections while this block runs. A collection that waits already goes first, so that new blocks
        cannot delay it for ever."""
        async with _taken(self._open(_TURNSTILE), fcntl.LOCK_SH):
            pin = self._open(_PINNED)
            try:
                await _take(pin, fcntl.LOCK_SH)
            except BaseException:
                close_lock(pin)
                raise
        try:
            yield
        finally:
            close_lock(pin)

    @contextmanager
    def collecting(self, *, wait: bool = True) -> Iterator[None]:
        """Hold the lock of a collection: no `held` block and no other collection runs. Blocks until it is free;
        without `wait` raises `BlockingIOError` instead."""
        turnstile, pinned = self._open(_TURNSTILE), self._open(_PINNED)
        how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.flock(turnstile, how)
            fcntl.flock(pinned, how)
            yield
        finally:
            close_lock(pinned)
            close_lock(turnstile)

    @contextmanager
    def keep(self, id: SnapshotId) -> Iterator[None]:
        """Keep one snapshot, for example under a live world, from collections while this block runs, however long."""
        self._file.add(id)
        try:
            yield
        finally:
            self._file.drop(id)

    def keep_with(self, holder: object, id: SnapshotId) -> None:
        """Keep a snapshot as long as this process refers to `holder`."""
        self._file.add(id)
        self._file.drop_with(holder, id)

    def kept(self) -> set[SnapshotId]:
        """Return the snapshots that living processes keep, and remove the files of dead ones. Call inside
        `collecting`."""
        found = set[SnapshotId]()
        while not self._read_kept(found):
            pass
        return found

    def _read_kept(self, found: set[SnapshotId]) -> bool:
        """Add what the files name. Return whether none vanished: a process that replaces its file may have put the
        new one where it was not seen."""
        whole, folder = True, self._folder / _KEPT
        for path in folder.iterdir() if folder.is_dir() else ():
            if not _OURS.fullmatch(path.name):
                continue  # a link in the home of somebody else could make this a folder of the user's
            try:
                fd = open_lock(path, os.O_RDWR)
            except FileNotFoundError:
                whole = False
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                if path.name.startswith(_PREFIX):
                    with os.fdopen(os.dup(fd), "rb") as file:
                        found |= snapshots_named_in(file.read())
                else:  # of a process with an earlier version, which has a file for each pin
                    found.add(SnapshotId(path.name.partition(".")[0]))
            finally:
                close_lock(fd)
        return whole

    def of_world(self) -> WorldPins:
        """Return the pins of one live world."""
        return WorldPins(self._file)

    def _open(self, name: str) -> int:
        paths.make_private(self._folder)
        return open_lock(self._folder / name, os.O_RDWR | os.O_CREAT)


class WorldPins:
    """The pins of a live world, until `close`: one on its last sealed state, which may have no row, and one on each
    state that it may be asked for again."""

    def __init__(self, file: PinFile) -> None:
        self._file = file
        self._last: SnapshotId | None = None
        self._given = set[SnapshotId]()
        self._closed = False

    def moved(self, id: SnapshotId) -> None:
        """The world stands over this state now."""
        if self._closed or id == self._last:  # the step ended while its command ran: nobody would release the new pin
            return
        self._file.add(id)
        if self._last is not None:
            self._file.drop(self._last)
        self._last = id

    @contextmanager
    def following(self, stands_over: Callable[[], SnapshotId]) -> Iterator[None]:
        """Keep the state over which the world stands at the end of this block. A seal that is cancelled in it comes
        to its end all the same."""
        try:
            yield
        finally:
            self.moved(stands_over())

    def keep(self, id: SnapshotId) -> None:
        """Keep a state that the world gave out, or comes from, whatever the world does next."""
        if not self._closed and id not in self._given:
            self._file.add(id)
            self._given.add(id)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for id in (*self._given, *(() if self._last is None else (self._last,))):
            self._file.drop(id)


@asynccontextmanager
async def _taken(fd: int, how: int) -> AsyncIterator[None]:
    try:
        await _take(fd, how)
        yield
    finally:
        close_lock(fd)


async def _take(fd: int, how: int) -> None:
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(_PAUSE_S)
