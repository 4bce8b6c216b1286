"""Workflows of many steps, and of long values."""

from __future__ import annotations

from collections.abc import Callable

from ramify import step, workflow

begun: Callable[[], None] = lambda: None  # noqa: E731  # is called when a step begins
stops = False  # whether the last step raises


@step(effect="pure")
async def number(at: int) -> int:
    begun()
    return at


@step(effect="pure")
async def last() -> None:
    if stops:
        raise RuntimeError("ends here")


@workflow
async def counts(count: int) -> int:
    total = sum([await number(at) for at in range(count)])
    await last()
    return total


@step(effect="pure")
async def text(length: int) -> str:
    return "x" * length


@step(effect="pure")
async def same(given: str) -> str:
    return given


@workflow
async def long_text(length: int) -> int:
    return len(await same(await text(length)))
