"""How long a world's first command takes: in a new world, and in one that waited; and eight at once, which were
expected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ramify.warm_worlds import WarmWorlds
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

AT_ONCE = 8
_REST_S = 0.2  # between measurements, for what goes on in the background


@dataclass(frozen=True, slots=True)
class FirstCommands:
    """Seconds, each measurement."""

    new: tuple[float, ...]
    warm: tuple[float, ...]
    all_new: tuple[float, ...]  # until the last of `AT_ONCE` is done
    all_warm: tuple[float, ...]


async def first_commands(folder: Path, rounds: int) -> FirstCommands:
    """Measure over one snapshot with a file, in a home in `folder`. Raises as `World.create` does."""
    async with WorldHome(folder) as home:
        async with World.create(home=home) as world:
            await world.write("task", "1")
            state = await world.snapshot()

        @asynccontextmanager
        async def new() -> AsyncIterator[World]:
            async with World.create(snapshot=state, home=home) as world:
                yield world

        async def timed(how_many: int, pool: WarmWorlds | None) -> float:
            await asyncio.sleep(_REST_S)
            begun = time.perf_counter()
            ends = await asyncio.gather(*(_first(new() if pool is None else pool.world()) for _ in range(how_many)))
            return max(ends) - begun

        await timed(1, None)
        fresh = [await timed(1, None) for _ in range(rounds)]
        together = [await timed(AT_ONCE, None) for _ in range(rounds)]
        warm, all_warm = [], []
        async with WarmWorlds(lambda: World.create(snapshot=state, home=home), least=1, most=AT_ONCE) as pool:
            for how_many, found in ((1, warm), (AT_ONCE, all_warm)):
                for _ in range(rounds):
                    pool.expect(how_many, after_s=5.0)
                    while pool.waiting < how_many:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    found.append(await timed(how_many, pool))
    return FirstCommands(tuple(fresh), tuple(warm), tuple(together), tuple(all_warm))


async def _first(opening: AbstractAsyncContextManager[World]) -> float:
    """When its first command was done."""
    async with opening as world:
        await world.exec(["true"])
        return time.perf_counter()
