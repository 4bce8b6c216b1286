"""`FleetWorld`: a world whose commands run on a node of the fleet, and go on on another one if that node dies.

The program knows the id of the world's last state, which is in the bucket. A fork is a copy of that id. A world is
made on a node with its first command: where its parent lives if a slot is free there, else on the freest node. Then
it stays there. If the node dies, the command that was under way begins again elsewhere, from the state before it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from ramify import paths
from ramify.fleet.carried_errors import rebuilt
from ramify.fleet.errors import FleetError, NodesDied
from ramify.fleet.nodes import MOST_DEATHS, FleetNodes
from ramify.fleet.placement import NO_JOB, Asked, Member
from ramify.fleet.ray_host import HostDied, RayHost
from ramify.fleet.types import Needs, NodeId, WorldMoved
from ramify.fleet.world_host import WorldAnswer, WorldKey, WorldOrder, WorldSetup
from ramify.fleet.world_operations import Command, Operation, Read, Seal, Write, as_words
from ramify.fork_engine.store_folder import ID
from ramify.fork_engine.types import ProcessTier, Snapshot, SnapshotId, Written
from ramify.images.catalogue import Image
from ramify.runtime.worlds.recovery import missing
from ramify.sandboxes.contract import Limits, RunResult
from ramify.serving.matching import JobId
from ramify.session import Runtime
from ramify.worlds.commands import checked
from ramify.worlds.errors import WorldClosed, WorldError, WorldNotFound
from ramify.worlds.home import WorldHome
from ramify.worlds.world_files import MOST_READ
from ramify.worlds.world_spec import DEFAULT_MOUNT, IMAGE_MOUNT, world_spec

_STOP_S = 30.0


class FleetWorld:
    """A world on a node. An async context manager: leaving it ends its processes. Made by `Fleet.world` and `fork`.

    An operation returns when its state is in the bucket. An operation that raises changes nothing, with one
    exception: if a command fails under `check=True`, its changes stay, as in `World`. Operations of one world wait
    for each other. Each raises what `World`'s does, `NoFitNode`, `NodesDied`, `ClusterUnreachable`,
    `FleetClosed`, `ForkEngineError` if the bucket cannot be used.

    state: the id of the last state. node: the name of the node where it lives; None before its first command.
    """

    def __init__(
        self,
        nodes: FleetNodes,
        runtime: Runtime,
        setup: WorldSetup,
        needs: Needs,
        state: SnapshotId,
        *,
        sealed: Snapshot | None = None,
        near: NodeId | None = None,
        layers: frozenset[str] = frozenset(),
        job: JobId = NO_JOB,
    ) -> None:
        """Use `Fleet.world` or `fork` instead. sealed: the snapshot of `state`, if it is known. near: the node that
        has it. layers: of the state, if they are known. job: that it is part of; by default it and its forks."""
        self.state = state
        self._nodes, self._runtime, self._setup, self._needs = nodes, runtime, setup, needs
        self._sealed, self._near, self._layers = sealed, near, layers
        self._member: Member[RayHost] | None = None  # where it lives
        self._key = WorldKey(secrets.token_hex(8))
        self._job = job or JobId(self._key)
        self._lock = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def node(self) -> str | None:
        return None if self._member is None else self._member.node.name

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> RunResult:
        """As `World.exec`."""
        order = Command(as_words(command), False, stdin, {**self._setup.env, **(env or {})}, cwd, user, timeout)
        return await self._command(order, check)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> RunResult:
        """As `World.run`: in the world's shell, whose state is kept with the files."""
        order = Command(as_words(command), True, stdin, dict(env or {}), cwd, timeout=timeout)
        return await self._command(order, check)

    async def read(self, path: str | Path, *, most: int = MOST_READ) -> bytes:
        """As `World.read`."""
        data = (await self._do(Read(str(path), most))).result
        assert isinstance(data, bytes)
        return data

    async def write(self, path: str | Path, data: bytes | str, *, mode: int = 0o644) -> None:
        """As `World.write`."""
        await self._do(Write(str(path), data.encode() if isinstance(data, str) else data, mode))

    async def snapshot(self) -> Snapshot:
        """The state as it is now, with what background processes changed since the last operation. Without such
        processes it is the last state, and no node is asked."""
        self._check_open()
        if self._sealed is not None and self._sealed.tier is ProcessTier.NONE and not self._lock.locked():
            return self._sealed
        sealed = (await self._do(Seal())).state
        assert sealed is not None
        return sealed

    async def fork(self, n: int = 1) -> list[FleetWorld]:
        """Make `n` worlds at the last state, without what background processes changed since (`snapshot` first takes
        that in). No node does anything yet."""
        async with self._lock:
            self._check_open()
            return [
                FleetWorld(
                    self._nodes,
                    self._runtime,
                    self._setup,
                    self._needs,
                    self.state,
                    sealed=self._sealed,
                    near=self._near,
                    layers=self._layers,
                    job=self._job,
                )
                for _ in range(n)
            ]

    async def fetch(self) -> Snapshot:
        """Fetch the last state into this machine's store, where `World.create(snapshot=…)` and `World.merge` take it.
        `ramify gc` deletes it there, unless a world or a tag names it."""
        async with self._lock:
            self._check_open()
            store = self._runtime.snapshots
            if await asyncio.to_thread(missing, store, self.state) is None:
                return await asyncio.to_thread(store.get, self.state)
            assert self._runtime.bucket is not None
            return await self._runtime.bucket.fetch(self.state)

    async def checkout(self, folder: str | Path, *, force: bool = False, active_files: bool = False) -> Written:
        """As `World.checkout`, of the last state, into a folder of this machine."""
        state, target = await self.fetch(), paths.expanded(folder)
        write = partial(self._runtime.snapshots.checkout, state, target, force=force, active_files=active_files)
        return await asyncio.to_thread(write)

    async def close(self) -> None:
        """End it. Its last state stays in the bucket for at least a day. May be called twice."""
        self._closed = True
        member, self._member = self._member, None
        if member is not None and self._nodes.lives(member):
            with suppress(HostDied, FleetError, TimeoutError):
                await asyncio.wait_for(asyncio.shield(member.host.close_world(self._key)), _STOP_S)

    async def _command(self, order: Command, check: bool) -> RunResult:
        result = (await self._do(order)).result
        assert isinstance(result, RunResult)
        return checked(result, check)

    async def _do(self, operation: Operation) -> WorldAnswer:
        async with self._lock:
            died: list[str] = []
            self._check_open()
            while len(died) < MOST_DEATHS:
                slot = await self._nodes.place(self._asked(), self._refusal())
                member = slot.member
                try:
                    self._check_open()
                    if died:
                        self._nodes.emit(WorldMoved(self.state, member.node.name, tuple(died)))
                    answer = await self._at(member, operation)
                except HostDied as error:
                    died.append(member.node.name)
                    self._member = None
                    await self._nodes.forget(member, str(error))
                    continue
                finally:
                    self._nodes.queue.release(slot)
                return self._heard(member, answer)
        raise NodesDied(
            f"{len(died)} nodes died, one after the other, while they did this command ({', '.join(died)}). It may "
            f'be the cause, for example by its memory. fleet.world(snapshot="{self.state}") is the state before it',
            state=self.state,
            nodes=died,
        )

    def _heard(self, member: Member[RayHost], answer: WorldAnswer) -> WorldAnswer:
        if answer.error is not None:
            raise rebuilt(answer.error, member.node.name)
        if answer.cancelled or self._closed:
            raise WorldClosed("the world was closed during this operation: fork it before you close it")
        if answer.state is not None:
            self.state, self._sealed = answer.state.id, answer.state
            self._layers = frozenset(answer.state.all_layers)
        return answer

    async def _at(self, member: Member[RayHost], operation: Operation) -> WorldAnswer:
        self._member, self._near = member, member.node.id
        working = asyncio.ensure_future(
            member.host.in_world(WorldOrder(self._key, self.state, self._setup, operation))
        )
        try:
            return await self._nodes.answer(working, self._refusal())
        except asyncio.CancelledError:
            with suppress(HostDied, FleetError, TimeoutError):
                await asyncio.wait_for(asyncio.shield(member.host.close_world(self._key)), _STOP_S)
            raise

    def _asked(self) -> Asked:
        lives = self._member is not None and self._nodes.lives(self._member)
        return Asked(
            self._setup.sandbox,
            self._needs,
            self.state,
            self._near,
            stays=lives,
            layers=self._layers,
            job=self._job,
            returns=True,
        )

    def _refusal(self) -> str:
        return f'no node can take this world. fleet.world(snapshot="{self.state}") is its last state:'

    def _check_open(self) -> None:
        if self._closed:
            raise WorldClosed("the world was closed: open or create one")


