"""Failures that are caught where the compiler does not look; and what a plan without snapshots meets there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from ramify import Sandbox, interrupt, sleep, step, workflow

BEGUN: list[str] = []
forgiven: Any = None  # `breaks`, under a decorator of another project


@step
async def writes(sandbox: Sandbox, name: str) -> list[str]:
    BEGUN.append(name)
    (sandbox.path / name).touch()
    return sorted(path.name for path in sandbox.path.iterdir())


@step
async def breaks(sandbox: Sandbox) -> None:
    BEGUN.append("breaks")
    (sandbox.path / "half-done").touch()
    raise ValueError("no luck")


@asynccontextmanager
async def forgiving() -> AsyncIterator[None]:
    with suppress(ValueError):
        yield


@forgiving()
async def helper() -> None:
    await breaks()


@workflow
async def by_a_decorator() -> list[str]:
    await writes("a")
    await helper()
    return await writes("b")


@workflow
async def by_another_project() -> list[str]:
    await writes("a")
    await forgiven()
    return await writes("b")


@workflow
@forgiving()
async def whole() -> list[str]:
    await writes("inside")
    await breaks()
    return []


@workflow
async def calls_it() -> list[str]:
    await writes("a")
    await whole()
    return await writes("b")


@workflow
async def asks() -> list[str]:
    await writes("a")
    await interrupt("go on?")
    await writes("b")
    await interrupt("and on?")
    return await writes("c")


@workflow
async def naps() -> list[str]:
    await writes("a")
    await sleep("1ms")
    await writes("b")
    await interrupt("go on?")
    return await writes("c")


async def in_vain(waiting: Coroutine[Any, Any, object]) -> None:
    """Cancel it after a while, in which its beginning is recorded."""
    waits = asyncio.ensure_future(waiting)
    await asyncio.wait({waits, asyncio.ensure_future(sleep("100ms"))}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()
    await asyncio.wait({waits})


async def asks_well() -> None:
    await interrupt("well?")


async def naps_long() -> None:
    await sleep("1h")


async def asks_then_naps() -> None:
    await in_vain(asks_well())


async def naps_in_turn() -> None:
    await in_vain(naps_long())


@workflow
async def asks_in_vain() -> list[str]:
    await writes("a")
    await asks_then_naps()
    await writes("b")
    await interrupt("go on?")
    return await writes("c")


@workflow
async def naps_in_vain() -> list[str]:
    await writes("a")
    await naps_in_turn()
    await writes("b")
    await interrupt("go on?")
    return await writes("c")


TURN: asyncio.Event | None = None  # set by the workflow when the task that sleeps may begin to
SLEEPS_FIRST = True


async def sleeps_when_told() -> None:
    assert TURN is not None
    await TURN.wait()
    await sleep(0)


@workflow
async def naps_beside() -> list[str]:
    global TURN
    TURN = asyncio.Event()
    nap = asyncio.ensure_future(sleeps_when_told())
    await writes("a")
    if SLEEPS_FIRST:
        TURN.set()
        await nap
    await writes("b")
    TURN.set()
    await nap
    await interrupt("go on?")
    return await writes("c")
