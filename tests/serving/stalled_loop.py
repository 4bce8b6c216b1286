"""An event loop whose clock the test moves: blocked or busy for long, without waiting."""

from __future__ import annotations

import asyncio

import pytest

from ramify.serving.stall_clock import TICK_S


class Ahead:
    """Of the real time, this loop's is so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._by = 0.0
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self._by)

    async def held_up(self, seconds: float) -> None:
        """So long it had not one turn; then it has some."""
        self._by += seconds
        await turns()

    async def ran(self, seconds: float) -> None:
        """So long it did, with turns all the time."""
        for _ in range(round(seconds / TICK_S)):
            self._by += TICK_S
            await turns()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def never() -> None:
    await asyncio.Event().wait()
