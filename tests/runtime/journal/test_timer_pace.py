"""While a timer runs that led to a call, a replay hands out results no sooner after its beginning than before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ramify.runtime.journal.timer_pace import TimerPace
from ramify.runtime.journal.turns import Recorded, Turns

FETCHED = [Recorded(f"fetch {number}", number, 3.0 * (number - 1), 3.0 * number) for number in range(1, 4)]
BEAT = Recorded("beat", 4, 10.0, 10.1, called_after=3)
ACROSS = Recorded("fetch 4", 5, 9.0, 12.0)
RECORDED = [*FETCHED, BEAT, ACROSS]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def timer(loop: asyncio.AbstractEventLoop, at: float, *, sleeps: bool = True) -> asyncio.TimerHandle:
    return loop.call_at(at, asyncio.futures._set_result_unless_cancelled if sleeps else print)  # type: ignore[attr-defined]


def test_results_keep_their_distance_from_a_sleep_that_led_to_a_call(loop: asyncio.AbstractEventLoop) -> None:
    pace, sleeping = TimerPace(RECORDED, 0.0, now=100.0), timer(loop, 110.0)
    for one in FETCHED:
        assert pace.left_s(one, [sleeping], now=101.0) == pytest.approx(one.ended_at - 1.0)
        pace.handed_out(one, now=100.0 + one.ended_at)
    assert pace.left_s(ACROSS, [sleeping], now=109.0) == 0.0, "it waits for the call that the timer leads to"
    assert pace.left_s(FETCHED[0], [], now=100.0) == 0.0, "the timer is over"


@pytest.mark.parametrize("at", [3700.0, 107.0])
def test_a_sleep_that_led_to_no_call_holds_nothing_back(loop: asyncio.AbstractEventLoop, at: float) -> None:
    pace = TimerPace(RECORDED, 0.0, now=100.0)
    assert pace.left_s(FETCHED[0], [timer(loop, at), timer(loop, 110.0, sleeps=False)], now=100.0) == 0.0


def test_a_timeout_that_cancelled_a_call_counts(loop: asyncio.AbstractEventLoop) -> None:
    late = Recorded("slow", 4, 0.0, 10.0, cancelled=True)
    pace = TimerPace([*FETCHED, late, ACROSS], 0.0, now=100.0)
    assert pace.left_s(FETCHED[0], [timer(loop, 110.0, sleeps=False)], now=100.0) == pytest.approx(3.0)


def test_a_workflow_that_does_one_thing_at_a_time_is_not_slowed_down() -> None:
    pages = [Recorded(f"page {number}", number + 1, 2.0 * number, 2.0 * number + 1.0) for number in range(4)]
    assert not TimerPace(pages, 0.0, now=0.0).matters


async def test_a_result_is_handed_out_once_the_timer_that_holds_it_back_is_gone() -> None:
    far = [replace(one, started_at=600 * one.started_at, ended_at=600 * one.ended_at) for one in RECORDED]
    turns, got = Turns(far, since=0.0), asyncio.Event()

    async def get() -> None:
        async with turns.of("fetch 1"):
            pass
        got.set()

    sleeping = asyncio.create_task(asyncio.sleep(6000))
    getting = asyncio.create_task(get())
    for _ in range(200):
        await asyncio.sleep(0)
    assert not got.is_set()
    sleeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sleeping
    await got.wait()
    await getting
