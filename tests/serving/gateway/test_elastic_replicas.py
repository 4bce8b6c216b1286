"""Replicas come and go with the load; running calls are never cut."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ramify.serving.client import LLMClient
from ramify.serving.errors import EngineFailed
from ramify.serving.gateway.dialects import CHAT
from ramify.serving.gateway.elastic_replicas import ElasticReplicas
from ramify.serving.gateway.engines.replicas import EngineTraits
from ramify.serving.gateway.engines.supervisor import SupervisedEngine
from ramify.serving.gateway.gateway import Gateway
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.records.calls import Outcome
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.policy.types import RequestId
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.scaling.pools import Scaling
from ramify.serving.types import ChatRequest, user

GB = 1 << 30


class Engine:
    """An engine that starts when it is let."""

    def __init__(self, house: House) -> None:
        self.base_url, self.slots, self.alias = "http://127.0.0.1:9/v1", 1, "m"
        self._house = house

    async def __aenter__(self) -> Self:
        if self._house.broken is not None:
            raise self._house.broken
        self._house.started += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._house.may_end.wait()
        self._house.ended += 1

    async def ended(self) -> int:
        await asyncio.Event().wait()
        return 0


@dataclass
class House:
    """A pool, a gateway in front of it, and the time and memory of their host."""

    started: int = 0
    ended: int = 0
    broken: Exception | None = None
    used: int = GB
    group: tuple[int, int] = (0, 100 * GB)  # what a control group uses and may use
    now: float = 0.0
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    pool: ElasticReplicas = field(init=False)
    gateway: Gateway = field(init=False)

    def __post_init__(self) -> None:
        self.may_end.set()

    @property
    def limits(self) -> list[tuple[int, int]]:
        return [(self.used, 10 * GB), self.group]

    @asynccontextmanager
    async def open(self, least: int, most: int) -> AsyncIterator[Self]:
        engines = [SupervisedEngine(i, lambda: Engine(self), EngineTraits()) for i in range(most)]
        self.pool = ElasticReplicas(engines, least, replica_bytes=GB, memory=lambda: self.limits)
        async with self.pool:
            app = create_gateway([one.replica for one in engines], clock=lambda: self.now)
            self.gateway = app.state.gateway
            yield self

    async def step(self, times: int = 1) -> list[int]:
        """Let the controller decide. Returns the replicas that take calls."""
        for _ in range(times):
            await self.pool.step(self.gateway)
            await asyncio.sleep(0.001)  # a replica that starts or ends has done so
            self.now += 0.25
        return [one.index for one in self.pool.active]

    def run_calls(self, *at: int) -> None:
        """Put calls into these replicas."""
        for n, index in enumerate(at):
            self.pool.engines[index].replica.enter(RequestId(n), self.now)

    def end_calls(self, *at: int) -> None:
        for n, index in enumerate(at):
            self.pool.engines[index].replica.leave(RequestId(n), self.now)


async def test_a_replica_is_loaded_ahead_and_takes_calls_only_when_needed() -> None:
    async with House().open(1, 3) as house:
        assert house.started == 1
        assert await house.step(4) == [0] and house.started == 2, "one is warm"
        house.run_calls(0)
        spare = house.pool.engines[1].replica
        assert spare.upstream is not None and not spare.up(house.now)
        assert spare not in house.gateway.replicas.usable(house.now)
        assert house.gateway.replicas.capacity(house.now).slots == 1
    assert house.ended == 2


async def test_the_queue_brings_replicas_and_the_next_is_loaded_already() -> None:
    async with House().open(1, 3) as house:
        await house.step(4)
        waiting = [asyncio.create_task(_wait(house, n)) for n in range(3)]
        await asyncio.sleep(0)
        house.run_calls(0)
        assert await house.step(6) == [0, 1, 2] and house.started == 3
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_plan_brings_replicas_before_its_calls_come() -> None:
    plan = SLOTags(compound_id="w", compound_stage=0, compound_stages=2, plan_rest=(3.0, 10.0, 10.0, 2.0))
    async with House().open(1, 3) as house:
        await house.step(4)
        call = house.gateway.open(CHAT, {"messages": []}, plan, "")
        async with house.gateway.admission.slot(call):
            assert await house.step(6) == [0, 1, 2], "the next stage makes three calls, soon"
        house.gateway.close(call, Outcome.DONE)
        assert await house.step(4) == [0, 1, 2], "its tools run"
        house.now += 300.0
        await house.step()
        assert await house.step() == [0], "it did not come back"


async def test_a_pool_shrinks_without_cutting_a_call() -> None:
    async with House().open(1, 3) as house:
        await house.step(4)
        house.run_calls(0, 1, 2)
        house.pool.engines[1].replica.parked = house.pool.engines[2].replica.parked = False
        await house.step(2)
        house.end_calls(0, 1)
        house.now += 100.0
        await house.step(2)
        house.now += 100.0
        assert await house.step(2) == [2], "the one with a call stays"
        assert house.ended == 0, "and the others are warm"


async def test_a_replica_whose_process_died_gives_its_place_to_a_loaded_one() -> None:
    async with House().open(1, 2) as house:
        await house.step(4)
        dead, spare = (one.replica for one in house.pool.engines)
        upstream, dead.upstream = dead.upstream, None
        assert await house.step() == [1] and house.gateway.replicas.usable(house.now) == [spare]
        dead.upstream = upstream
        assert await house.step(2) == [1], "it is back, and the spare now"


async def test_a_parked_replica_finishes_its_calls_before_it_is_ended() -> None:
    async with House().open(1, 3) as house:
        await house.step(4)
        house.run_calls(1)
        house.used = 9 * GB
        await house.step(4)
        assert house.ended == 0, "more than 85 % of memory, but a call runs"
        house.end_calls(1)
        await house.step(4)
        assert (house.started, house.ended) == (2, 1), "it is ended, and none is loaded ahead"
        house.used = GB
        await house.step(4)
        assert house.started == 3


async def test_calls_do_not_wait_for_a_replica_that_takes_long_to_end() -> None:
    async with House().open(1, 3) as house:
        await house.step(4)
        house.pool.engines[1].replica.parked = False
        house.run_calls(0, 1)
        await house.step(4)
        assert house.started == 3
        house.may_end.clear()
        house.used = 9 * GB
        assert await house.step(4) == [0, 1] and house.ended == 0, "the third is being ended"
        waiting = asyncio.create_task(_wait(house, 2))
        await asyncio.sleep(0)
        assert await house.step(2) == [0, 1], "one that is being ended takes no call"
        house.may_end.set()
        assert await house.step(4) == [0, 1, 2] and house.ended == 1, "it was ended, and started for the call"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        house.end_calls(0, 1)


@pytest.mark.parametrize(
    ("used", "group", "loads"),
    [
        (GB, (0, 100 * GB), 3),
        (8 * GB, (0, 100 * GB), 3),  # it fits, though more than 85 % is used then
        (8 * GB, (GB // 2, 2 * GB - 1), 3),  # the machine is fuller, and the group has less room
        (9 * GB + 1, (0, 100 * GB), 2),
        (GB, (GB + 1, 2 * GB), 2),
        (8 * GB, (GB + 1, 2 * GB), 2),
        (GB, (0, GB - 1), 2),  # it may not even hold one
    ],
)
async def test_a_replica_that_does_not_fit_is_not_loaded_although_calls_wait(
    used: int, group: tuple[int, int], loads: int
) -> None:
    """The kernel would end it, or one with calls. The least number is loaded in any case."""
    async with House().open(2, 3) as house:
        house.used, house.group = used, group
        house.run_calls(0, 1)
        waiting = asyncio.create_task(_wait(house, 2))
        await asyncio.sleep(0)
        await house.step(8)
        assert house.started == loads
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        house.end_calls(0, 1)


async def test_memory_that_cannot_be_read_stops_nothing() -> None:
    def unreadable() -> list[tuple[int, int]]:
        raise OSError(errno.EMFILE, "Too many open files")

    async with House().open(1, 2) as house:
        await house.step(4)
        house.pool._memory = unreadable
        house.run_calls(0)
        waiting = asyncio.create_task(_wait(house, 1))
        await asyncio.sleep(0)
        assert await house.step(2) == [0, 1]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        house.end_calls(0)


@pytest.mark.parametrize("why", [EngineFailed("it did not start"), OSError(errno.EMFILE, "Too many open files")])
async def test_a_replica_that_does_not_start_is_tried_again_later(
    why: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with House().open(1, 2) as house:
        house.broken = why
        await house.step(8)
        assert house.started == 1 and "engine_failed" in caplog.messages
        house.broken, house.now = None, house.now + 60
        await house.step(4)
        assert house.started == 2


async def test_a_bug_of_the_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def decide(self, *_: object) -> Scaling:
            raise ZeroDivisionError

    async with House().open(1, 2) as house:
        house.pool.controller = Broken()
        async with house.pool.following(house.gateway):
            await asyncio.sleep(0.01)
    assert "replicas_unfollowed" in caplog.messages


async def test_a_start_that_fails_ends_those_before_it() -> None:
    house = House(broken=EngineFailed("it did not start"))
    with pytest.raises(EngineFailed):
        async with house.open(2, 2):
            pass
    assert house.started == house.ended == 0


async def test_a_replica_with_a_queue_of_its_own_takes_as_many_again_as_it_works_on() -> None:
    house = House()
    async with SupervisedEngine(0, lambda: Engine(house), EngineTraits(), queue=None) as one:
        assert (one.replica.slots, one.replica.queue, one.replica.free) == (1, 1, 2)


@pytest.mark.model
async def test_a_burst_is_answered_by_more_replicas(weights: Path) -> None:
    settings = GatewaySettings(home=weights.parents[1], replicas=(1, 2))
    async with LocalGateway(settings) as local, LLMClient(local.base_url) as client:
        assert local.gateway is not None
        replicas = local.gateway.replicas.all
        await _until(lambda: replicas[1].upstream is not None)
        assert replicas[1].parked, "loaded, and not needed"
        asked = [
            asyncio.create_task(client.chat(ChatRequest(user("Tell me a story."), max_tokens=80))) for _ in range(4)
        ]
        await _until(lambda: replicas[0].running == replicas[1].running == 1)
        answers = await asyncio.gather(*asked)
        assert all(answer.completion_tokens for answer in answers)


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _wait(house: House, n: int) -> None:
    """A call that waits for a slot, all of which are taken."""
    call = house.gateway.open(CHAT, {"messages": []}, SLOTags(), "")
    async with house.gateway.admission.slot(call):
        await asyncio.Event().wait()
