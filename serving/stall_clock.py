"""Time in which this event loop ran: what a limit on somebody else's silence may count.

A gateway may run in the loop of an application (LocalGateway) whose own work holds it up for minutes. What an engine
sent meanwhile lies unread in its socket, and a limit by the loop's clock is over before anybody has looked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

TICK_S = 0.25  # the most that a stretch without a turn of the loop counts
_SPARED = 8  # turns too late after its end that a limit lets pass: each of a loop that is always held up is one


class StallAwareClock:
    """Seconds, of which those are left out that this loop was held up for. It knows of these only while it is
    entered, by any number at once: it ticks then."""

    def __init__(self) -> None:
        self._watchers = 0
        self._last = 0.0  # tick
        self._lost = 0.0
        self._next: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # in which that is

    def time(self) -> float:
        loop = asyncio.get_running_loop()
        now = loop.time()
        return now - self._lost - (self._late(now) if self._next is not None and self._loop is loop else 0.0)

    def __enter__(self) -> Self:
        self._watchers += 1
        loop = asyncio.get_running_loop()
        if self._next is None or self._loop is not loop:  # a timer of a loop that has ended never comes
            self._loop, self._last = loop, loop.time()
            self._next = loop.call_later(TICK_S, self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        self._watchers -= 1

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncGenerator[None, None]:
        """Raises TimeoutError after so many of them."""
        async with asyncio.timeout(None) as limit:
            with StallAwareTimeout(self, limit, self.time() + seconds):
                yield

    async def wait(self, task: asyncio.Task[None], seconds: float) -> None:
        """Until that has ended, or so many of them are over."""
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
    """While entered, ends a wait when its clock shows `at`, or what `later` says by then where that is later."""

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
        except Exception:  # the loop only logs it; without a limit the wait would never end
            self._limit.reschedule(now)
            raise
        if now - self._due > TICK_S and left < TICK_S and self._spared:
            left, self._spared = TICK_S, self._spared - 1  # who was held up reads first what has come
        if left > 0:
            self._look_in(left)
        else:
            self._limit.reschedule(now)
