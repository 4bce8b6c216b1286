"""Worlds whose processes can be dumped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ramify.sandboxes.contract import World, WorldSpec

Until = Callable[[World, str], Awaitable[None]]


@pytest.fixture
def dumpable(spec: WorldSpec) -> WorldSpec:
    return replace(spec, dumpable=True)


@pytest.fixture
def until() -> Until:
    """Wait until a command of a world succeeds."""

    async def until(world: World, command: str) -> None:
        for _ in range(2000):
            if (await world.run(command)).ok:
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"never true: {command}")

    return until
