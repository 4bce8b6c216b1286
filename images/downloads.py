"""Downloads of blobs in a folder, by digest. They outlive a crash, and one process at a time works at one of them."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from ramify import paths
from ramify.fork_engine.close_on_fork import close_lock, open_lock

KEPT_S = 7 * 86400.0
"""Seconds for which an unfinished download is kept."""

_PAUSE_S = 0.05


class Download:
    """A file that grows, open and locked."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self.size = os.fstat(descriptor).st_size

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._descriptor, left, self.size)
            self.size += written
            left = left[written:]

    def drop(self) -> None:
        """Forget all of its bytes."""
        os.ftruncate(self._descriptor, 0)
        self.size = 0

    def digest(self) -> str:
        with self.path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


class Downloads:
    """A context manager: the downloads of one pull in a folder that several pulls may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        paths.make_private(self._folder)
        for path in self._folder.iterdir():
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @asynccontextmanager
    async def one(self, digest: str) -> AsyncIterator[Download]:
        """The download of a blob, held alone. Waits for another pull of it."""
        path = self._folder / digest.removeprefix("sha256:")
        while True:
            descriptor = open_lock(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    break
            except BlockingIOError:
                await asyncio.sleep(_PAUSE_S)
            except BaseException:
                close_lock(descriptor)
                raise
            close_lock(descriptor)  # another pull holds it, or finished and removed it
        try:
            yield Download(path, descriptor)
        finally:
            close_lock(descriptor)

    def finish(self, digests: Iterable[str]) -> None:
        """Remove the downloads of blobs that were imported."""
        for digest in digests:
            (self._folder / digest.removeprefix("sha256:")).unlink(missing_ok=True)
