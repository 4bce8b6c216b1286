"""Pins protect snapshots from `ramify gc` until a journal row names them.

Garbage collection deletes the snapshots that no journal row names. No row names a snapshot yet between its seal and
the commit of its row, or between finding a row to reuse and the commit that names its snapshot again. A process holds
a shared lock during that time, and a collection takes the lock exclusively. The kernel releases the locks of a
process that is killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from ramify import paths
from ramify.fork_engine.close_on_fork import close_in_children, close_lock, open_lock
from ramify.fork_engine.types import SnapshotId

_PINNED, _TURNSTILE, _KEPT = "pinned", "collecting", "kept"
_PAUSE_S = 0.01


class Pins:
    """Pins on the snapshots of a home. `folder`: the folder of its locks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
        fd, name = self._locked_file(id)
        try:
            yield
        finally:
            Path(name).unlink(missing_ok=True)
            close_lock(fd)

    def kept(self) -> set[SnapshotId]:
        """Return the snapshots that `keep` holds, and remove the files of dead processes. Call inside
        `collecting`."""
        found = set()
        folder = self._folder / _KEPT
        for path in folder.iterdir() if folder.is_dir() else ():
            try:
                fd = open_lock(path, os.O_RDWR)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                found.add(SnapshotId(path.name.partition(".")[0]))
            finally:
                close_lock(fd)
        return found

    def ground(self) -> Ground:
        """Return a pin for one live world."""
        return Ground(self)

    def _locked_file(self, id: SnapshotId) -> tuple[int, str]:
        folder = self._folder / _KEPT
        paths.make_private(folder)
        while True:
            fd, name = tempfile.mkstemp(prefix=f"{id}.", dir=folder)
            try:
                close_in_children(fd)
                fcntl.flock(fd, fcntl.LOCK_SH)
                if os.fstat(fd).st_nlink:
                    return fd, name
            except BaseException:
                Path(name).unlink(missing_ok=True)
                close_lock(fd)
                raise
            close_lock(fd)  # a collection removed the file before it was locked: try again

    def _open(self, name: str) -> int:
        paths.make_private(self._folder)
        return open_lock(self._folder / name, os.O_RDWR | os.O_CREAT)


class Ground:
    """A pin on the last sealed state of a live world, which may have no row. It is held until the world is sealed
    again, or until `close`."""

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._kept = ExitStack()
        self._closed = False

    def moved(self, id: SnapshotId) -> None:
        if self._closed:  # the step ended while its command ran: nobody would release the new pin
            return
        kept = ExitStack()
        kept.enter_context(self._pins.keep(id))
        self._kept.close()
        self._kept = kept

    def close(self) -> None:
        self._closed = True
        self._kept.close()


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
