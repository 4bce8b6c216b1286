"""An event loop whose clock the test moves: blocked or busy for long, without waiting."""

from __future__ import annotations

import asyncio

import pytest

from ramify.serving.stall_clock import TICK_S


class Ahead:
    """Moves the clock of the running loop ahead of the real time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._by = 0.0
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self._by)

    async def held_up(self, seconds: float) -> None:
        """The loop was blocked for so long, without a turn; then it has some."""
        self._by += seconds
        await turns()

    async def ran(self, seconds: float) -> None:
        """The loop ran for so long, with turns all the time."""
        for _ in range(round(seconds / TICK_S)):
            self._by += TICK_S
            await turns()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def never() -> None:
    await asyncio.Event().wait()
