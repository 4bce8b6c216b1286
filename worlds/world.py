"""One live world: run commands, read and write its files, snapshot, fork, restore, diff, merge."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from operator import index
from pathlib import Path
from types import TracebackType

from ramify import paths
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.sandboxes import contract
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import Foreseeing, KeptReady, Limits, WorldSpec
from ramify.sandboxes.egress.settings import Egress, Header
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.worlds.errors import WorldClosed, WorldError, WorldNotFound
from ramify.worlds.home import Opening, WorldHome
from ramify.worlds.references import Kind, Reference
from ramify.worlds.world_commands import WorldCommands
from ramify.worlds.world_files import WorldFiles
from ramify.worlds.world_network import Allowed, WorldEgress, recorded_egress
from ramify.worlds.world_snapshots import WorldSnapshots
from ramify.worlds.world_spec import DEFAULT_MOUNT, IMAGE_MOUNT, world_spec


class World(WorldCommands, WorldSnapshots, WorldFiles, WorldEgress):
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
        self._pending = None
        self._forked: tuple[SnapshotId, int] | None = None  # the last fork
        self._foreseen: tuple[Foreseeing, SnapshotId] | None = None  # the backend that prepares forks, and of what
        self._order, self._closing, self._egress_turn = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._owner = os.getpid()
        self._world_pins = home.pins.of_world()
        self._world_pins.moved(origin.id)
        self._world_pins.keep(origin.id)
        self._held = ExitStack()
        if held is not None:
            self._held.enter_context(held.pop_all())
        self._keep_connections(live)
        home.opened(self)
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
    ) -> Opening[World]:
        """Make a world from a folder, from a snapshot, or empty. Use it as `async with World.create(…) as world`, or
        `world = await World.create(…)` and close it.

        - `folder`: A folder of this machine, which is never written to.
        - `snapshot`: A snapshot's id, a tag, or another world's name, in place of a folder.
        - `name`: Keeps the world after it was closed.
        - `image`: An image in place of this machine's root (`python:3.12`, `oci:FOLDER`, `docker:NAME`), which is
          pulled unless it is here; or a root file system, a folder or a tar; or, with the docker backend, the
          engine's name of an image. Over an image, commands have its variables, and without a folder they start
          in its WORKDIR.
        - `mount_at`: The tree's path inside. Default: the folder's own path, else /tmp/workspace, or /workspace over
          an image.
        - `env`: Variables. They go before those of the image and of a snapshot's shell. A named world keeps them.
        - `secrets`: Variables that are never stored.
        - `network`: Use the host's own network.
        - `egress`: The hosts that the world may connect to, such as
          `["pypi.org", "*.github.com:443", "127.0.0.1:8000"]`, or an `Egress` with credentials. `[]` allows
          nothing until `set_egress`.
        - `limits`: Memory, processes, files and disk that the world may use.
        - `dumpable`: Snapshots and forks keep the processes that `run` has started. All run without the filter of
          system calls; `ramify doctor` says what this needs.
        - `home`: An open home, or the folder of one.
        - `sandbox`: The backend, as for `WorldHome`.

        Raises `WorldError`, `NameTaken`, `BadName`, `WorldNotFound`, `WorkspaceError`, `BackendUnavailable`,
        `Unsupported`, `WorldStartFailed`, `BadEntry`, `BadCredential`, and for an image `ImagesError`.
        """
        if folder is not None and snapshot is not None:
            raise WorldError("a world is made from a folder or from a snapshot: name one of them")
        where = None if folder is None else paths.expanded(folder).resolve()
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
            if dumpable:
                (await opened.backend()).capabilities.require(Feature.CRIU)
            stored = None if image is None else await opened.image(image)

            async def start(base: Snapshot, source: str) -> World:
                spec = spec_over(image if image is not None else base.image)
                base, spec = await asyncio.to_thread(opened.prepared, base, spec, stored, env or {})
                return await cls._start(opened, base, spec, name, source, keeps_home)

            if snapshot is not None:
                async with opened.pins.held():
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
    ) -> Opening[World]:
        """Start the world of this name at the state in which it was left. It has the background processes that its
        last snapshot kept, and no others.

        It may connect to the same hosts as before. Credentials are never stored: give them again, or requests to
        their hosts are refused. `egress`: another policy instead, which is recorded. Raises `WorldNotFound`,
        `BadName`, and as `create` does."""
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
    async def at(cls, state: Snapshot, spec: WorldSpec, home: WorldHome) -> World:
        """A world at a state of its home, which looks as the specification says. Raises as `create`."""
        return await cls._start(home, state, spec, None, state.id[:12], False)

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
        """End the world's processes. A named world first stores its changes. May be called twice, also at once: the
        second call waits for the first."""
        if os.getpid() != self._owner:
            return
        self._home.check_loop()
        async with self._closing:
            if not self._closed:
                await self._close()

    async def delete(self) -> None:
        """Close the world, store nothing of what was changed, and forget its name. Tagged snapshots and forks stay.
        `ramify gc` frees the rest. Without a name it is as `close`. Raises `WorldClosed`."""
        self._alive()
        async with self._closing:
            if not self._closed:
                if self._reference is not None:
                    self._held.callback(self._forget, self._reference.name)  # before its lock is released
                    self._reference = None
                await self._close()

    def _forget(self, name: str) -> None:
        with suppress(WorldNotFound):  # it was deleted meanwhile
            self._home.references.delete(Kind.WORLD, name)

    async def _close(self) -> None:
        try:
            await self._nothing_pending()
            if self._reference is not None:
                await self.snapshot()
        except WorldNotFound:
            pass  # it was deleted meanwhile
        finally:
            self._closed = True
            self._forget_foreseen()
            try:
                await self._live.close()
            finally:
                try:  # what goes on may change the name's record, whose lock is held
                    await finish_before_cancelling(self._nothing_goes_on())
                finally:
                    self._pending = None
                    self._world_pins.close()
                    self._home.closed(self)
                    try:
                        self._held.close()
                    finally:
                        if self._keeps_home:
                            await self._home.unused()

    async def _nothing_goes_on(self) -> None:
        async with self._egress_turn:
            await self._all_ended()

    # What it is

    @property
    def name(self) -> str | None:
        return None if self._reference is None else self._reference.name

    @property
    def path(self) -> Path:
        """The tree as this process sees it. A plain `open` below it follows links that the world planted: use `read`
        and `write`."""
        return self._opened().path

    @property
    def mount_at(self) -> Path:
        """Where the tree stands inside."""
        return self._spec.mount_at

    @property
    def is_open(self) -> bool:
        """Whether it can be used: neither it nor its home was closed, and it is this process's."""
        return not self._closed and os.getpid() == self._owner and self._home.is_open

    async def foresee_forks(self, n: int) -> KeptReady:
        """Say that `n` forks of the state of now are about to be made, for example once a model has answered: their
        shells are started meanwhile, as far as memory allows. They are used if the world is not changed before.

        Returns how many will wait, and why not more. They wait until the forks are made, others are foreseen, or this
        world is closed. Raises `ValueError`, `WorldDied`.
        """
        _check_count(n)
        state = await self._sealed(flush=False)
        self._world_pins.keep(state.id)
        return await self._foresee(state, n)

    async def _foresee(self, state: Snapshot, n: int) -> KeptReady:
        backend = await self._home.backend()
        if not isinstance(backend, Foreseeing):
            return KeptReady(0, f"the {backend.name} backend starts nothing ahead")
        self._forget_foreseen(unless=state.id)
        self._foreseen = backend, state.id
        return backend.foresee(state, self._spec, n)

    def _forget_foreseen(self, unless: SnapshotId | None = None) -> None:
        if self._foreseen is not None and self._foreseen[1] != unless:
            backend, state = self._foreseen
            self._foreseen = None
            backend.forget([state])

    async def fork(self, n: int = 1, *, names: Sequence[str] | None = None) -> list[World]:
        """Make `n` worlds at the state of now, all or none. Copy-on-write: it costs the changes, not the tree.
        After two forks of one state, as many are expected again, as by `foresee_forks`.

        names: a name for each, if they are to be kept. Raises as `create` does, and `ValueError`.
        """
        _check_count(n)
        if names is not None and len(names) != n:
            raise ValueError(f"{n} forks need {n} names, not {len(names)}")
        state = await self._sealed(flush=names is not None)
        self._world_pins.keep(state.id)  # the base of a later merge
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
        again, self._forked = self._forked == (state.id, n), (state.id, n)
        if again:
            await self._foresee(state, n)
        else:
            self._forget_foreseen(unless=state.id)
        return made

    def _alive(self) -> contract.World:
        live = self._opened()
        self._home.check_loop()
        return live

    def _opened(self) -> contract.World:
        if not self.is_open:
            raise WorldClosed("the world was closed, or belongs to another process: open or create one here")
        return self._live


def _check_count(n: int) -> None:
    if index(n) < 0:
        raise ValueError(f"a world cannot be forked {n} ways")
