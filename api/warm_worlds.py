"""Worlds that are made before they are asked for, so that their first command waits for no start.

    async with WorldHome() as home, WarmWorlds(lambda: World.create(image="python:3.12", home=home), most=8) as pool:
        pool.expect(8, after_s=5.0)  # what a plan says of the next stage
        async with pool.world() as world:  # one that waits; a new one if none does
            await world.exec(["python", "-V"])

How many wait follows `serving.scaling.lookahead`: the worlds that are in use or expected soon, and what was needed at
once in the last minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self

from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.sandboxes.linux.process_memory import fullest_memory
from ramify.serving.scaling.lookahead import Lookahead
from ramify.serving.scaling.pools import (
    MOST_MEMORY,
    Controller,
    FutureCalls,
    Observation,
    PoolLimits,
    PoolLoad,
)
from ramify.worlds.errors import WorldClosed
from ramify.worlds.world import World

_POOL = "worlds"
_PERIOD_S = 0.25  # between decisions
_FIRST_GUESS_S = 0.1  # of a start and of a use, before one was seen
_RETRY_S = 5.0  # after a world that could not be made
_GONE_S = 30.0  # after a world was expected, and did not come
_MOST_IN_ALL = 1 << 20
log = logging.getLogger("ramify.worlds")


class WarmWorlds:
    """An async context manager. Leaving it closes the worlds that wait; worlds in use are closed by their users.

    make: makes a world without a name. A world has the state and the files that `make` found when it made it.
    least, most: how many worlds wait at all times, and at most. Each has an agent and a shell, about 8 MB of its own.
        While more than 85 % of the memory is used (of the machine, or of a control group), `least` wait.
    memory: bytes that are used, and all of them.

    Raises BadPool for a `most` below `least` or below 1.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[World]],
        *,
        least: int = 1,
        most: int = 8,
        controller: Controller | None = None,
        memory: Callable[[], tuple[int, int]] = fullest_memory,
    ) -> None:
        PoolLimits(least, most)
        self._make, self._least, self._most = make, least, most
        self._controller = controller or Lookahead(_MOST_IN_ALL)
        self._memory = memory
        self._waiting: deque[World] = deque()
        self._in_use = 0
        self._wanted = least  # worlds, with those in use
        self._expected: deque[list[float]] = deque()  # when, and how many, in order
        self._demand = Observation(_FIRST_GUESS_S)
        self._start_s = _FIRST_GUESS_S
        self._retry_at = 0.0
        self._asked = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many worlds wait."""
        return len(self._waiting)

    async def __aenter__(self) -> Self:
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await finish_before_cancelling(self._end(keeping))

    def expect(self, worlds: int, *, after_s: float = 0.0) -> None:
        """Say that so many worlds will be asked for, in about so many seconds."""
        due = asyncio.get_running_loop().time() + after_s
        self._expected = deque(sorted([*self._expected, [due, float(worlds)]]))
        self._asked.set()

    @asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        """A world, which is closed at the end. Raises WorldClosed outside of the pool's block, and as `make` does."""
        if self._keeping is None:
            raise WorldClosed("this pool was not entered, or was left: use it within `async with`")
        loop = asyncio.get_running_loop()
        self._arrived(loop.time())
        try:
            async with self._waiting.popleft() if self._waiting else await self._make() as world:
                begun = loop.time()
                yield world
            self._demand.served(loop.time() - begun)
        finally:
            self._in_use -= 1
            self._asked.set()

    def _arrived(self, now: float) -> None:
        self._in_use += 1
        self._demand.arrived(now)
        if self._expected:
            self._expected[0][1] -= 1
            if self._expected[0][1] <= 0:
                self._expected.popleft()
        self._asked.set()

    async def _end(self, keeping: asyncio.Task[None]) -> None:
        """Close the worlds that wait, even if some cannot be closed. Raises what the first of these raised."""
        await asyncio.wait({keeping})
        closing = [world.close() for world in self._waiting]
        self._waiting.clear()
        errors = await asyncio.gather(*closing, return_exceptions=True)
        if (first := next((error for error in errors if error is not None), None)) is not None:
            raise first

    async def _keep(self) -> None:
        """Make worlds one at a time, so that those in use go first, and close those that are too many."""
        loop = asyncio.get_running_loop()
        while True:
            self._asked.clear()
            try:
                if await self._step(loop):
                    continue
            except Exception as error:  # noqa: BLE001  # whoever asks for a world makes one, and is told the reason
                self._retry_at = loop.time() + _RETRY_S
                log.warning("no world could be made ahead: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_S):
                    await self._asked.wait()

    async def _step(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Make or close one world. False if there was nothing to do."""
        wanted = self._decide(loop.time()) - self._in_use
        if len(self._waiting) > wanted:
            await finish_before_cancelling(self._waiting.pop().close())
            return True
        if len(self._waiting) < wanted and loop.time() >= self._retry_at:
            begun = loop.time()
            self._waiting.append(await _started(self._make))
            self._start_s = loop.time() - begun
            return True
        return False

    def _decide(self, now: float) -> int:
        """Worlds that there should be, with those in use."""
        while self._expected and self._expected[0][0] < now - _GONE_S:
            self._expected.popleft()
        used, total = self._memory()
        if used > MOST_MEMORY * total:
            self._wanted = self._in_use + self._least
            return self._wanted
        load = PoolLoad(
            _POOL,
            self._demand.rate(now),
            self._demand.service_rate,
            self._wanted,
            self._demand.cv(now),
            running=self._in_use,
            limits=PoolLimits(self._in_use + self._least, self._in_use + self._most, self._start_s),
        )
        future = [
            FutureCalls(_POOL, worlds, max(0.0, due - now), self._demand.service_s) for due, worlds in self._expected
        ]
        wanted = self._controller.decide([load], future, now).replicas[_POOL]
        self._wanted = min(wanted, self._in_use + self._most)  # it may keep what it had when more were in use
        return self._wanted


async def _started(make: Callable[[], Awaitable[World]]) -> World:
    """A world that has run a command: a world starts its agent with its first one."""
    world = await make()
    try:
        await world.exec(["true"])
    except BaseException:
        await world.close()
        raise
    return world
