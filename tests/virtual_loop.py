"""An event loop in virtual time: an hour takes as long as its events, however slow the machine is."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")


class _Selector(selectors.DefaultSelector):
    """Time passes only where the loop would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "deadlock: everybody waits"
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run in virtual time, which begins at 0."""

    async def whole() -> _T:
        return await work()

    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(whole())