@asynccontextmanager
async def world_on_nodes(
    nodes: FleetNodes,
    runtime: Runtime,
    folder: str | Path | None,
    *,
    snapshot: str | None,
    image: str | Path | None,
    mount_at: str | Path | None,
    env: Mapping[str, str] | None,
    limits: Limits | None,
    needs: Needs,
    job: JobId,
) -> AsyncIterator[FleetWorld]:
    """As `Fleet.world`."""
    if folder is not None and snapshot is not None:
        raise WorldError("a world is made from a folder or from a snapshot: name one of them")
    where = None if folder is None else paths.expanded(folder).resolve()
    given = dict(env or {})
    setup = WorldSetup(runtime.sandbox, str(mount_at or where or DEFAULT_MOUNT), given, limits)
    assert runtime.bucket is not None
    async with WorldHome(runtime.home, runtime.sandbox) as home:
        over = None if image is None else await _image(home, image)
        async with _beginning(home, where, snapshot, over) as base:
            if base is not None and (over is not None or base.image is not None):
                usual = world_spec(Path(mount_at or where or IMAGE_MOUNT), env=given, image=Path("/"), limits=limits)
                base, spec = await asyncio.to_thread(home.prepared, base, usual, over, given)
                setup = WorldSetup(runtime.sandbox, str(spec.mount_at), given, limits, spec)
            state = SnapshotId(str(snapshot)) if base is None else base.id
            if base is not None and await asyncio.to_thread(missing, runtime.snapshots, state) is None:
                await runtime.bucket.upload(state)
    layers = frozenset[str](() if base is None else base.all_layers)
    async with FleetWorld(nodes, runtime, setup, needs, state, layers=layers, job=job) as world:
        yield world


async def _image(home: WorldHome, name: str | Path) -> Image:
    found = await home.image(name)
    if found is None:
        raise WorldError(
            f"a world on a node is over an OCI image, and {name} is none: name an image, a layout or an archive of "
            "one, or docker:NAME for one of an engine"
        )
    return found


@asynccontextmanager
async def _beginning(
    home: WorldHome, folder: Path | None, snapshot: str | None, over: Image | None
) -> AsyncIterator[Snapshot | None]:
    """The state that a world is made from, safe from `ramify gc` while the block runs. None: it is the whole id of
    one that is not here; the bucket may have it."""
    if snapshot is None and (folder is not None or over is None):
        async with home.imported(folder) as base:
            yield base
        return
    async with home.pins.held():
        if snapshot is None:
            assert over is not None
            yield await asyncio.to_thread(home.state_of, over)
            return
        try:
            found: Snapshot | None = await asyncio.to_thread(home.resolve, snapshot)
        except WorldNotFound:
            if over is not None or not ID.fullmatch(snapshot):
                raise
            found = None
        yield found
