"""A snapshot of a world that is still being written, while its user goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any

from ramify.fork_engine.types import Snapshot


class PendingSnapshot(Awaitable[Snapshot]):
    """Await it for the snapshot, once that is on disk. Made by `World.begin_snapshot`.

    The snapshot goes on without being awaited, and if the task that awaits it is cancelled.
    """

    def __init__(self, taken: asyncio.Future[Snapshot], stored: asyncio.Future[Snapshot]) -> None:
        """`taken`: the state, complete but not flushed. `stored`: the same once it is flushed and the world's name
        stands for it."""
        self._taken, self._stored = taken, stored

    def __await__(self) -> Generator[Any, None, Snapshot]:
        return asyncio.shield(self._stored).__await__()

    async def result(self) -> Snapshot:
        """As awaiting it."""
        return await self

    def done(self) -> bool:
        """Whether the snapshot is on disk, or has failed."""
        return self._stored.done()

    async def taken(self) -> None:
        """Wait until the state is taken, or that has failed: the world then stands as it did before the snapshot."""
        await asyncio.wait({self._taken})

    async def ended(self) -> None:
        """Wait until it is on disk or has failed."""
        await asyncio.wait({self._stored})
