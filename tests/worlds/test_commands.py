"""`run_to_end` without a world: what it leaves behind if it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from ramify.sandboxes.contract import World
from ramify.worlds.commands import command_of, run_to_end


class EndlessOutput:
    def collect(self, most: int) -> None:
        pass


class EndlessProcess:
    """A process that runs until it is closed."""

    def __init__(self) -> None:
        self.stdout = self.stderr = EndlessOutput()
        self.closed = False

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0

    async def write_stdin(self, data: bytes | str) -> None:
        pass

    def close_stdin(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class OneProcess:
    """A world, as far as `run_to_end` uses it."""

    def __init__(self) -> None:
        self.process = EndlessProcess()

    async def start(self, command: Any) -> EndlessProcess:
        return self.process

    async def connect(self, port: int) -> Any:
        raise NotImplementedError

    async def shell(self, name: str) -> Any:
        raise NotImplementedError


async def test_a_second_cancel_while_the_callers_input_ends_also_ends_the_process() -> None:
    reading, ending, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> AsyncIterator[bytes]:
        try:
            reading.set()
            await asyncio.Event().wait()
        finally:
            ending.set()
            await go.wait()
        yield b""

    world = OneProcess()
    order = command_of("cat", None, ".", None, stdin=True)
    running = asyncio.ensure_future(
        run_to_end(cast(World, world), order, stdin=slow_to_end(), timeout=None, most=1 << 20)
    )
    await reading.wait()
    running.cancel()
    await ending.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.process.closed
    go.set()
