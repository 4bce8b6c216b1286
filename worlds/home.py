"""The open home of worlds: its snapshot store, one backend, and the names of worlds and tags; and worlds that are
about to be made there (`Opening`)."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ramify import paths
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import MergeStrategy, Snapshot, SnapshotId
from ramify.images.catalogue import Catalogue, Image
from ramify.images.errors import BadReference, ImageNotFound
from ramify.images.library import ImageLibrary, is_image_file
from ramify.images.references import ImageReference, SourceKind
from ramify.sandboxes.contract import Backend, Hiding, WorldSpec
from ramify.sandboxes.selection import open_backend
from ramify.worlds.ancestry import Ancestry
from ramify.worlds.errors import WorldClosed, WorldError, WorldNotFound
from ramify.worlds.home_names import HomeNames
from ramify.worlds.references import Kind, References
from ramify.worlds.world_spec import started_in

_SHORTEST_ID = 6  # characters of a snapshot's id that may stand for it


class Closing(Protocol):
    async def close(self) -> None: ...


class WorldHome(HomeNames):
    """An async context manager. Makes worlds, and closes those that are still open when it is left: a named one
    stores its changes.

    place: the folder of the home; default as for runs (`ramify.paths.home`). sandbox: "namespaces" (the default),
    "docker", "copy" (no isolation), or a function that makes a backend from a snapshot store and a scratch folder;
    $RAMIFY_SANDBOX stands in for None. clock: Unix seconds.
    """

    def __init__(
        self,
        place: str | Path | None = None,
        sandbox: str | Callable[[SnapshotStore, Path], Backend] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.place = paths.home(place)
        self.references = References(paths.references(self.place))
        self.pins = Pins(paths.locks(self.place))
        self._chosen = sandbox or os.environ.get("RAMIFY_SANDBOX") or "namespaces"
        self._clock = clock
        self._stack = AsyncExitStack()
        self._backend: Backend | None = None
        self._lock = asyncio.Lock()
        self._owner = os.getpid()
        self._open = False
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that it was opened in
        self._changing = threading.Lock()
        self._users = 0  # worlds that keep it open, if nobody entered it
        self._worlds = set[Closing]()  # that are open

    async def __aenter__(self) -> WorldHome:
        self._loop = asyncio.get_running_loop()
        paths.make_private(self.place)
        self.store = await asyncio.to_thread(SnapshotStore, paths.snapshots(self.place))
        self.images = ImageLibrary(self.store, Catalogue(paths.images(self.place)), self.pins, clock=self._clock)
        self._open = True
        return self

    async def __aexit__(self, *error: object) -> None:
        if os.getpid() != self._owner:
            return  # a forked child's copy: its parent closes it
        self.check_loop()
        failures: list[BaseException] = []
        try:
            while self._worlds:
                worlds, self._worlds = self._worlds, set()
                ends = await asyncio.gather(*(world.close() for world in worlds), return_exceptions=True)
                failures += [end for end in ends if end is not None]
        finally:
            self._open = False
            await self._stack.aclose()
        if failures and not any(error):  # such as a full disk: the changes of a named world are not stored
            raise failures[0]

    @property
    def is_open(self) -> bool:
        """Whether worlds of it can live, in this process."""
        return self._open and os.getpid() == self._owner

    def check_loop(self) -> None:
        """Raise `WorldClosed` in another event loop than its own: there, nothing would ever be answered."""
        if asyncio.get_running_loop() is not self._loop:
            raise WorldClosed(
                "the world belongs to another event loop (asyncio.run makes one of its own): use it there, open a "
                "named world again, or use SyncWorld"
            )

    def opened(self, world: Closing) -> None:
        """A world of it is open."""
        self._worlds.add(world)

    def closed(self, world: Closing) -> None:
        """A world of it was closed."""
        self._worlds.discard(world)

    def used(self) -> None:
        """Another world keeps this home open. Only for a home that a world opened by itself."""
        self._users += 1

    async def unused(self) -> None:
        """One world fewer; the last one closes the home."""
        self._users -= 1
        if not self._users:
            await self.__aexit__()

    async def backend(self) -> Backend:
        """The backend, started at the first call. Raises `BackendUnavailable`, and `WorldClosed`."""
        if not self.is_open:
            raise WorldClosed("the home of these worlds was closed, or belongs to another process: open it again")
        self.check_loop()
        async with self._lock:
            if self._backend is None:
                scratch = paths.worlds(self.place)
                made: Backend
                if callable(self._chosen):
                    made = self._chosen(self.store, scratch)
                else:
                    made = await asyncio.to_thread(open_backend, self._chosen, self.store, scratch)
                if isinstance(made, Hiding):
                    made.hide(*paths.private(self.place, paths.database(self.place)))
                self._backend = await self._stack.enter_async_context(made)
            return self._backend

    @asynccontextmanager
    async def imported(self, folder: Path | None) -> AsyncIterator[Snapshot]:
        """The snapshot of a folder as it is now, or of an empty one, safe from `ramify gc` while the block runs.

        Raises `WorkspaceError`.
        """
        async with self.pins.held():
            if folder is not None:
                made = await asyncio.to_thread(self.store.import_tree, folder)
            else:
                empty = await asyncio.to_thread(tempfile.mkdtemp)
                try:
                    made = await asyncio.to_thread(self.store.import_tree, Path(empty))
                finally:
                    shutil.rmtree(empty, ignore_errors=True)
            yield made.snapshot

    async def image(self, name: str | Path) -> Image | None:
        """The image of this name, pulled unless it is here. None for what the backend reads by itself: a root file
        system, or with the docker backend a name without a prefix that no image here has. Raises `ImagesError`."""
        if not str(name):
            raise BadReference("'' names no image: write NAME, NAME:TAG, oci:FOLDER or a path")
        path = paths.expanded(name)
        if isinstance(name, Path) or path.exists():
            return await self.images.pull(str(name)) if is_image_file(path) else None
        try:
            reference = ImageReference.parse(name)
            if reference.kind not in (SourceKind.OCI, SourceKind.ARCHIVE):  # a file may have changed
                return await asyncio.to_thread(self.images.catalogue.get, name)
        except ImageNotFound:
            if self._chosen == "docker" and reference.kind is SourceKind.REGISTRY:
                return None
        except BadReference:
            if not name.startswith("sha256:"):
                raise
            return await asyncio.to_thread(self.images.catalogue.get, name)  # an id
        return await self.images.pull(name)

    def state_of(self, image: Image) -> Snapshot:
        """The snapshot that stands for an image."""
        return self._get(image.snapshot)

    def image_under(self, state: Snapshot) -> Image | None:
        """The image that a state is over; None if it is over none, or it was forgotten."""
        if state.image is None:
            return None
        for image in self.images.catalogue.all():
            under = self.state_of(image)
            if (state.image, *state.outside[: len(under.outside)]) == (under.image, *under.outside):
                return image
        return None

    def put_over(self, base: Snapshot, image: Image) -> Snapshot:
        """A snapshot's workspace over an image. Raises `WorldError` if it is over another image."""
        under = self.state_of(image)
        if base.image is not None:
            if (base.image, *base.outside[: len(under.outside)]) != (under.image, *under.outside):
                raise WorldError(f"the state {base.id[:12]} has another image: leave out image=")
            return base
        return self.store.over_image(base, under)

    def prepared(
        self, base: Snapshot, spec: WorldSpec, over: Image | None, given: Mapping[str, str]
    ) -> tuple[Snapshot, WorldSpec]:
        """The state with which a new world begins, and how it looks. over: an image that its user named. given: the
        variables that its user gave, which go before those of the image and of the state's shell."""
        if over is not None:
            base = self.put_over(base, over)
        base = self.with_variables(base, given)
        if (under := over or self.image_under(base)) is not None:
            theirs = {name: given.get(name, value) for name, value in under.config.env.items()}
            spec = replace(spec, user=under.config.user, command_env=theirs)
        return base, started_in(spec, base)

    def check_image(self, state: Snapshot, now: Snapshot, image: str | Path | None) -> None:
        """Raise `WorldError` if a world that is at the state `now` cannot go back to a state, since that is over
        another image: the world keeps the variables, the user and the directory of its own. `image`: of the world."""
        if state.image_stack == now.image_stack:
            return
        if image is not None:  # states name a root file system only from the first seal on
            root = paths.expanded(image)
            workspace = state.image is None and not state.outside
            if now.image is None or (workspace and root.exists() and not is_image_file(root)):
                return
        raise WorldError(
            f"the state {state.id[:12]} has another image than this world, which was not changed: make another "
            "world from that state (`snapshot=`; `ramify world new --from`)"
        )

    def with_variables(self, base: Snapshot, given: Mapping[str, str]) -> Snapshot:
        """The state with the variables that its user gave instead of those that its image or its shell has."""
        told = {*base.env, *base.env_unset}
        changed = {name: value for name, value in given.items() if name in told}
        return self.store.with_variables(base, changed) if changed else base

    def resolve(self, name: str | Snapshot) -> Snapshot:
        """The snapshot that a name stands for: a tag, a world, or an id (its first 6 characters are enough).

        Raises `WorldNotFound`, also for the beginning of several ids.
        """
        if isinstance(name, Snapshot):
            return replace(name)  # the caller's own keeps the snapshot as long as the caller has it
        for kind in (Kind.TAG, Kind.WORLD):
            with suppress(WorldError):
                return self._get(self.references.get(kind, name).snapshot)
        found = [id for id in self.store.present() if len(name) >= _SHORTEST_ID and id.startswith(name)]
        if len(found) != 1:
            why = f"{len(found)} snapshots begin with it" if found else "no tag, world or snapshot has this name"
            raise WorldNotFound(f"{name!r} names no state: {why}")
        return self._get(found[0])

    def saved(self, name: str) -> Snapshot:
        """The state of a named world as it was last stored. Raises `WorldNotFound`."""
        return self._get(self.references.get(Kind.WORLD, name).snapshot)

    def merge(
        self, name: str, other: str, *, base: str | None = None, strategy: MergeStrategy = MergeStrategy.FAIL
    ) -> Snapshot:
        """Merge a state into a named world that is not open, without starting it. Raises as `World.merge` does, and
        `WorldInUse`."""
        with self.references.held(name):
            reference, ours, theirs = self.references.get(Kind.WORLD, name), self.saved(name), self.resolve(other)
            root = self.common_ancestor(ours, theirs) if base is None else self.resolve(base)
            merged = self.store.merge(root, ours, theirs, strategy=strategy)
            self.moved(reference, merged)
            return merged

    def common_ancestor(self, ours: Snapshot, theirs: Snapshot) -> Snapshot:
        """The base of a merge of two states. Raises `NoCommonAncestor`."""
        return Ancestry(self.store, paths.references(self.place)).common_ancestor(ours, theirs)

    def _get(self, id: SnapshotId) -> Snapshot:
        try:
            return self.store.get(id)
        except SnapshotNotFound as error:
            raise WorldNotFound(f"the snapshot {id[:12]} is no longer in the store: {error}") from error


W = TypeVar("W", bound=Closing)


class Opening(AbstractAsyncContextManager[W], Awaitable[W]):
    """A world that is about to be made. Await it for the world, or enter it: leaving it then closes the world."""

    def __init__(
        self,
        make: Callable[[WorldHome, bool], Awaitable[W]],
        home: WorldHome | str | Path | None,
        sandbox: str | None,
    ) -> None:
        if isinstance(home, WorldHome) and sandbox is not None:
            raise WorldError("an open home has its backend: leave out sandbox=")
        self._make = make
        self._home = home
        self._sandbox = sandbox
        self._world: W | None = None

    def __await__(self) -> Generator[Any, None, W]:
        return self._opened().__await__()

    async def __aenter__(self) -> W:
        self._world = await self._opened()
        return self._world

    async def __aexit__(self, *error: object) -> None:
        if self._world is not None:
            await self._world.close()

    async def _opened(self) -> W:
        if isinstance(self._home, WorldHome):
            return await self._make(self._home, False)
        home = WorldHome(self._home, self._sandbox)
        await home.__aenter__()
        try:
            return await self._make(home, True)
        except BaseException:
            await home.__aexit__()
            raise
