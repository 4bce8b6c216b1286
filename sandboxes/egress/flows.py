"""Connections that are going on: their bytes are counted, and they can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from ramify.sandboxes.egress.connection_log import Connection, Outcome
from ramify.sandboxes.egress.dialing import Pipe
from ramify.sandboxes.egress.targets import Target

IDLE_S = 900.0  # without a byte in either direction; a model may think for minutes
PIECE = 1 << 18
LOST = (OSError, asyncio.IncompleteReadError)


@dataclass(slots=True, eq=False)
class Flow:
    """A permitted connection: `world` is the side of the world, `host` the other one."""

    record: Connection
    target: Target
    world: Pipe
    host: Pipe
    sent: int = 0  # bytes from the world
    received: int = 0  # bytes to the world
    moved_at: float = 0.0  # when a byte last moved, by the event loop's clock
    cut_because: str = ""
    broken: bool = False  # it ended by an error

    async def send(self, piece: bytes) -> None:
        """To the host; waits while it reads slowly."""
        self.sent += len(piece)
        await self._pass_on(piece, self.host)

    async def deliver(self, piece: bytes) -> None:
        """To the world; waits while it reads slowly."""
        self.received += len(piece)
        await self._pass_on(piece, self.world)

    async def _pass_on(self, piece: bytes, to: Pipe) -> None:
        self.moved_at = asyncio.get_running_loop().time()
        to.writer.write(piece)
        await to.writer.drain()

    def cut(self, why: str) -> None:
        """End both sides at once."""
        self.cut_because = self.cut_because or why
        self.host.reset()
        self.world.reset()

    def result(self) -> Connection:
        """The record of it when it has ended."""
        outcome = Outcome.CUT if self.cut_because else Outcome.FAILED if self.broken else Outcome.DONE
        why = self.cut_because or ("it broke off" if self.broken else "")
        return replace(self.record, outcome=outcome, why=why, sent=self.sent, received=self.received)

    async def relay(self, idle_s: float = IDLE_S) -> None:
        """Pass bytes both ways until both sides have ended. The end of one side is passed on, and so is a reset, by
        which many programs end a connection that they have done with."""
        try:
            await self.watch(idle_s, self._pump(self.world, self.host), self._pump(self.host, self.world))
        except LOST:
            self.host.reset()
            self.world.reset()

    async def _pump(self, source: Pipe, to: Pipe) -> None:
        count = self.send if to is self.host else self.deliver
        while piece := await source.reader.read(PIECE):
            await count(piece)
        if to.writer.can_write_eof():
            to.writer.write_eof()

    async def watch(self, idle_s: float, *jobs: Coroutine[Any, Any, None]) -> None:
        """Run jobs until all are done or one fails, which it raises. Cuts the flow if no byte moves for `idle_s`
        seconds."""
        loop = asyncio.get_running_loop()
        self.moved_at = loop.time()
        tasks = {loop.create_task(job) for job in jobs}
        try:
            waiting = set(tasks)
            while waiting:
                left = self.moved_at + idle_s - loop.time()
                if left <= 0:
                    self.cut(f"no byte moved for {idle_s:g} s")
                done, waiting = await asyncio.wait(
                    waiting, timeout=max(left, 0.0), return_when=asyncio.FIRST_EXCEPTION
                )
                for task in done:
                    task.result()
                if left <= 0:
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                _ = task.cancelled() or task.exception()  # read: one of them is raised above
