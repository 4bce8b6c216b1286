"""What backends share: hidden host files, living worlds (`WorldBackend`), and a helper process (`AgentBackend`).

A backend hides its own store and worlds, Ramify's default homes, and what its caller names with `hide`: the home in
use, the database. Files that this process writes (a log, a trace) are found by its own descriptors.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from ramify import paths
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.capabilities import Capabilities, Feature, flags
from ramify.sandboxes.contract import World, WorldId, WorldSpec, check_supported
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.host.agent_world import AgentWorld
from ramify.sandboxes.host.concurrency import finish_before_cancelling, fork_all
from ramify.sandboxes.host.fork_server_client import ForkServerClient, find_bash
from ramify.sandboxes.host.scratch import ScratchSession
from ramify.sandboxes.host.world_lifecycle import RecentBlobs, WorldResources


def hidden(named: Iterable[Path]) -> tuple[Path, ...]:
    """The files in `named`, the default homes and the files that this process writes: resolved, none within
    another."""
    found = {path.resolve() for path in (*named, *default_homes(), *written())} - {Path("/")}
    user = homes_of_user()
    for home in [path for path in found if any(folder.is_relative_to(path) for folder in user)]:
        found.remove(home)  # hide what Ramify keeps in the user's home, not the home itself
        found.update((home / name).resolve() for name in paths.KEPT)
    return tuple(sorted(path for path in found if not any(above in found for above in path.parents)))


def default_homes() -> set[Path]:
    """Ramify's home if nobody names one, and the one that the environment names."""
    homes = {paths.usual(folder) for folder in homes_of_user()}
    with suppress(FileNotFoundError):  # nobody names one, and the user has no home folder
        homes.add(paths.home())
    return homes


def homes_of_user() -> set[Path]:
    """The user's home folder, by $HOME and by the system, which may differ."""
    named = paths.of_user()
    homes = set() if named is None else {named.resolve()}
    with suppress(KeyError, OSError):
        homes |= {Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()} - {Path("/")}
    return homes


def written() -> set[Path]:
    """The logs and traces that this process writes: its standard streams, and regular files open for appending.

    Other files open for writing may hold data that its worlds are to read.
    """
    found = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError, ValueError):  # the descriptor that lists them
            flags = fcntl.fcntl(int(link.name), fcntl.F_GETFL)
            appended = flags & os.O_APPEND or int(link.name) in (1, 2)
            if not (appended and flags & (os.O_WRONLY | os.O_RDWR)):
                continue
            path, status = link.readlink(), os.fstat(int(link.name))
            if stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.lstat()):  # else it has no name
                found.add(path)
    return found


class WorldBackend(ABC):
    """What all backends share: a scratch session, the host files that worlds must not see, and the living worlds."""

    name: ClassVar[str]

    def __init__(self, store: SnapshotStore, scratch: Path) -> None:
        self._store, self._scratch = store, scratch.resolve()
        self._private = [Path(store.root), self._scratch]
        self._hidden: tuple[Path, ...] = ()  # known once it is open
        self._session = ScratchSession(self._scratch)
        self._worlds: dict[WorldId, AgentWorld] = {}
        self._blobs = RecentBlobs(store)
        self._stack = AsyncExitStack()

    @classmethod
    @abstractmethod
    def missing(cls) -> dict[Feature, str]:
        """The features that its worlds lack, with reasons. Cheap."""

    @cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(self.name, flags(self.missing()))

    def hide(self, *places: Path) -> None:
        """Hide these files and folders in all worlds, whether or not they exist yet. Call before opening the
        backend."""
        self._private += places

    async def __aenter__(self) -> Self:
        """Open everything, or nothing: an opening that fails or is cancelled is undone."""
        stack = AsyncExitStack()
        try:
            await finish_before_cancelling(self._open(stack))
        except BaseException:
            await finish_before_cancelling(stack.aclose())
            raise
        self._stack = stack
        return self

    async def __aexit__(self, *exc: object) -> None:
        await finish_before_cancelling(self._stack.aclose())

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Open the session and what the worlds need, and push the end of each part on `stack` before it is begun."""

    async def _open_session(self, stack: AsyncExitStack) -> None:
        self._hidden = await asyncio.to_thread(hidden, self._private)
        stack.push_async_callback(asyncio.to_thread, self._session.close)
        await asyncio.to_thread(self._session.open)

    async def _close_worlds(self) -> None:
        await asyncio.gather(*(world.close() for world in list(self._worlds.values())))

    @abstractmethod
    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World: ...

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        return await fork_all(self, snapshot, spec, n)

    async def _begin(self, world: AgentWorld) -> World:
        """Start a registered world, or close it if that fails."""
        try:
            await world.begin()
        except BaseException:
            await world.close()
            raise
        return world

    def _not_open(self) -> WorldStartFailed:
        return WorldStartFailed(f"the {self.name} backend is not open: use it as `async with backend:`")

    def _forget(self, world_id: WorldId) -> None:
        self._worlds.pop(world_id, None)


class AgentBackend(WorldBackend):
    """A backend that starts one helper process when opened. Every world is forked from it and ends with it."""

    def __init__(self, store: SnapshotStore, scratch: Path) -> None:
        super().__init__(store, scratch)
        self._helper: ForkServerClient | None = None
        self._bash = ""

    async def _open(self, stack: AsyncExitStack) -> None:
        self._bash = find_bash()
        await self._open_session(stack)
        self._helper = self._new_helper()
        stack.push_async_callback(self._close_helper)
        await self._helper.start()
        stack.push_async_callback(self._close_worlds)

    async def _close_helper(self) -> None:
        if self._helper is not None:
            await self._helper.close()
            self._helper = None

    def _new_helper(self) -> ForkServerClient:
        return ForkServerClient(self._session.folder / "helper.log")

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        self._check(spec)
        return await self._begin(self._register(snapshot, spec, self._session.folder / secrets.token_hex(6)))

    def _check(self, spec: WorldSpec) -> None:
        """Raise `Unsupported` or `WorldStartFailed` if such a world cannot be made."""
        check_supported(self.capabilities, spec)
        if self._helper is None:
            raise self._not_open()

    def _register(self, snapshot: Snapshot, spec: WorldSpec, folder: Path) -> AgentWorld:
        """Register a world that has not begun, by its folder's name; closing the backend closes it."""
        assert self._helper is not None
        world_id = WorldId(folder.name)
        resources = WorldResources(
            self._store, self._helper, self._bash, folder, self._hidden, self._forget, self._blobs
        )
        world = self._worlds[world_id] = self._world(resources, snapshot, spec)
        return world

    @abstractmethod
    def _world(self, resources: WorldResources, snapshot: Snapshot, spec: WorldSpec) -> AgentWorld:
        """A world of this backend's kind that has not begun."""
