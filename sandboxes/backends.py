"""A backend over the helper process: what the namespace and the copy backend have in common."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import World, WorldId, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.features import Capabilities, Feature, flags, refuse_what_is_missing
from ramify.sandboxes.forking import fork_all
from ramify.sandboxes.helper import Helper, find_bash
from ramify.sandboxes.hiding import hidden
from ramify.sandboxes.living import Ground
from ramify.sandboxes.scratch import Session
from ramify.sandboxes.worlds import AgentWorld


class AgentBackend(ABC):
    """Opening starts one helper process; every world is forked from it and ends with it."""

    name: ClassVar[str]

    def __init__(self, store: SnapshotStore, scratch: Path) -> None:
        self._store, self._scratch = store, scratch.resolve()
        self._private = [Path(store.root), self._scratch]
        self._hidden: tuple[Path, ...] = ()  # known once it is open
        self._session = Session(self._scratch)
        self._helper: Helper | None = None
        self._bash = ""
        self._worlds: dict[WorldId, AgentWorld] = {}

    def hide(self, *places: Path) -> None:
        """Have no world see these files and folders, whether they are there yet or not. Before it is opened."""
        self._private += places

    async def __aenter__(self) -> Self:
        self._bash = find_bash()
        self._hidden = await asyncio.to_thread(hidden, self._private)
        await asyncio.to_thread(self._session.open)
        self._helper = self._new_helper()
        await self._helper.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(world.close() for world in list(self._worlds.values())))
        if self._helper is not None:
            await self._helper.close()
            self._helper = None
        await asyncio.to_thread(self._session.close)

    @classmethod
    @abstractmethod
    def missing(cls) -> dict[Feature, str]:
        """What worlds of this kind have not, and why. Cheap."""

    @cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(self.name, flags(self.missing()))

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        return await fork_all(self, snapshot, spec, n)

    def _new_helper(self) -> Helper:
        return Helper(self._session.folder / "helper.log")

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        self._check(spec)
        world = self._register(snapshot, spec, self._session.folder / uuid.uuid4().hex[:12])
        try:
            await world.begin()
        except BaseException:
            await world.close()
            raise
        return world

    def _check(self, spec: WorldSpec) -> None:
        """Raises `Unsupported`, `WorldStartFailed`."""
        refuse_what_is_missing(self.capabilities, spec)
        if self._helper is None:
            raise WorldStartFailed(f"the {self.name} backend is not open: use it as `async with backend:`")

    def _register(self, snapshot: Snapshot, spec: WorldSpec, folder: Path) -> AgentWorld:
        """A world that has not begun, by the folder's name; closing the backend closes it."""
        assert self._helper is not None
        world_id = WorldId(folder.name)
        ground = Ground(self._store, self._helper, self._bash, folder, self._hidden, self._forget)
        world = self._worlds[world_id] = self._world(ground, snapshot, spec)
        return world

    @abstractmethod
    def _world(self, ground: Ground, snapshot: Snapshot, spec: WorldSpec) -> AgentWorld:
        """A world of this backend's kind, not begun."""

    def _forget(self, world_id: WorldId) -> None:
        self._worlds.pop(world_id, None)
