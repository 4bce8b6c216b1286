"""The default backend: a fork is a mount, a seal is a rename. Worlds are in `world.py`.

The mount server mounts a world's tree before the world has any process; the world's agent starts with the first
request. Trees over a snapshot that is forked repeatedly are mounted in advance (place.py).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

from ramify import paths
from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import LayerId, ProcessTier, Snapshot, SnapshotId
from ramify.sandboxes.agent.mount_view import PRIVATE, ROOT, SCRATCH_PLACES
from ramify.sandboxes.backends.agent_backend import AgentBackend, homes_of_user
from ramify.sandboxes.backends.credentials import CREDENTIALS
from ramify.sandboxes.backends.namespaces.home_overlay import HomeOverlays
from ramify.sandboxes.backends.namespaces.place import Place, WarmPool
from ramify.sandboxes.backends.namespaces.prepared_places import Kind, Pattern, PreparedPlaces
from ramify.sandboxes.backends.namespaces.world import NamespaceWorld, mount_trees
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import KeptReady, World, WorldSpec
from ramify.sandboxes.egress.broker import EgressBroker, Slots
from ramify.sandboxes.errors import WorldStartFailed, explain_file_limit
from ramify.sandboxes.host import criu
from ramify.sandboxes.host.agent_world import AgentWorld
from ramify.sandboxes.host.concurrency import run_all_to_end
from ramify.sandboxes.host.fork_server_client import ForkServerClient
from ramify.sandboxes.host.world_lifecycle import WorldResources
from ramify.sandboxes.linux import ptrace


class NamespaceBackend(AgentBackend):
    """Worlds in user, mount, pid, net, ipc and uts namespaces. `scratch` must be on the store's file system."""

    name = "namespaces"
    _overlays: HomeOverlays

    @classmethod
    def missing(cls) -> dict[Feature, str]:
        return {
            Feature.REPL: ptrace.why_not(),
            Feature.CRIU: "" if criu.command() else f"CRIU is not installed in {criu.folder()}: make criu",
        }

    async def _open(self, stack: AsyncExitStack) -> None:
        named = paths.of_user()
        for home in homes_of_user() - {None if named is None else named.resolve()}:
            self.hide(*(home / name for name in CREDENTIALS))
        await super()._open(stack)
        assert self._helper is not None
        self._overlays = HomeOverlays(self._session.folder, self._helper.trees, paths.of_user(), self._hidden)
        self._overlays.store = str(Path(self._store.root).resolve())
        self._images: dict[tuple[str, int], LayerId] = {}
        self._pool = WarmPool(self._session.folder, self._helper.trees)
        self._prepared = PreparedPlaces(self._session.folder, self._helper, self._blobs)
        self._claimed: dict[Path, Place] = {}  # by folder, until its world is registered
        self._connections = Slots.of_process()
        stack.push_async_callback(self._pool.close)
        stack.push_async_callback(self._prepared.close)

    def _new_helper(self) -> ForkServerClient:
        anchors = (Path(self._store.root).resolve(), self._session.folder)
        (self._session.folder / ROOT).mkdir()
        return ForkServerClient(self._session.folder / "helper.log", anchors)

    def _world(self, resources: WorldResources, snapshot: Snapshot, spec: WorldSpec) -> NamespaceWorld:
        assert self._helper is not None
        broker = None if spec.egress is None else EgressBroker(spec.egress, self._connections, time.time)
        place = self._claimed.pop(resources.folder)
        return NamespaceWorld(resources, self._helper, self._overlays, snapshot, spec, place, self, broker)

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        return (await self.fork(snapshot, spec, 1))[0]

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        if n < 0:
            raise ValueError(f"a world cannot be forked {n} ways")
        if spec.image is not None and snapshot.image is None:
            snapshot = replace(snapshot, image=await self._imported(spec.image))
        _check_places(spec, self._overlays.home, image=snapshot.image is not None)
        self._check(spec)
        with explain_file_limit(WorldStartFailed):
            return await self._forked(snapshot, spec, n)

    async def _forked(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        worlds: list[AgentWorld] = []
        try:
            if n > 1 and snapshot.processes.shell:
                await self._blobs.get(snapshot.processes.shell)  # once for all of them
            for place in self._claim(snapshot, spec, n):
                self._claimed[place.folder] = place
                worlds.append(self._register(snapshot, spec, place.folder))
            await mount_trees([world for world in worlds if isinstance(world, NamespaceWorld)], snapshot)
            await run_all_to_end([world.begin() for world in worlds])
        except BaseException:
            await asyncio.gather(*(world.close() for world in worlds))
            raise
        return list(worlds)

    # Places

    def _claim(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[Place]:
        """Places for `n` new worlds, as far as possible prepared ones."""
        assert self._helper is not None
        lowers = self._store.lower_dirs(snapshot)
        prepared = self._prepared_for(snapshot, spec, n)
        others = self._pool.take(lowers, n - len(prepared))
        return [*prepared, *(Place(folder, self._helper.trees, top) for folder, top in others)]

    def _prepared_for(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[Place]:
        warm = self._prepared.take(Kind.warm_of(snapshot, spec), n)
        for place in warm:
            if place.agent is not None and snapshot.tier is ProcessTier.NONE:
                place.agent.resume()  # while the rest is done: its first command is sure to come
        return [*warm, *self._prepared.take(Kind.of(snapshot, spec), n - len(warm))]

    def claim_one(self, snapshot: Snapshot, spec: WorldSpec) -> Place:
        """A place for the next life of a world. Its tree is mounted only if it is warm, by its folder's name."""
        assert self._helper is not None
        prepared = self._prepared_for(snapshot, spec, 1)
        return prepared[0] if prepared else Place(self._pool.take_folder(), self._helper.trees)

    def expect(self, pattern: Pattern) -> None:
        self._prepared.expect(pattern)

    def expect_again(self, kind: Kind) -> bool:
        return self._prepared.expect_again(kind)

    def foresee(self, snapshot: Snapshot, spec: WorldSpec, forks: int) -> KeptReady:
        try:
            lowers = self._store.lower_dirs(snapshot)
            return self._prepared.foresee(snapshot, spec, forks, lowers, self._images_of(snapshot, spec))
        except (ForkEngineError, OSError) as error:  # a layer is missing, or too many files are open
            return KeptReady(0, str(error))

    def _images_of(self, snapshot: Snapshot, spec: WorldSpec) -> str | None:
        """The folder of the processes that a snapshot kept, "" for none; None if they cannot be restored here."""
        if not snapshot.processes.image:
            return ""
        if ptrace.why_not() or (snapshot.tier.whole and criu.why_not(spec)):
            return None
        with suppress(ForkEngineError):  # it is missing, which a fork reports
            return str(self._store.image_dir(snapshot.processes.image))
        return None

    def forget(self, snapshots: Collection[SnapshotId]) -> int:
        return self._prepared.forget(snapshots)

    async def _imported(self, image: Path) -> LayerId:
        if not image.exists():
            raise WorldStartFailed(f"the image {image} is missing: name a root file system, a folder or a tar of one")
        key = (str(image.resolve()), image.stat().st_mtime_ns)
        if key not in self._images:
            self._images[key] = await asyncio.to_thread(self._store.import_image, image, hold=True)
        return self._images[key]


def _check_places(spec: WorldSpec, home: Path | None, *, image: bool) -> None:
    """Raise `WorldStartFailed` for what could not be mounted when the world's agent starts."""
    for path in spec.visible:
        if not path.exists():
            raise WorldStartFailed(f"{path} is listed in WorldSpec.visible, but does not exist")
    place = Path(os.path.normpath(spec.mount_at))
    if place == Path(PRIVATE).parent:
        raise WorldStartFailed(
            f"the tree cannot stand at {place}: the world has files of its own below it. Name another place"
        )
    writable = (*map(Path, SCRATCH_PLACES), *([home] if home is not None else []))
    if image or any(place.is_relative_to(one) for one in writable):
        return
    if not place.is_dir():
        raise WorldStartFailed(
            f"{place} does not exist on this machine and cannot be made in the world, where only "
            f"{', '.join(map(str, writable))} can have new folders: create the folder first"
        )
    if (real := place.resolve()) != place:
        raise WorldStartFailed(f"the tree cannot stand at {place}, which a link leads to: name {real}")
