"""Timeouts that do not count the time in which the event loop was blocked."""

from __future__ import annotations

import asyncio

import pytest

from ramify.serving.stall_clock import TICK_S, StallAwareClock, StallAwareTimeout
from tests.serving.stalled_loop import Ahead, turns


async def test_blocked_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, clock = Ahead(monkeypatch), StallAwareClock()
    with clock, clock:
        begun = clock.time()
        await ahead.held_up(1000)
        assert clock.time() - begun < 1
        await ahead.ran(10)
        await ahead.held_up(1000)
        passed = clock.time() - begun
    assert 10 <= passed < 12


async def test_clock_ticks_only_while_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, clock = Ahead(monkeypatch), StallAwareClock()
    with clock:
        await turns()
    await ahead.ran(1)
    before = clock.time()
    await ahead.held_up(1000)
    assert clock.time() - before >= 1000
    with clock:
        begun = clock.time()
        await ahead.ran(2)
        assert 2 <= clock.time() - begun < 3


async def test_timeout_ends_after_its_awake_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, clock = Ahead(monkeypatch), StallAwareClock()

    async def limited() -> None:
        async with clock.timeout(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    await turns()
    for _ in range(3):
        await ahead.held_up(1000)
    await ahead.ran(50)
    assert not task.done()
    await ahead.ran(20)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 60)


async def test_after_a_blocked_loop_data_is_read_before_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead, clock = Ahead(monkeypatch), StallAwareClock()
    came = asyncio.Event()

    async def limited() -> str:
        async with clock.timeout(TICK_S / 2):
            await came.wait()
        return "read"

    task = asyncio.create_task(limited())
    await turns()
    await ahead.held_up(1000)
    came.set()
    assert await task == "read"


async def test_timeout_ends_even_in_a_permanently_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, clock = Ahead(monkeypatch), StallAwareClock()

    async def limited() -> None:
        async with clock.timeout(2):
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    await turns()
    for _ in range(100):
        await ahead.held_up(1)
    assert task.done() and isinstance(task.exception(), TimeoutError)


async def test_wait_ends_with_its_task_or_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, clock = Ahead(monkeypatch), StallAwareClock()
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()

    task = asyncio.create_task(work())
    waiting = asyncio.create_task(clock.wait(task, 60))
    await turns()
    await ahead.held_up(1000)
    assert not waiting.done()
    await ahead.ran(70)
    assert waiting.done() and not task.done() and waiting.exception() is None
    waiting = asyncio.create_task(clock.wait(task, 60))
    go.set()
    await waiting
    assert task.done()


def test_clock_works_in_another_loop() -> None:
    """One that ended with a tick to come left none behind."""
    clock = StallAwareClock()

    async def watched() -> float:
        with clock:
            begun = clock.time()
            await asyncio.sleep(2 * TICK_S)
            return clock.time() - begun

    async def left() -> None:
        with clock:
            await asyncio.sleep(0)

    asyncio.run(left())
    assert asyncio.run(watched()) > TICK_S * 1.5


async def test_timeout_with_a_failing_clock_ends() -> None:
    """The loop only logs what a timer raises: the wait under it would have no end."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def fails() -> float:
        raise ZeroDivisionError

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            clock = StallAwareClock()
            with StallAwareTimeout(clock, limit, clock.time(), fails):
                await asyncio.Event().wait()
    assert [type(fault) for fault in faults] == [ZeroDivisionError]
