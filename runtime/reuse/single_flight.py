"""Single flight: if several branches or processes need the same result at the same time, one computes it.

The branches of a run wait by futures. Processes wait by locks on the bytes of one file, one byte per key. The kernel
releases the locks when their process ends in whatever way, so there is nothing to clean up. They are open file
description locks (fcntl(2)), which also exclude two runs of one process from each other.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ramify import paths
from ramify.fork_engine.close_on_fork import close_lock, open_lock

_FILE = "flights"
_BYTES = 1 << 62
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: l_type, l_whence, l_start, l_len, l_pid
_FIRST_S, _LONGEST_S = 0.005, 0.1  # seconds between two attempts to get the lock of another process


class SingleFlight:
    """The keys that one run computes at the moment. Opens its file when first used; `close` releases all locks."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._fd: int | None = None
        self._flying: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Hold `key`: while this block runs, nobody else computes it. Look first whether somebody has."""
        while (flying := self._flying.get(key)) is not None:
            await asyncio.wait([flying])
        mine = self._flying[key] = asyncio.get_running_loop().create_future()
        try:
            await self._lock(key)
            try:
                yield
            finally:
                self._set(key, fcntl.F_UNLCK)
        finally:
            del self._flying[key]
            mine.set_result(None)

    def close(self) -> None:
        if self._fd is not None:
            with suppress(OSError):  # unlock explicitly: a forked child may hold a copy of the descriptor
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            close_lock(self._fd)
            self._fd = None

    async def _lock(self, key: str) -> None:
        pause = _FIRST_S
        while not self._set(key, fcntl.F_WRLCK):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_S)

    def _set(self, key: str, kind: int) -> bool:
        if self._fd is None:
            paths.make_private(self._path.parent)
            self._fd = open_lock(self._path, os.O_RDWR | os.O_CREAT)
        asked = _FLOCK.pack(kind, os.SEEK_SET, int(key[:16], 16) % _BYTES, 1, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, asked)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True
