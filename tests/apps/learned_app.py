"""Failures that are caught where the compiler does not look; and what a plan without snapshots meets there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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


@workflow
async def asks_in_vain() -> list[str]:
    await writes("a")
    asked, limit = asyncio.ensure_future(interrupt("well?")), asyncio.ensure_future(sleep("1ms"))
    await asyncio.wait({asked, limit}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    await asyncio.wait({asked})
    await writes("b")
    await interrupt("go on?")
    return await writes("c")


@workflow
async def naps_in_vain() -> list[str]:
    await writes("a")
    nap, limit = asyncio.ensure_future(sleep("1h")), asyncio.ensure_future(sleep("1ms"))
    await asyncio.wait({nap, limit}, return_when=asyncio.FIRST_COMPLETED)
    nap.cancel()
    await asyncio.wait({nap})
    await writes("b")
    await interrupt("go on?")
    return await writes("c")
