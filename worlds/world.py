"""One live world: run commands, read and write its files, snapshot, fork, restore, diff, merge."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from ramify.fork_engine.gc_pins import Ground
from ramify.fork_engine.types import Change, MergeStrategy, Resolver, Snapshot, Written
from ramify.sandboxes import contract
from ramify.sandboxes.contract import Limits, WorldSpec
from ramify.sandboxes.egress.credentials import Header
from ramify.sandboxes.egress.settings import Egress
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.worlds import files
from ramify.worlds.ancestry import common_ancestor
from ramify.worlds.errors import PathRefused, WorldClosed, WorldError, WorldNotFound
from ramify.worlds.home import DEFAULT_MOUNT, IMAGE_MOUNT, WorldHome, started_in, world_spec
from ramify.worlds.pending_snapshot import PendingSnapshot
from ramify.worlds.references import Kind, Reference
from ramify.worlds.world_commands import WorldCommands
from ramify.worlds.world_egress import Allowed, WorldEgress, recorded_egress

MOST_READ = 256 << 20
"""Bytes of the largest file that `World.read` returns by default."""


class World(WorldCommands, WorldEgress):
    """A live sandbox. An async context manager: leaving it ends its processes.

    Make one with `World.create`, `World.open` or `fork`. A world with a name keeps its state after it was closed:
    `snapshot`, `restore` and `merge` store it at once, and closing stores what was changed since. A world without a
    name is gone when it is closed; a tagged snapshot of it stays.

    Commands of `exec` and `start` run in parallel; those of one shell wait for each other. All paths are relative to
    the world's tree, or absolute paths inside it.
    """

    def __init__(
        self,
        home: WorldHome,
        live: contract.World,
        spec: WorldSpec,
        *,
        origin: Snapshot,
        reference: Reference | None = None,
        keeps_home: bool = False,
        held: ExitStack | None = None,
    ) -> None:
        """Use `create`, `open` or `fork` instead. `keeps_home`: the home is closed with the last of its worlds.
        `held`: the lock of the world's name; the world takes it over."""
        self._home = home
        self._live = live
        self._spec = spec
        self._origin = origin
        self._reference = reference
        self._keeps_home = keeps_home
        self._closed = False
        self._pending: PendingSnapshot | None = None  # the last one that was begun
        self._owner = os.getpid()
        self._pin: Ground = home.pins.ground()
        self._pin.moved(origin.id)
        self._held = ExitStack()
        if held is not None:
            self._held.enter_context(held.pop_all())
        self._keep_connections(live)
        if keeps_home:
            home.used()

    # Making worlds

    @classmethod
    def create(
        cls,
        folder: str | Path | None = None,
        *,
        snapshot: str | Snapshot | None = None,
        name: str | None = None,
        image: str | Path | None = None,
        mount_at: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        network: bool = False,
        egress: Allowed | None = None,
        limits: Limits | None = None,
        dumpable: bool = False,
        home: WorldHome | str | Path | None = None,
        sandbox: str | None = None,
    ) -> Opening:
        """Make a world from a folder, from a snapshot (its id, a tag, or another world's name), or empty. Use it as
        `async with World.create(…) as world`, or `world = await World.create(…)` and close it.

        The folder is never written to. `name` keeps the world after it was closed. `image`: an image instead of this
        machine's root, which is pulled unless it is here (`python:3.12`, `oci:FOLDER`, `docker:NAME`); or a root file
        system, a folder or a tar; or, with the docker backend, the engine's name of an image. Over an image, commands
        have its variables, and without a folder they start in its WORKDIR. `mount_at`: where the tree stands inside
        (default: the folder's own path, else /tmp/workspace, or /workspace over an image). `env`: variables, before
        those of the image and of a snapshot's shell; a name keeps them. `secrets`: variables that are never stored.
        `network=True`: the host's own network. `egress`: what the world may connect to, a list such as
        `["pypi.org", "*.github.com:443", "127.0.0.1:8000"]`, or an `Egress` with credentials; `[]` allows nothing
        until `set_egress`. `dumpable`: snapshots and forks keep the processes that `run` has started; all run
        without the filter of system calls, and `ramify doctor` says what it needs. `home`, `sandbox`: an open home,
        or what `WorldHome` takes.

        Raises `NameTaken`, `BadName`, `WorldNotFound`, `WorkspaceError`, `BackendUnavailable`, `Unsupported`,
        `WorldStartFailed`, `BadEntry`, `BadCredential`, and for an image `ImagesError`.
        """
        if folder is not None and snapshot is not None:
            raise WorldError("a world is made from a folder or from a snapshot: name one of them")
        where = None if folder is None else Path(folder).expanduser().resolve()
        allowed = None if egress is None else Egress.of(egress)

        def spec_over(under: str | Path | None) -> WorldSpec:
            usual = DEFAULT_MOUNT if under is None else IMAGE_MOUNT
            return world_spec(
                Path(mount_at) if mount_at is not None else where or usual,
                env=env,
                secrets=secrets,
                image=None if under is None else Path(under),
                network=network,
                egress=allowed,
                limits=limits,
                dumpable=dumpable,
            )

        async def make(opened: WorldHome, keeps_home: bool) -> World:
            stored = None if image is None else await opened.image(image)

            async def start(base: Snapshot, source: str) -> World:
                spec = spec_over(image if image is not None else base.image)
                if stored is not None:
                    base = await asyncio.to_thread(opened.put_over, base, stored)
                base = await asyncio.to_thread(opened.with_variables, base, env or {})
                under = stored or await asyncio.to_thread(opened.image_under, base)
                if under is not None:
                    theirs = {name: (env or {}).get(name, value) for name, value in under.config.env.items()}
                    spec = replace(spec, user=under.config.user, command_env=theirs)
                return await cls._start(opened, base, started_in(spec, base), name, source, keeps_home)

            if snapshot is not None:
                base = await asyncio.to_thread(opened.resolve, snapshot)
                return await start(base, snapshot if isinstance(snapshot, str) else base.id[:12])
            if stored is not None and where is None:
                return await start(await asyncio.to_thread(opened.state_of, stored), str(image))
            async with opened.imported(where) as base:
                return await start(base, str(where or ""))

        return Opening(make, home, sandbox)

    @classmethod
    def open(
        cls,
        name: str,
        *,
        credentials: Mapping[str, Header] | None = None,
        egress: Allowed | None = None,
        home: WorldHome | str | Path | None = None,
        sandbox: str | None = None,
    ) -> Opening:
        """The world of this name, live again at the state in which it was left. Of its background processes, it has
        those that its last snapshot kept.

        It may connect to what it last could. Credentials are never stored: give them again, or requests to their
        hosts are refused. `egress`: another policy instead, which is recorded. Raises `WorldNotFound`, `BadName`, and
        as `create` does."""
        if egress is not None and credentials is not None:
            raise WorldError("put the credentials into Egress(…, credentials=…), or leave out egress=")

        async def make(opened: WorldHome, keeps_home: bool) -> World:
            opened.references.get(Kind.WORLD, name)
            with ExitStack() as held:
                held.enter_context(opened.references.held(name))
                reference = opened.references.get(Kind.WORLD, name)
                state = await asyncio.to_thread(opened.saved, name)
                image = Path(reference.image) if reference.image else None
                allowed = recorded_egress(reference, credentials) if egress is None else Egress.of(egress)
                if egress is not None and allowed is not None:
                    reference = opened.egress_changed(reference, allowed)
                network, given = reference.network, reference.env
                spec = world_spec(Path(reference.mount_at), env=given, image=image, network=network, egress=allowed)
                spec = replace(
                    spec,
                    workdir=reference.workdir,
                    user=reference.user,
                    command_env=reference.command_env,
                    dumpable=reference.dumpable,
                )
                live = await (await opened.backend()).materialise(state, spec)
                return cls(opened, live, spec, origin=state, reference=reference, keeps_home=keeps_home, held=held)

        return Opening(make, home, sandbox)

    @classmethod
    async def _start(
        cls, home: WorldHome, base: Snapshot, spec: WorldSpec, name: str | None, source: str, keeps_home: bool
    ) -> World:
        with ExitStack() as held:
            reference = None if name is None else home.register(name, base, spec, source)
            try:
                if name is not None:
                    held.enter_context(home.references.held(name))
                live = await (await home.backend()).materialise(base, spec)
                return cls(home, live, spec, origin=base, reference=reference, keeps_home=keeps_home, held=held)
            except BaseException:
                if name is not None:
                    home.references.delete(Kind.WORLD, name)
                raise

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the world's processes. What a named world changed is stored first. May be called twice."""
        if self._closed or os.getpid() != self._owner:
            return
        try:
            await self._nothing_pending()
            if self._reference is not None:
                await self.snapshot()
        except WorldNotFound:
            pass  # it was deleted meanwhile
        finally:
            self._closed = True
            try:
                await self._live.close()
            finally:
                await finish_before_cancelling(self._nothing_pending())  # it may move the name, whose lock is held
                self._pin.close()
                self._held.close()
                if self._keeps_home:
                    await self._home.unused()

    # What it is

    @property
    def name(self) -> str | None:
        return None if self._reference is None else self._reference.name

    @property
    def path(self) -> Path:
        """The tree as this process sees it. A plain `open` below it follows links that the world planted: use `read`
        and `write`."""
        return self._alive().path

    @property
    def mount_at(self) -> Path:
        """Where the tree stands inside."""
        return self._spec.mount_at

    @property
    def state(self) -> Snapshot:
        """The snapshot that the world last started from or was sealed into."""
        return self._alive().snapshot

    # Files

    async def read(self, path: str | Path, *, most: int = MOST_READ) -> bytes:
        """A file's bytes. No link out of the tree is followed. Raises `PathRefused`, also for more than `most`
        bytes."""
        await self._state_taken()
        return await asyncio.to_thread(files.read, self._alive().path, self._relative(path), most)

    async def write(self, path: str | Path, data: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file, and make the folders above it. A link in its place is replaced, never followed. Raises
        `PathRefused`."""
        raw = data.encode() if isinstance(data, str) else data
        await self._state_taken()
        await asyncio.to_thread(files.write, self._alive().path, self._relative(path), raw, mode)

    async def upload(self, source: str | Path, target: str | Path = ".") -> None:
        """Copy a file or folder of the host into the world. Links are copied as links. Raises `PathRefused`."""
        await self._state_taken()
        await asyncio.to_thread(files.upload, Path(source), self._alive().path, self._relative(target))

    async def download(self, source: str | Path, target: str | Path) -> None:
        """Copy a file or folder of the world to the host. Links are copied as links, and none is followed. Nothing is
        overwritten. Raises `PathRefused`."""
        await self._state_taken()
        await asyncio.to_thread(files.download, self._alive().path, self._relative(source), Path(target))

    # States

    async def snapshot(self, tag: str | None = None) -> Snapshot:
        """Keep the state as it is now: files, environment, shell, and what the backend keeps of processes. The world
        lives on. If nothing changed, it is the same snapshot.

        tag: a name for it, which keeps it from `ramify gc`. Raises `NameTaken`, `BadName`, `WorldDied`.
        """
        return await self._sealed(tag)

    async def begin_snapshot(self, tag: str | None = None) -> PendingSnapshot:
        """Begin a snapshot, and return while it goes on: it may be written while a model answers.

        Await the result before you report anything that depends on it. The state is that of a moment between this
        call and the next operation on the world, which waits until the state is taken. `fork`, `restore`, `diff`,
        `merge`, `checkout` and `close` wait until it is on disk. Do not use `path` before `taken()`. If the process
        dies first, the world's name stands for the state before. Awaiting it raises as `snapshot` does.
        """
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._home.pins.held())
            with self._pinned_if_cancelled():
                taken = await self._alive().begin_seal()
            stored = asyncio.ensure_future(self._stored(taken, tag, self._pending, held.pop_all()))
        self._pending = PendingSnapshot(taken, stored)
        return self._pending

    async def _stored(
        self, taken: asyncio.Future[Snapshot], tag: str | None, before: PendingSnapshot | None, held: AsyncExitStack
    ) -> Snapshot:
        """Flush a state that is being taken, and let the world's name stand for it after that of `before`."""
        async with held:
            try:
                sealed = await taken
                await asyncio.to_thread(self._home.store.flush)
            finally:  # also after a failure: whoever waits for this one waits for all before it
                if before is not None:
                    await before.ended()
            self._keep(sealed)
            if tag is not None:
                self._home.tag(tag, sealed, source=self.name or "")
        return sealed

    @contextmanager
    def _pinned_if_cancelled(self) -> Iterator[None]:
        """Keep the state that a cancelled seal has reached all the same: the world stands over it."""
        try:
            yield
        except asyncio.CancelledError:
            self._pin.moved(self._live.snapshot.id)
            raise

    async def _state_taken(self) -> None:
        if self._pending is not None:
            await self._pending.taken()

    async def _nothing_pending(self) -> None:
        if self._pending is not None:
            await self._pending.ended()

    async def _sealed(self, tag: str | None = None, *, flush: bool = True) -> Snapshot:
        """The state of now. Without `flush` it is lost if the machine crashes, as a world without a name is."""
        await self._nothing_pending()
        async with self._home.pins.held():
            with self._pinned_if_cancelled():
                sealed = await self._alive().seal(flush=False)
            if flush or self._reference is not None:  # also if nothing changed since a seal without a flush
                await asyncio.to_thread(self._home.store.flush)
            self._keep(sealed)
            if tag is not None:
                self._home.tag(tag, sealed, source=self.name or "")
        return sealed

    async def fork(self, n: int = 1, *, names: Sequence[str] | None = None) -> list[World]:
        """Make `n` worlds at the state of now, all or none. Copy-on-write: it costs the changes, not the tree.

        names: a name for each, if they are to be kept. Raises as `create` does, and `ValueError`.
        """
        if names is not None and len(names) != n:
            raise ValueError(f"{n} forks need {n} names, not {len(names)}")
        state = await self._sealed(flush=names is not None)
        lives = await (await self._home.backend()).fork(state, self._spec, n)
        made: list[World] = []
        try:
            for number, live in enumerate(lives):
                reference, held = None, ExitStack()
                if names is not None:
                    source = self.name or state.id[:12]
                    reference = self._home.register(names[number], state, self._spec, source)
                    held.enter_context(self._home.references.held(names[number]))
                made.append(
                    World(
                        self._home,
                        live,
                        self._spec,
                        origin=state,
                        reference=reference,
                        keeps_home=self._keeps_home,
                        held=held,
                    )
                )
        except BaseException:
            for world in made:
                if world.name is not None:
                    self._home.references.delete(Kind.WORLD, world.name)
                    world._reference = None
                await world.close()
            for live in lives[len(made) :]:
                await live.close()
            raise
        return made

    async def restore(self, snapshot: str | Snapshot) -> None:
        """Drop all changes and processes, and go back to a snapshot: an id, a tag, or a world's name."""
        await self._nothing_pending()  # its tag may be the one that is meant
        state = await asyncio.to_thread(self._home.resolve, snapshot)
        await self._alive().rollback(state)
        self._keep(state)

    async def diff(self, other: World | Snapshot | str | None = None) -> list[Change]:
        """What changed from `other` to now, sorted by path. Without `other`: since the world was made or opened."""
        now = await self._sealed(flush=False)
        before = self._origin if other is None else await self._state_of(other)
        return await asyncio.to_thread(self._home.store.changes, before, now)

    async def merge(
        self,
        other: World | Snapshot | str,
        *,
        base: Snapshot | str | None = None,
        strategy: MergeStrategy | Resolver = MergeStrategy.FAIL,
    ) -> Snapshot:
        """Merge what `other` changed into this world, three ways, and return the new state. Background processes end.

        base: the state from which both come; by default their nearest common ancestor. strategy: what to do with
        conflicts. Raises `MergeConflict`, with nothing changed, and `NoCommonAncestor`.
        """
        await self._nothing_pending()
        theirs = await self._state_of(other)
        ours = await self.snapshot()
        root = None if base is None else await asyncio.to_thread(self._home.resolve, base)
        async with self._home.pins.held():
            merged = await asyncio.to_thread(self._merged, root, ours, theirs, strategy)
            if merged.id != ours.id:
                await self._alive().rollback(merged)
            self._keep(merged)
        return merged

    def _merged(
        self, base: Snapshot | None, ours: Snapshot, theirs: Snapshot, strategy: MergeStrategy | Resolver
    ) -> Snapshot:
        store = self._home.store
        return store.merge(base or common_ancestor(store, ours, theirs), ours, theirs, strategy=strategy)

    async def checkout(self, folder: str | Path, *, force: bool = False, active_files: bool = False) -> Written:
        """Write the world's files into a folder of the host, missing or empty (with `force`, any). Raises
        `CheckoutRefused`.

        What the world changed and what acts on entry (hooks and configuration of git, `.envrc`, editors' tasks) is
        left out, unless `active_files`. The result is the list of what was written; its `withheld` names the rest.
        """
        now = await self.snapshot()
        target = Path(folder).expanduser()
        checkout = partial(self._home.store.checkout, now, target, force=force, active_files=active_files)
        return await asyncio.to_thread(checkout)

    async def _state_of(self, other: World | Snapshot | str) -> Snapshot:
        if isinstance(other, World):
            return await other.snapshot()
        return await asyncio.to_thread(self._home.resolve, other)

    def _keep(self, state: Snapshot) -> None:
        self._pin.moved(state.id)
        if self._reference is not None and self._reference.snapshot != state.id:
            self._reference = self._home.moved(self._reference, state)

    def _alive(self) -> contract.World:
        if self._closed or os.getpid() != self._owner:
            raise WorldClosed("the world was closed, or belongs to another process: open or create one here")
        return self._live

    def _relative(self, path: str | Path) -> str:
        given = Path(path)
        if given.is_absolute():
            if not given.is_relative_to(self._spec.mount_at):
                raise PathRefused(
                    f"{given} lies outside the world's tree, {self._spec.mount_at}: use a command, such as "
                    "exec(['cat', …])"
                )
            given = given.relative_to(self._spec.mount_at)
        if ".." in given.parts:
            raise PathRefused(f"{path}: a path with '..' may lead out of the world's tree")
        return str(given)


class Opening(AbstractAsyncContextManager[World], Awaitable[World]):
    """A world that is about to be made. Await it for the world, or enter it: leaving it then closes the world."""

    def __init__(
        self,
        make: Callable[[WorldHome, bool], Awaitable[World]],
        home: WorldHome | str | Path | None,
        sandbox: str | None,
    ) -> None:
        if isinstance(home, WorldHome) and sandbox is not None:
            raise WorldError("an open home has its backend: leave out sandbox=")
        self._make = make
        self._home = home
        self._sandbox = sandbox
        self._world: World | None = None

    def __await__(self) -> Generator[Any, None, World]:
        return self._opened().__await__()

    async def __aenter__(self) -> World:
        self._world = await self._opened()
        return self._world

    async def __aexit__(self, *error: object) -> None:
        if self._world is not None:
            await self._world.close()

    async def _opened(self) -> World:
        if isinstance(self._home, WorldHome):
            return await self._make(self._home, False)
        home = WorldHome(self._home, self._sandbox)
        await home.__aenter__()
        try:
            return await self._make(home, True)
        except BaseException:
            await home.__aexit__()
            raise
