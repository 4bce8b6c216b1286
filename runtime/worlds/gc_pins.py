"""What keeps `ramify gc` from what is about to be named: held from a seal, or a look into the journal, to the commit.

A collection reads what the journal names and deletes the rest. Between the seal of a snapshot and the commit of the
row that names it, and between finding a row to take over and the commit that names its snapshot again, the journal
does not tell. So whoever is in between holds a shared lock, and the collection waits for it, alone. The kernel drops
the locks of a process that is killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from ramify.fork_engine.close_on_fork import close_in_children, close_lock, open_lock
from ramify.fork_engine.types import SnapshotId

_PINNED, _TURNSTILE, _KEPT = "pinned", "collecting", "kept"
_PAUSE_S = 0.01


class Pins:
    """Pins on a home's snapshots. `folder` is where its locks lie."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """No collection runs inside. One that waits goes first, so that it waits for what is under way only."""
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
    def collecting(self) -> Iterator[None]:
        """Alone: nothing is between its seal and its commit, and no second collection runs. Blocks until then."""
        turnstile, pinned = self._open(_TURNSTILE), self._open(_PINNED)
        try:
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            fcntl.flock(pinned, fcntl.LOCK_EX)
            yield
        finally:
            close_lock(pinned)
            close_lock(turnstile)

    @contextmanager
    def keep(self, id: SnapshotId) -> Iterator[None]:
        """A live world stands on this snapshot, and no row names it yet: no collection takes it. For any length."""
        fd, name = self._locked_file(id)
        try:
            yield
        finally:
            Path(name).unlink(missing_ok=True)
            close_lock(fd)

    def kept(self) -> set[SnapshotId]:
        """What `keep` holds at the moment. What dead processes left is removed; only inside `collecting`."""
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
        """For one live world."""
        return Ground(self)

    def _locked_file(self, id: SnapshotId) -> tuple[int, str]:
        folder = self._folder / _KEPT
        folder.mkdir(parents=True, exist_ok=True)
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
            close_lock(fd)  # a collection met it before it was locked, and took it for left behind

    def _open(self, name: str) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        return open_lock(self._folder / name, os.O_RDWR | os.O_CREAT)


class Ground:
    """The state that a live world was last sealed in: no row may name it, and the world goes on standing on it. No
    collection takes it before the next one, or `close`, after which it keeps nothing more."""

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._kept = ExitStack()
        self._closed = False

    def moved(self, id: SnapshotId) -> None:
        if self._closed:  # by the end of the step, whose command was under way: nobody would let go of it
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
