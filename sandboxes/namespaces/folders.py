"""Folders for worlds to come.

A fork makes four folders on the store's file system. That takes ext4 from 0.1 ms to several, where many files were
removed in the last minute (it does not give their inodes out again at once), so they are made while nobody waits, and
a fork takes its own by one rename.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from ramify.sandboxes.forking import to_the_end

READY = "ready"  # in a backend's folder
STOCK = 4
AFTER_S = 0.02  # so that what took the last goes first


class Folders:
    """Some, empty, for one backend. What a crash leaves of them goes with the backend's folder."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._ready: list[Path] = []
        self._making: asyncio.Task[None] | None = None
        place.mkdir()
        self._restock()

    def give(self, folder: Path) -> bool:
        """Put one at `folder`, the upper and the work folder of its first mount in it; False where none is ready."""
        self._restock()
        if not self._ready:
            return False
        try:
            self._ready.pop().rename(folder)
        except FileNotFoundError:
            return False  # somebody took it away; whoever forks makes their own
        return True

    def _restock(self) -> None:
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._make())

    async def _make(self) -> None:
        await asyncio.sleep(AFTER_S)
        while len(self._ready) < STOCK:
            folder = self._place / uuid.uuid4().hex[:12]
            try:
                await to_the_end(asyncio.to_thread(_make, folder))
            except OSError:
                return  # whoever forks next makes their own, and is told why that fails
            self._ready.append(folder)

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait({self._making})


def _make(folder: Path) -> None:
    for path in (folder, folder / "upper", folder / "work", folder / "work/1"):
        path.mkdir()
