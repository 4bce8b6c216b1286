"""Workflows that sleep."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import ramify
from ramify import Sandbox, step, workflow
from ramify.runtime.durations import Duration

DONE: list[str] = []
GATE: asyncio.Event | None = None  # the step `work` returns when it is set
STOPS = True
NAPS: list[asyncio.Future[None]] = []


@step
async def note(text: str) -> str:
    DONE.append(text)
    return text


@step
async def work() -> str:
    if GATE is not None:
        await GATE.wait()
    return "work"


@step(effect="irreversible")
async def pay(sandbox: Sandbox, what: str) -> str:
    DONE.append(f"paid {what}")
    return what


@workflow
async def naps(duration: str = "1h") -> str:
    await note("before")
    await ramify.sleep(duration)
    return await note("after")


@workflow
def plain_nap() -> str:
    ramify.sleep("10ms")  # type: ignore[unused-coroutine]  # it waits, in a function that is not async
    return note("after")  # type: ignore[return-value]


@workflow
async def naps_for_nothing(duration: Duration) -> None:
    await ramify.sleep(duration)


@workflow
async def the_first_of_two() -> str:
    slow = asyncio.ensure_future(work())  # it is at work when the sleep begins
    nap = asyncio.ensure_future(ramify.sleep("20ms"))
    done, _ = await asyncio.wait({nap, slow}, return_when=asyncio.FIRST_COMPLETED)
    first = "nap" if nap in done else "work"
    if GATE is not None:
        GATE.set()
    await asyncio.gather(nap, slow)
    await pay(first)
    if STOPS:
        raise ValueError("not yet")
    return first


@workflow
async def a_nap_in_a_timeout() -> str:
    try:
        async with asyncio.timeout(0.02):
            await ramify.sleep("1h")
    except TimeoutError:
        await pay("late")
    if STOPS:
        raise ValueError("not yet")
    return "late"


@workflow
async def asks_and_naps() -> list[object]:
    return list(await asyncio.gather(ramify.interrupt("well?"), naps_then_notes()))


async def naps_then_notes() -> str:
    await ramify.sleep("50ms")
    return await note("slept")


@step
async def flaky() -> str:
    DONE.append("tried")
    if STOPS:
        raise OSError("not now")
    return "done"


@workflow
async def tries_three_times() -> str:
    for _ in range(3):
        with suppress(OSError):
            return await flaky()
        await ramify.sleep(0)
    raise ValueError("not yet")


@workflow
async def leaves_a_nap() -> None:
    NAPS.append(asyncio.ensure_future(ramify.sleep("1h")))
    await note("meanwhile")


@step
async def sleeps_in_a_step() -> None:
    await ramify.sleep(1)


@workflow
async def naps_in_a_step() -> None:
    await sleeps_in_a_step()
