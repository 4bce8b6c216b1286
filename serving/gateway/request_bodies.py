"""Bodies that are still arriving: together they hold a bounded amount of memory, and each has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

MOST_UNFINISHED = 64 * 1024 * 1024
"""Bytes of all bodies that are still arriving."""
BODY_S = 60.0  # a body that takes longer comes from a client that means harm, or has left


class UnfinishedBodies:
    """If the bodies hold too much, the one that began first is given up: a client that sends one without ending it
    hinders none that sends quickly."""

    def __init__(self, most: int = MOST_UNFINISHED) -> None:
        self._most = most
        self._held: dict[asyncio.Timeout, int] = {}  # bytes of each, the oldest first
        self.bytes = 0
        self.stopped = False

    def stop(self) -> None:
        """Give up all bodies, those that are still to come too: their calls would be turned away."""
        self.stopped = True
        for limit in self._held:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def reading(self, seconds: float = BODY_S) -> AsyncIterator[Callable[[int], None]]:
        """Read one body inside. The yielded function notes bytes that have come.

        Raises `TimeoutError` after `seconds`, when the body has to make room, or once all are given up.
        """
        async with asyncio.timeout(0 if self.stopped else seconds) as limit:
            self._held[limit] = 0
            try:
                yield lambda size: self._note(limit, size)
            finally:
                self.bytes -= self._held.pop(limit, 0)

    def _note(self, limit: asyncio.Timeout, size: int) -> None:
        if limit not in self._held:
            return  # given up already
        self._held[limit] += size
        self.bytes += size
        while self.bytes > self._most and len(self._held) > 1:
            oldest = next(iter(self._held))
            self.bytes -= self._held.pop(oldest)
            oldest.reschedule(asyncio.get_running_loop().time())
