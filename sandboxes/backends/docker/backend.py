"""Worlds in containers: the root is any image; isolation and limits are the engine's.

The workspace is a folder of ours, mounted at its own path, so seals, rollbacks and checkouts work as with `copy`.
What changes in the rest of the container becomes a second stack of layers in our store. A world's agent is the
container's first process (container_link.py).
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Self

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.agent_backend import hidden
from ramify.sandboxes.backends.docker.engine import SCRATCH, SESSION, Engine, connect
from ramify.sandboxes.backends.docker.images import Images
from ramify.sandboxes.backends.docker.portable_python import carry
from ramify.sandboxes.backends.docker.world import ContainerSpawner, DockerSession, DockerWorld
from ramify.sandboxes.capabilities import Capabilities, Feature, check_supported, flags
from ramify.sandboxes.contract import World, WorldId, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.host.concurrency import fork_all
from ramify.sandboxes.host.scratch import Session
from ramify.sandboxes.host.world_lifecycle import Ground

STARTS_AT_ONCE = 4  # the engine does little at once
BASH = "/bin/bash"  # in every image


class DockerBackend:
    """Worlds in containers of this machine's engine. Images are imported once and stay in the engine."""

    name = "docker"

    def __init__(self, store: SnapshotStore, scratch: Path) -> None:
        self._store, self._scratch = store, scratch.resolve()
        self._private = [Path(store.root), self._scratch]
        self._hidden: tuple[Path, ...] = ()  # known once it is open
        self._session = Session(self._scratch)
        self._dock: DockerSession | None = None
        self._images: Images | None = None
        self._worlds: dict[WorldId, DockerWorld] = {}

    @classmethod
    def missing(cls) -> dict[Feature, str]:
        return {
            Feature.FORK_BY_MOUNT: "a fork copies the tree into a folder that its container mounts: use namespaces",
            Feature.REPL: "a session is forked inside its world, not from world to world",
            Feature.CRIU: "processes in a container are not dumped: use namespaces",
            Feature.DISK_LIMIT: "the tree is a copy, and what a world adds is not counted separately: use namespaces",
        }

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(self.name, flags(self.missing()))

    def hide(self, *places: Path) -> None:
        """Hide these files and folders in all worlds, if they lie in a folder that a world is shown. Call before
        opening."""
        self._private += places

    async def __aenter__(self) -> Self:
        self._hidden = await asyncio.to_thread(hidden, self._private)
        await asyncio.to_thread(self._session.open)
        try:
            self._dock = await asyncio.to_thread(self._open)
            self._images = Images(self._dock.engine, self._store, self._session.folder)
        except BaseException:
            await asyncio.to_thread(self._session.close)
            raise
        return self

    def _open(self) -> DockerSession:
        name = self._session.folder.name
        engine = Engine(connect(), {SCRATCH: str(self._scratch), SESSION: name})
        try:
            living = {lock.stem for lock in self._scratch.glob("*.lock")}  # dead ones' locks are removed
            engine.sweep(self._scratch, living)
            return DockerSession(engine, carry(self._session.folder / "python"), asyncio.Semaphore(STARTS_AT_ONCE))
        except BaseException:
            engine.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(world.close() for world in list(self._worlds.values())))
        if self._dock is not None:
            await asyncio.to_thread(self._dock.engine.close)
            self._dock = None
        await asyncio.to_thread(self._session.close)

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        return await fork_all(self, snapshot, spec, n)

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        check_supported(self.capabilities, spec)
        if self._dock is None or self._images is None:
            raise WorldStartFailed("the docker backend is not open: use it as `async with backend:`")
        try:
            image, layer = await self._images.find(snapshot, spec.image)
        except ForkEngineError as error:
            raise WorldStartFailed(f"the image cannot be used: {error}") from error
        if layer != snapshot.image:
            snapshot = replace(snapshot, image=layer)  # so that its seals record the image
        world_id = WorldId(uuid.uuid4().hex[:12])
        folder = self._session.folder / world_id
        berth = ContainerSpawner(self._dock, image, folder, spec, hidden=self._hidden)
        ground = Ground(self._store, berth, BASH, folder, self._hidden, self._forget)
        world = self._worlds[world_id] = DockerWorld(ground, snapshot, spec, berth)
        try:
            await world.begin()
        except BaseException:
            await world.close()
            raise
        return world

    def _forget(self, world_id: WorldId) -> None:
        self._worlds.pop(world_id, None)
