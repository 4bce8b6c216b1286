"""Worlds wait before they are asked for: as many as are expected, and no more than memory allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from ramify import WarmWorlds, World
from ramify.serving.errors import BadPool
from ramify.serving.scaling.pools import FutureCalls, PoolLoad, Scaling
from ramify.worlds.errors import WorldClosed, WorldNotFound
from ramify.worlds.home import WorldHome


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[WorldHome]:
    async with WorldHome(tmp_path / "home", "copy") as opened:
        yield opened


class Told:
    """A controller that is told how many worlds there should be, with those in use."""

    def __init__(self, worlds: int) -> None:
        self.worlds = worlds
        self.seen: list[PoolLoad] = []

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        self.seen += pools
        return Scaling({pools[0].name: self.worlds})


def plenty() -> tuple[int, int]:
    return 10, 100


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_expected_worlds_wait_and_each_serves_once(home: WorldHome) -> None:
    made: list[World] = []

    async def make() -> World:
        made.append(world := await World.create(home=home))
        return world

    async with WarmWorlds(make, least=1, most=4, memory=plenty) as pool:
        await until(lambda: pool.waiting == 1)
        pool.expect(3, after_s=2.0)
        await until(lambda: pool.waiting == 3)
        before = list(made)
        async with pool.world() as one, pool.world() as other:
            assert one is not other and {one, other} < set(before), "they were made before"
            await one.write("mine", "1")
            assert not (await other.exec(["test", "-e", "mine"])).ok
        with pytest.raises(WorldClosed):
            await one.exec(["true"])
        async with pool.world() as another:
            assert another not in (one, other) and not (await another.exec(["test", "-e", "mine"])).ok
        left = list(made)
    for world in left:
        with pytest.raises(WorldClosed):
            await world.exec(["true"])


async def test_a_world_is_made_when_none_waits(home: WorldHome) -> None:
    async with WarmWorlds(lambda: World.create(home=home), least=0, most=1, controller=Told(0)) as pool:
        async with pool.world() as world:
            assert (await world.exec(["true"])).ok
        assert pool.waiting == 0


async def test_the_pool_follows_its_controller_within_its_limits(home: WorldHome) -> None:
    told = Told(3)
    async with WarmWorlds(lambda: World.create(home=home), least=0, most=2, controller=told, memory=plenty) as pool:
        await until(lambda: pool.waiting == 2)
        told.worlds = 1
        await until(lambda: pool.waiting == 1)
        async with pool.world():
            await until(lambda: told.seen[-1].running == 1)
            assert told.seen[-1].limits.most == 3, "two may wait beside the one in use"
            assert pool.waiting == 0


async def test_only_the_least_wait_while_memory_is_short(home: WorldHome) -> None:
    used = 10
    async with WarmWorlds(
        lambda: World.create(home=home), least=1, most=3, controller=Told(3), memory=lambda: (used, 100)
    ) as pool:
        await until(lambda: pool.waiting == 3)
        used = 90
        await until(lambda: pool.waiting == 1)


async def test_worlds_that_cannot_be_made_are_told_to_whoever_asks(
    home: WorldHome, caplog: pytest.LogCaptureFixture
) -> None:
    async with WarmWorlds(lambda: World.create(snapshot="nothing", home=home)) as pool:
        await until(lambda: "no world could be made ahead" in caplog.text)
        with pytest.raises(WorldNotFound):
            async with pool.world():
                pass
        assert pool.waiting == 0


async def test_a_pool_that_is_not_open_and_numbers_that_make_no_sense(home: WorldHome) -> None:
    with pytest.raises(WorldClosed, match="async with"):
        async with WarmWorlds(lambda: World.create(home=home)).world():
            pass
    with pytest.raises(BadPool):
        WarmWorlds(lambda: World.create(home=home), least=3, most=2)


async def test_worlds_are_closed_though_leaving_is_cancelled(home: WorldHome) -> None:
    made: list[World] = []
    leaving = asyncio.Event()

    async def make() -> World:
        if made:
            try:
                await asyncio.Event().wait()
            finally:
                leaving.set()
                await asyncio.sleep(0.05)  # a start takes time to be undone
        made.append(world := await World.create(home=home))
        return world

    async def use() -> None:
        async with WarmWorlds(make, least=2, most=2, memory=plenty) as pool:
            await until(lambda: pool.waiting == 1)
            await asyncio.sleep(0.05)

    using = asyncio.create_task(use())
    await leaving.wait()
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    with pytest.raises(WorldClosed):
        await made[0].exec(["true"])
