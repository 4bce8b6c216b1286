"""Worlds in containers: the root is any image; isolation and limits are the engine's.

The workspace is a folder of ours, mounted at its own path, so seals, rollbacks and checkouts work as with `copy`.
What changes in the rest of the container becomes a second stack of layers in our store. A world's agent is the
container's first process (container_link.py).
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.agent_backend import WorldBackend
from ramify.sandboxes.backends.docker.engine import SCRATCH, SESSION, Engine, connect
from ramify.sandboxes.backends.docker.images import Images
from ramify.sandboxes.backends.docker.portable_python import make_portable_python
from ramify.sandboxes.backends.docker.world import ContainerSpawner, DockerSession, DockerWorld
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import World, WorldId, WorldSpec, check_supported
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.host.world_lifecycle import WorldResources

STARTS_AT_ONCE = 4  # the engine does little at once
BASH = "/bin/bash"  # in every image


class DockerBackend(WorldBackend):
    """Worlds in containers of this machine's engine. Images are imported once and stay in the engine.

    Host files are hidden where they lie in a folder that a world is shown.
    """

    name = "docker"

    def __init__(self, store: SnapshotStore, scratch: Path) -> None:
        super().__init__(store, scratch)
        self._docker: DockerSession | None = None
        self._images: Images | None = None

    @classmethod
    def missing(cls) -> dict[Feature, str]:
        return {
            Feature.EGRESS: "the broker cannot listen inside a container: use namespaces, with image= for an image",
            Feature.FORK_BY_MOUNT: "a fork copies the tree into a folder that its container mounts: use namespaces",
            Feature.REPL: "a session is forked inside its world, not from world to world",
            Feature.CRIU: "processes in a container are not dumped: use namespaces",
            Feature.DISK_LIMIT: "the tree is a copy, and what a world adds is not counted separately: use namespaces",
        }

    async def _open(self, stack: AsyncExitStack) -> None:
        await self._open_session(stack)
        stack.push_async_callback(self._leave_engine)
        self._docker = await asyncio.to_thread(self._reach_engine)
        self._images = Images(self._docker.engine, self._store, self._session.folder)
        stack.push_async_callback(self._close_worlds)

    async def _leave_engine(self) -> None:
        if self._docker is not None:
            await asyncio.to_thread(self._docker.engine.close)
            self._docker = None

    def _reach_engine(self) -> DockerSession:
        name = self._session.folder.name
        engine = Engine(connect(), {SCRATCH: str(self._scratch), SESSION: name})
        try:
            living = {lock.stem for lock in self._scratch.glob("*.lock")}  # dead ones' locks are removed
            engine.sweep(self._scratch, living)
            return DockerSession(
                engine, make_portable_python(self._session.folder / "python"), asyncio.Semaphore(STARTS_AT_ONCE)
            )
        except BaseException:
            engine.close()
            raise

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        check_supported(self.capabilities, spec)
        if self._docker is None or self._images is None:
            raise self._not_open()
        try:
            image, layer = await self._images.find(snapshot, spec.image)
        except ForkEngineError as error:
            raise WorldStartFailed(f"the image cannot be used: {error}") from error
        if layer != snapshot.image:
            snapshot = replace(snapshot, image=layer)  # so that its seals record the image
        world_id = WorldId(uuid.uuid4().hex[:12])
        folder = self._session.folder / world_id
        spawner = ContainerSpawner(self._docker, image, folder, spec, hidden=self._hidden)
        resources = WorldResources(self._store, spawner, BASH, folder, self._hidden, self._forget, self._blobs)
        world = self._worlds[world_id] = DockerWorld(resources, snapshot, spec, spawner)
        return await self._begin(world)
