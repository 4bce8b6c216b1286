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
    """A timer of `asyncio.sleep` or of `asyncio.timeout`."""
    ends = asyncio.Timeout(None)._on_timeout  # type: ignore[attr-defined]
    return loop.call_at(at, asyncio.futures._set_result_unless_cancelled if sleeps else ends)  # type: ignore[attr-defined]


def test_results_keep_their_distance_from_a_sleep_that_led_to_a_call(loop: asyncio.AbstractEventLoop) -> None:
    pace, sleeping, now = TimerPace(RECORDED, 0.0, now=100.0), timer(loop, 110.0), 100.0
    for one, comes in zip(FETCHED, (103.0, 106.0, 108.0), strict=True):
        limit = timer(loop, now + 4.0, sleeps=False)
        assert pace.left_s(one, now, [sleeping, limit], now) == pytest.approx(comes - now)
        pace.handed_out(one, now := comes)  # the last when the sleep has 2 s to go, which is half of the timeout
    assert pace.left_s(ACROSS, now, [sleeping], now) == 0.0, "it waits for the call that the timer leads to"


def test_no_result_takes_longer_than_before(loop: asyncio.AbstractEventLoop) -> None:
    pace, timers = TimerPace(RECORDED, 0.0, now=100.0), [timer(loop, 110.0), timer(loop, 104.0, sleeps=False)]
    assert pace.left_s(FETCHED[2], 100.5, timers, now=101.0) == pytest.approx(2.5), (
        "not until 8 s after the beginning"
    )


def test_a_workflow_without_timeouts_is_not_slowed_down(loop: asyncio.AbstractEventLoop) -> None:
    pace = TimerPace(RECORDED, 0.0, now=100.0)
    assert pace.left_s(FETCHED[0], 100.0, [timer(loop, 110.0)], now=100.0) == 0.0


@pytest.mark.parametrize("at", [3700.0, 107.0])
def test_a_sleep_that_led_to_no_call_holds_nothing_back(loop: asyncio.AbstractEventLoop, at: float) -> None:
    pace = TimerPace(RECORDED, 0.0, now=100.0)
    assert pace.left_s(FETCHED[0], 100.0, [timer(loop, at), timer(loop, 104.0, sleeps=False)], now=100.0) == 0.0


def test_a_timeout_that_cancelled_a_call_counts(loop: asyncio.AbstractEventLoop) -> None:
    late = Recorded("slow", 4, 0.0, 10.0, cancelled=True)
    pace = TimerPace([*FETCHED, late, ACROSS], 0.0, now=100.0)
    limits = [timer(loop, 110.0, sleeps=False), timer(loop, 104.0, sleeps=False)]
    assert pace.left_s(FETCHED[0], 100.0, limits, now=100.0) == pytest.approx(3.0)


def test_a_workflow_that_does_one_thing_at_a_time_is_not_slowed_down() -> None:
    pages = [Recorded(f"page {number}", number + 1, 2.0 * number, 2.0 * number + 1.0) for number in range(4)]
    assert not TimerPace(pages, 0.0, now=0.0).matters


def test_a_sleep_that_an_earlier_resume_began_counts_from_its_beginning(loop: asyncio.AbstractEventLoop) -> None:
    """It was resumed 1,000 s after the run began, and had `fetch 1` to `fetch 3` at once."""
    later = [Recorded("fetch 4", 4, 1001.0, 1004.0), Recorded("beat", 5, 1010.0, 1010.1, called_after=4)]
    recorded = [*FETCHED, *later, replace(ACROSS, seq=6, started_at=1009.0, ended_at=1012.0)]
    pace, timers = TimerPace(recorded, 0.0, 100.0, [1000.0]), [timer(loop, 110.0), timer(loop, 104.0, sleeps=False)]
    for one in FETCHED:
        assert pace.left_s(one, 100.0, timers, now=100.0) == 0.0
        pace.handed_out(one, 100.0)
    assert pace.left_s(later[0], 101.0, timers, now=101.0) == pytest.approx(3.0)


async def test_a_result_is_handed_out_once_the_timer_that_holds_it_back_is_gone() -> None:
    far = [replace(one, started_at=600 * one.started_at, ended_at=600 * one.ended_at) for one in RECORDED]
    turns, got = Turns(far, since=0.0), asyncio.Event()

    async def get() -> None:
        async with turns.of("fetch 1"):
            pass
        got.set()

    async with asyncio.timeout(3000):
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
