"""Folders for worlds to come.

A fork makes four folders on the store's file system, which takes a disk's time where much else is made and removed.
So they are made while nobody waits, and a fork takes its own, name and all.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from ramify.sandboxes.forking import to_the_end

STOCK = 4
AFTER_S = 0.02  # so that what took the last goes first


class Folders:
    """Some, empty, in a backend's folder. What a crash leaves of them goes with that."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._ready: list[Path] = []
        self._making: asyncio.Task[None] | None = None
        self._restock()

    def take(self) -> Path:
        """Where a new world is to be: there with the upper and work folders of its first mount, or not there yet."""
        self._restock()
        return self._ready.pop() if self._ready else self._new()

    def _new(self) -> Path:
        return self._place / uuid.uuid4().hex[:12]

    def _restock(self) -> None:
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._make())

    async def _make(self) -> None:
        await asyncio.sleep(AFTER_S)
        while len(self._ready) < STOCK:
            folder = self._new()
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
