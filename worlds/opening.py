"""A world that is about to be made: awaited, or entered as a context manager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from ramify.worlds.errors import WorldError
from ramify.worlds.home import Closing, WorldHome

W = TypeVar("W", bound=Closing)


class Opening(AbstractAsyncContextManager[W], Awaitable[W]):
    """A world that is about to be made. Await it for the world, or enter it: leaving it then closes the world."""

    def __init__(
        self,
        make: Callable[[WorldHome, bool], Awaitable[W]],
        home: WorldHome | str | Path | None,
        sandbox: str | None,
    ) -> None:
        if isinstance(home, WorldHome) and sandbox is not None:
            raise WorldError("an open home has its backend: leave out sandbox=")
        self._make = make
        self._home = home
        self._sandbox = sandbox
        self._world: W | None = None

    def __await__(self) -> Generator[Any, None, W]:
        return self._opened().__await__()

    async def __aenter__(self) -> W:
        self._world = await self._opened()
        return self._world

    async def __aexit__(self, *error: object) -> None:
        if self._world is not None:
            await self._world.close()

    async def _opened(self) -> W:
        if isinstance(self._home, WorldHome):
            return await self._make(self._home, False)
        home = WorldHome(self._home, self._sandbox)
        await home.__aenter__()
        try:
            return await self._make(home, True)
        except BaseException:
            await home.__aexit__()
            raise
