"""The live worlds of a fleet on one node.

An operation is a transaction. It begins with a state that the bucket has, and when it is answered, the bucket has the
state that it led to. If it fails, or its answer is lost, the world is dropped, and the next operation makes it again
from the state before, on any node.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NewType, Self

from ramify.fleet.carried_errors import CarriedError, carried
from ramify.fleet.world_operations import Operation, Read, performed
from ramify.fork_engine.errors import RemoteUnusable
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.open_bucket import OpenBucket
from ramify.runtime.worlds.recovery import missing
from ramify.sandboxes.contract import Limits, RunResult, WorldSpec
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

WorldKey = NewType("WorldKey", str)

UPLOAD_PATIENCE_S = 60.0
"""For how long a state is offered to a bucket that cannot be reached."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class WorldSetup:
    """How a world looks from inside, on each node. sandbox: the name of its backend. over_image: the whole of it over
    an image, which the program's home knows."""

    sandbox: str
    mount_at: str
    env: dict[str, str]
    limits: Limits | None
    over_image: WorldSpec | None = None


@dataclass(frozen=True, slots=True)
class WorldOrder:
    """An operation of a world. state: what it begins with."""

    world: WorldKey
    state: SnapshotId
    setup: WorldSetup
    operation: Operation


@dataclass(frozen=True, slots=True)
class WorldAnswer:
    """How an operation ended. state: what it led to; None if nothing was sealed. cancelled: the world was closed
    meanwhile."""

    result: RunResult | bytes | None = None
    state: Snapshot | None = None
    error: CarriedError | None = None
    cancelled: bool = False


@dataclass(slots=True)
class _Live:
    world: World
    state: SnapshotId


@dataclass(slots=True)
class WorldHost:
    """An async context manager: worlds of one backend in this node's home. Leaving it ends them."""

    home: Path
    sandbox: str
    snapshots: SnapshotStore
    bucket: OpenBucket
    _home: WorldHome = field(init=False)
    _live: dict[WorldKey, _Live] = field(default_factory=dict)
    _working: dict[WorldKey, asyncio.Task[WorldAnswer]] = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self._home = await self._stack.enter_async_context(WorldHome(self.home, self.sandbox))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for world in {*self._working, *self._live}:
            await self.close(world)
        await self._stack.aclose()

    async def perform(self, order: WorldOrder) -> WorldAnswer:
        """Do one operation of a world. It ends an earlier one that is still under way: operations of one world come
        one after the other, so the caller of the earlier one is gone."""
        while order.world in self._working:
            await self.close(order.world)
        task = self._working[order.world] = asyncio.ensure_future(self._perform(order))
        try:
            await asyncio.wait({task})
        finally:
            if self._working.get(order.world) is task:
                del self._working[order.world]
        return WorldAnswer(cancelled=True) if task.cancelled() else task.result()

    async def close(self, world: WorldKey) -> None:
        """End a world, and the operation that it does. Does nothing if it does not live here."""
        if (task := self._working.get(world)) is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._drop(world)

    async def _perform(self, order: WorldOrder) -> WorldAnswer:
        try:
            live = await self._alive(order)
            if isinstance(order.operation, Read):
                return WorldAnswer(await live.world.read(order.operation.path, most=order.operation.most))
            result = await performed(live.world, order.operation)
            sealed = await live.world.snapshot()
            await uploaded(self.bucket, sealed.id)
            live.state = sealed.id
            return WorldAnswer(result, sealed)
        except BaseException as error:
            await self._drop(order.world)
            if isinstance(error, Exception):
                return WorldAnswer(error=carried(error))
            raise

    async def _alive(self, order: WorldOrder) -> _Live:
        """The world at the state that the operation begins with."""
        found = self._live.get(order.world)
        if found is not None and found.state != order.state:  # its last answer was not heard
            await self._drop(order.world)
            found = None
        if found is None:
            async with self._home.pins.held():
                base = await fetched(self.snapshots, self.bucket, order.state)
                world = await self._world(base, order.setup)
            found = self._live[order.world] = _Live(world, order.state)
        return found

    async def _world(self, base: Snapshot, setup: WorldSetup) -> World:
        if setup.over_image is not None:
            return await World.at(base, setup.over_image, self._home)
        of_shell = {*base.env, *base.env_unset}  # its own variables go before those that the world began with
        return await World.create(
            snapshot=base,
            mount_at=setup.mount_at,
            env={name: value for name, value in setup.env.items() if name not in of_shell},
            limits=setup.limits,
            home=self._home,
        )

    async def _drop(self, world: WorldKey) -> None:
        if (live := self._live.pop(world, None)) is not None:
            await live.world.close()


async def fetched(snapshots: SnapshotStore, bucket: OpenBucket, id: SnapshotId) -> Snapshot:
    """Return a state, from the bucket if it is not here. Raises `RemoteError`."""
    if await asyncio.to_thread(missing, snapshots, id) is not None:
        return await bucket.fetch(id)
    return await asyncio.to_thread(snapshots.get, id)


async def uploaded(bucket: OpenBucket, id: SnapshotId) -> None:
    """Return once the bucket has the state. Raises `ForkEngineError`, after a while if it cannot be reached."""
    until, pause = time.monotonic() + UPLOAD_PATIENCE_S, _FIRST_PAUSE_S
    while True:
        try:
            return await bucket.upload(id)
        except RemoteUnusable:
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
