"""The door: slots are never exceeded, never lost, and time alone can refuse."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from ramify.serving.gateway.admission import Admission, Refused
from ramify.serving.policy.edf import EarliestDeadlineFirst
from ramify.serving.policy.types import PendingView, RequestId


def admission(slots: int) -> Admission:
    return Admission(EarliestDeadlineFirst(), slots, time.monotonic)


def call(id_: int, due_in: float | None = None) -> PendingView:
    now = time.monotonic()
    return PendingView(RequestId(id_), now, None if due_in is None else now + due_in)


async def test_no_slot_is_lost_however_calls_end() -> None:
    door, rng, peak = admission(3), random.Random(5), 0

    async def one(id_: int) -> None:
        nonlocal peak
        async with door.slot(call(id_, rng.choice([None, 1e3, -1.0]))):
            peak = max(peak, door.running)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                raise ValueError("the engine broke")

    tasks = []
    for id_ in range(300):
        tasks.append(asyncio.create_task(one(id_)))
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert peak == 3
    assert (door.running, door.waiting) == (0, 0)
    assert {type(e) for e in ended} == {type(None), ValueError, Refused, asyncio.CancelledError}


async def test_a_call_whose_deadline_passes_while_it_waits_is_refused_without_anything_else_happening() -> None:
    door = admission(1)
    async with door.slot(call(1)):
        with pytest.raises(Refused, match="its deadline passed"):
            async with door.slot(call(2, 0.02)):
                pytest.fail("there was no slot")
        assert (door.running, door.waiting) == (1, 0)


async def test_a_call_that_is_cancelled_in_the_moment_of_its_admission_gives_its_slot_on() -> None:
    door, entered = admission(1), []

    async def one(id_: int) -> None:
        async with door.slot(call(id_)):
            entered.append(id_)

    async with door.slot(call(0)):
        first, second = asyncio.create_task(one(1)), asyncio.create_task(one(2))
        await asyncio.sleep(0)
    first.cancel()  # admitted by the exit above, but not yet awake
    await asyncio.gather(first, second, return_exceptions=True)
    assert entered == [2]
    assert door.running == 0
