"""A clock that counts only the time in which this event loop ran, and timeouts by that clock.

A gateway may run in the event loop of an application (LocalGateway) whose own work blocks the loop for minutes. What
an engine sent meanwhile lies unread in its socket. A timeout by the loop's clock would end before anybody has looked,
and a live engine would count as silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

TICK_S = 0.25  # a stretch without a turn of the loop counts as at most this
_SPARED = 8  # late turns after its end that a timeout tolerates: in a loop that is always blocked, each turn is late


class StallAwareClock:
    """Seconds, without those in which the event loop was blocked. It notices blocking only while it is entered (it
    ticks then); any number of users may enter it at once."""

    def __init__(self) -> None:
        self._watchers = 0
        self._last = 0.0  # tick
        self._lost = 0.0
        self._next: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop of `_next`

    def time(self) -> float:
        loop = asyncio.get_running_loop()
        now = loop.time()
        return now - self._lost - (self._late(now) if self._next is not None and self._loop is loop else 0.0)

    def __enter__(self) -> Self:
        self._watchers += 1
        loop = asyncio.get_running_loop()
        if self._next is None or self._loop is not loop:  # the timer of a loop that has ended never fires
            self._loop, self._last = loop, loop.time()
            self._next = loop.call_later(TICK_S, self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        self._watchers -= 1

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncGenerator[None, None]:
        """Raises TimeoutError after so many seconds of this clock."""
        async with asyncio.timeout(None) as limit:
            with StallAwareTimeout(self, limit, self.time() + seconds):
                yield

    async def wait(self, task: asyncio.Task[None], seconds: float) -> None:
        """Wait until the task has ended, or for so many seconds of this clock."""
        with suppress(TimeoutError):
            async with self.timeout(seconds):
                await asyncio.wait({task})

    def _late(self, now: float) -> float:
        return max(0.0, now - self._last - TICK_S)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            return
        now = loop.time()
        self._lost += self._late(now)
        self._last = now
        self._next = loop.call_later(TICK_S, self._tick) if self._watchers else None


class StallAwareTimeout:
    """While entered, ends a wait when the clock shows `at`, or the later time that `later()` then returns."""

    __slots__ = ("_at", "_clock", "_due", "_handle", "_later", "_limit", "_spared")

    def __init__(
        self, clock: StallAwareClock, limit: asyncio.Timeout, at: float, later: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._clock, self._limit, self._at, self._later = clock, limit, at, later
        self._spared = _SPARED

    def __enter__(self) -> None:
        self._clock.__enter__()
        self._look_in(self._at - self._clock.time())

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()
        self._clock.__exit__()

    def _look_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + max(0.0, seconds)
        self._handle = loop.call_at(self._due, self._look)

    def _look(self) -> None:
        if self._limit.expired():
            return
        now = asyncio.get_running_loop().time()
        try:
            left = max(self._at, self._later()) - self._clock.time()
        except Exception:  # the loop would only log it, and without a timeout the wait would never end
            self._limit.reschedule(now)
            raise
        if now - self._due > TICK_S and left < TICK_S and self._spared:
            left, self._spared = TICK_S, self._spared - 1  # after a blocked loop, first read what has come
        if left > 0:
            self._look_in(left)
        else:
            self._limit.reschedule(now)
