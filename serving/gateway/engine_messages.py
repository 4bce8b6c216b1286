"""`EngineMessages`: what the gateway says to the schedulers inside engines, beside its calls.

Engines that `ramify serve` started hear it by their sockets, and engines at URLs by a route, if they have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from ramify.serving.protocol.engine_datagrams import EngineDatagrams

_SOON_S = 1.0  # so long a client waits for engines at URLs; they may take longer
_LAST_S = 1.0  # so long what is still on its way may take when the gateway ends

Route = Callable[[str, Sequence[str] | None], Awaitable[bool]]  # tells one engine of a release; raises nothing


class EngineMessages:
    """Speaks to the engines. No failure reaches a client: an engine that hears nothing goes on with what it knows.
    Close it.
    """

    def __init__(self, sockets: Mapping[int, Path], routes: Sequence[Route] = ()) -> None:
        """`sockets`: by replica, where its engine listens. `routes`: one for each engine at a URL."""
        self._sockets, self._routes = sockets, routes
        self._datagrams = EngineDatagrams()
        self._telling: set[asyncio.Task[bool]] = set()

    def send(self, replica: int, message: Mapping[str, object]) -> bool:
        """Send to one engine's socket, without waiting. False if it has none, or is gone or too busy."""
        path = self._sockets.get(replica)
        return path is not None and self._datagrams.send(path, message)

    async def release(self, compound_id: str, branches: Sequence[str] | None) -> int:
        """Say that no call will continue these branches of a workflow; of None, the whole workflow.

        Returns how many engines have heard it. Others may hear it later.
        """
        told = sum([self._datagrams.release(path, compound_id, branches) for path in self._sockets.values()])
        if not self._routes:
            return told
        telling = {asyncio.ensure_future(tell(compound_id, branches)) for tell in self._routes}
        self._telling |= telling
        for task in telling:
            task.add_done_callback(self._telling.discard)
        done, _ = await asyncio.wait(telling, timeout=_SOON_S)
        return told + sum([task.result() for task in done])

    async def aclose(self) -> None:
        if self._telling:
            await asyncio.wait(self._telling, timeout=_LAST_S)
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
