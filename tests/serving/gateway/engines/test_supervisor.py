"""Engines of ours that die are restarted and counted, and nothing else is disturbed."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import pytest

from ramify.serving.errors import EngineFailed
from ramify.serving.gateway.engines import supervisor
from ramify.serving.gateway.engines.replicas import EngineTraits
from ramify.serving.gateway.engines.supervisor import SupervisedEngine
from ramify.serving.gateway.http.app import create_gateway


class Mortal:
    """An engine that dies when it is told to."""

    lives: list[Mortal]

    def __init__(self, lives: list[Mortal], *, stillborn: bool = False) -> None:
        self.base_url, self.slots = f"http://engine{len(lives)}", 3
        self.alias = "m"
        self.died = asyncio.Event()
        self.left = False
        self._stillborn = stillborn
        lives.append(self)

    async def __aenter__(self) -> Self:
        if self._stillborn:
            raise EngineFailed("it did not start")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left = True

    async def ended(self) -> int:
        await self.died.wait()
        return -9


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF_S", 0.001)


async def until(done: asyncio.Event) -> None:
    await asyncio.wait_for(done.wait(), 20)


async def test_dead_engine_is_restarted_and_counted() -> None:
    lives: list[Mortal] = []
    stillborn, again, told = iter([False, True, True, False]), asyncio.Event(), []

    def restarted(index: int) -> None:
        told.append(index)
        again.set()

    def make() -> Mortal:
        return Mortal(lives, stillborn=next(stillborn))

    async with SupervisedEngine(7, make, EngineTraits(), restarted=restarted) as one:
        replica = one.replica
        assert (replica.index, replica.slots, replica.alias, replica.upstream is None) == (7, 3, "m", False)
        first = replica.upstream
        lives[0].died.set()
        await until(again)
        assert lives[0].left and len(lives) == 4, "two of them did not start"
        assert replica.upstream is not first and replica.upstream is not None
        assert (replica.restarts, told) == (1, [7])
    assert lives[3].left and replica.upstream is None


async def test_replica_is_unusable_while_its_engine_restarts() -> None:
    lives: list[Mortal] = []
    gate = asyncio.Event()

    class Slow(Mortal):
        async def __aenter__(self) -> Self:
            if len(lives) > 1:
                away.set()
                await gate.wait()
            return await super().__aenter__()

    away, back = asyncio.Event(), asyncio.Event()
    async with SupervisedEngine(
        0, lambda: Slow(lives), EngineTraits(), restarted=lambda _: back.set(), queue=96
    ) as one:
        assert (one.replica.slots, one.replica.free) == (3, 99)
        lives[0].died.set()
        await until(away)
        assert not one.replica.up(0.0)
        gate.set()
        await until(back)
        assert one.replica.up(0.0)


async def test_engine_that_never_starts_is_an_error() -> None:
    with pytest.raises(EngineFailed, match="did not start"):
        async with SupervisedEngine(0, lambda: Mortal([], stillborn=True), EngineTraits()):
            pytest.fail("it runs")


async def test_a_gateway_that_stops_leaves_the_engine_to_its_supervisor() -> None:
    """Which asks the engine until it ends it: a closed connection would count as a fault of the watch."""
    lives: list[Mortal] = []
    async with SupervisedEngine(0, lambda: Mortal(lives), EngineTraits()) as one:
        app = create_gateway([one.replica])
        async with app.router.lifespan_context(app):
            upstream = one.replica.upstream
        assert upstream is not None and not upstream._http.is_closed
    assert upstream._http.is_closed


async def test_bug_in_the_watch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    lives: list[Mortal] = []

    def restarted(_: int) -> None:
        raise ZeroDivisionError("a fault")

    async with SupervisedEngine(3, lambda: Mortal(lives), EngineTraits(), restarted=restarted) as one:
        lives[0].died.set()
        assert one._watch is not None
        await asyncio.wait({one._watch}, timeout=20)
        assert lives[0].left
        await asyncio.sleep(0)
        (told,) = [record for record in caplog.records if record.getMessage() == "engine_unwatched"]
        assert told.__dict__["fields"] == {"replica": 3, "problem": "ZeroDivisionError('a fault')"}
