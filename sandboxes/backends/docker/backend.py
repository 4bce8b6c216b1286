"""Worlds in containers: the root is any image; isolation and limits are the engine's.

The workspace is a folder of ours, mounted at its own path, so seals, rollbacks and checkouts work as with `copy`.
What changes in the rest of the container becomes a second stack of layers in our store.

A world's agent is the container's first process. The host listens on a socket in the world's own folder, and the
agent connects to it from inside (`launch`). So messages go from process to process and never through the engine. When
the host ends, its socket closes, so the agent ends, and with this first process the container.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import stat
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.container import PRIVATE, SOCKET
from ramify.sandboxes.agent.container_changes import LAYERS
from ramify.sandboxes.agent.messages import Ready, Start
from ramify.sandboxes.agent.private_folder import PrivateFolder
from ramify.sandboxes.backends.agent_backend import WorldBackend
from ramify.sandboxes.backends.copying import CopyWorld
from ramify.sandboxes.backends.docker.engine import SCRATCH, SESSION, Changes, End, Engine, Plan, connect
from ramify.sandboxes.backends.docker.host_programs import Images, PortablePython, make_portable_python
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import World, WorldId, WorldSpec, check_supported
from ramify.sandboxes.errors import SandboxError, SealFailed, WorldStartFailed
from ramify.sandboxes.host.agent_link import AgentLink, MessageStream
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.sandboxes.host.scratch import remove_tree
from ramify.sandboxes.host.world_lifecycle import DEFAULT_PATH, ShellState, WorldResources
from ramify.sandboxes.linux import cgroups

PATIENCE_S = 120.0  # for a container that runs: on a loaded machine its agent takes tens of seconds to connect
LOOK_S = 0.25  # how often we check meanwhile that it still runs
END_S = 5.0  # how long a world may take to end after a hang-up


class ContainerLink(AgentLink):
    """A link to an agent that is a container's first process."""

    def __init__(self, engine: Engine, container: str, stream: MessageStream) -> None:
        self._engine, self.container, self._stream = engine, container, stream
        self.pid = 0
        self._ending: asyncio.Future[End] | None = None

    async def out_of_memory(self) -> int:
        return cgroups.kills_for_memory(self.pid)

    async def close(self) -> None:
        await self._stream.close()
        await self._end()

    async def _end(self) -> End:
        if self._ending is None:
            self._ending = asyncio.ensure_future(asyncio.to_thread(self._engine.end, self.container, END_S))
        return await asyncio.shield(self._ending)

    async def _exit_reason(self) -> str:
        return f"{_told(await self._end())}; start again from its last snapshot"


async def launch(engine: Engine, plan: Plan, private: Path) -> ContainerLink:
    """Start the container and accept its agent's connection, on which `Start` can be sent. Raises
    `WorldStartFailed`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        _listen(listening, private)
        try:
            await finish_before_cancelling(asyncio.to_thread(engine.start, plan))
            sock = await _accept(listening, engine, plan.name)
        except BaseException:
            await finish_before_cancelling(asyncio.to_thread(engine.remove, plan.name))
            raise
        (private / Path(SOCKET).name).unlink()
    try:
        link = ContainerLink(engine, plan.name, await MessageStream.over(sock))
        link.pid = await asyncio.to_thread(engine.pid, plan.name)
    except BaseException:
        sock.close()
        await finish_before_cancelling(asyncio.to_thread(engine.remove, plan.name))
        raise
    return link


def _listen(listening: socket.socket, private: Path) -> None:
    """Listen by way of /proc: a socket's address has about a hundred bytes, too few for a deep folder's path."""
    folder = os.open(private, os.O_PATH | os.O_DIRECTORY)
    try:
        listening.bind(f"/proc/self/fd/{folder}/{Path(SOCKET).name}")
    finally:
        os.close(folder)
    listening.listen(1)
    listening.setblocking(False)


async def _accept(listening: socket.socket, engine: Engine, container: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    call = asyncio.ensure_future(loop.sock_accept(listening))
    deadline = loop.time() + PATIENCE_S
    try:
        while True:
            done, _ = await asyncio.wait({call}, timeout=LOOK_S)
            if done:
                return call.result()[0]
            if not await asyncio.to_thread(engine.pid, container):
                end = await asyncio.to_thread(engine.end, container, 0.1)
                raise WorldStartFailed(f"a container was started, but its agent did not connect: {_told(end)}")
            if loop.time() > deadline:
                raise WorldStartFailed(
                    f"a container was started and runs, but its agent did not connect within {PATIENCE_S:g} s: is "
                    "the machine overloaded? start fewer worlds at once"
                )
    finally:
        call.cancel()
        await asyncio.wait({call})


def _told(end: End) -> str:
    code = end.exit_code - 128 if end.exit_code > 128 else 0
    how = f"by {signal.Signals(code).name}" if code in set(signal.Signals) else f"with exit code {end.exit_code}"
    why = " (it was out of memory)" if end.out_of_memory else ""
    return f"the container's first process ended {how}{why}" + (f": {end.last_words}" if end.last_words else "")


@dataclass(frozen=True, slots=True)
class DockerSession:
    """What all worlds of a session share."""

    engine: Engine
    portable_python: PortablePython
    starting: asyncio.Semaphore


@dataclass(slots=True)
class ContainerSpawner:
    """Starts one world's agent in a container of its own."""

    docker_session: DockerSession
    image: str
    folder: Path
    spec: WorldSpec
    outside: tuple[Path, ...] = ()  # layers to apply to the image before the first command
    hidden: tuple[Path, ...] = ()  # files of the host that no world sees

    async def spawn(self, start: Start) -> ContainerLink:
        """Start the container and hand its agent the start message. Raises `WorldStartFailed`."""
        async with self.docker_session.starting:
            link = await launch(self.docker_session.engine, self._plan(start), self.folder / "private")
        try:
            answer = await link.ask(start)
            if not isinstance(answer, Ready):
                raise WorldStartFailed(f"a world's agent answered {type(answer).__name__} to its start")
        except SandboxError as error:
            await link.close()
            raise WorldStartFailed(f"a world could not be set up in its container: {error}") from error
        except BaseException:
            await link.close()
            raise
        return link

    @property
    def shown(self) -> dict[str, Path]:
        """The host's folders that the world is shown. None over an image: its own /usr must not be covered."""
        return {} if self.spec.image else {str(path): path for path in self.spec.visible if path.exists()}

    def covers(self) -> dict[str, Path]:
        """Something empty to mount over each hidden path in a shown folder."""
        nothing, empty = self.folder / "hidden", self.folder / "hidden.file"
        found: dict[str, Path] = {}
        for shown in self.shown.values():
            real = shown.resolve()
            for path in self.hidden:
                if path != real and path.is_relative_to(real) and path.exists():
                    nothing.mkdir(mode=0o555, parents=True, exist_ok=True)
                    empty.touch(mode=0o444)
                    found[str(shown / path.relative_to(real))] = nothing if path.is_dir() else empty
        return found

    def _plan(self, start: Start) -> Plan:
        layers = {f"{LAYERS}/{number:03}": path for number, path in enumerate(self.outside)}
        return Plan(
            image=self.image,
            name=f"ramify-{self.folder.parent.name}-{self.folder.name}",
            command=self.docker_session.portable_python.command,
            mounts={**self.shown, **self.covers(), **self.docker_session.portable_python.mounts, **layers},
            writable={PRIVATE: self.folder / "private", start.tree: self.folder / "tree"},
            network=self.spec.network,
            limits=self.spec.limits,
        )


class DockerWorld(CopyWorld):
    """The tree is a plain folder, as in `copy`, that the container mounts at `WorldSpec.mount_at`.

    A seal copies what changed beside it out of the container, as one layer over the image; a fork's container gets it
    applied to its image.
    """

    def __init__(
        self, resources: WorldResources, snapshot: Snapshot, spec: WorldSpec, spawner: ContainerSpawner
    ) -> None:
        super().__init__(resources, snapshot, spec)
        self._spawner = spawner

    def _tree_inside(self) -> str:
        return str(self._spec.mount_at)

    def _default_env(self) -> dict[str, str]:
        home = "/root" if os.geteuid() == 0 else "/tmp/home"
        return {"PATH": DEFAULT_PATH, "HOME": home}

    def _private_inside(self) -> str:
        return PRIVATE

    def _make_folders(self, snapshot: Snapshot) -> None:
        (self._folder / "private").mkdir(parents=True)
        store = self._resources.store
        store.materialise(snapshot, self._folder / "tree")
        self._spawner.outside = store.outside_dirs(snapshot)[-len(snapshot.outside) :] if snapshot.outside else ()

    def _seal_tree(self, state: ShellState) -> Snapshot:
        """Seal the tree as `copy` does, and the container's other changes as an outside layer."""
        sealed = super()._seal_tree(state)
        changes = self._changes_outside()
        if not changes and not self._snapshot.outside:
            return sealed
        upper, nothing = self._take_outside(changes), self._folder / "nothing"
        with_outside = self._resources.store.seal_upper(
            nothing,
            replace(sealed, outside=()),
            env=state.env,
            env_unset=state.unset,
            cwd=state.cwd,
            processes=state.processes,
            outside=upper,
            move=True,
        )
        remove_tree(upper)
        remove_tree(nothing)
        return self._snapshot if with_outside.id == self._snapshot.id else with_outside

    def _changes_outside(self) -> Changes:
        """Changes against the image. The times of temporary places are not kept."""
        places = (*self._spawner.shown, self._tree_inside())
        changes = self._spawner.docker_session.engine.changes(self._container(), places)
        passing = ("/tmp", "/var/tmp", self._start_env()["HOME"])
        return Changes(tuple(path for path in changes.changed if path not in passing), changes.removed)

    def _take_outside(self, changes: Changes) -> Path:
        """The changes as an upper folder. Also makes `nothing`, an upper folder without changes of the tree."""
        private = self._folder / "private"
        upper, nothing, tree = private / "upper", self._folder / "nothing", (self._folder / "tree").stat()
        remove_tree(upper)
        told = json.dumps({"changed": changes.changed, "removed": changes.removed})
        with closing(PrivateFolder(str(private))) as shared:  # commands can write to it too
            shared.write("changes", told.encode())
        command = self._spawner.docker_session.portable_python.running("capture")
        engine = self._spawner.docker_session.engine
        engine.execute(self._container(), [*command, f"{PRIVATE}/changes", f"{PRIVATE}/upper"])
        if upper.is_symlink():
            raise SealFailed("a command replaced the folder to be sealed by a link. Roll the world back")
        nothing.mkdir(exist_ok=True)
        nothing.chmod(stat.S_IMODE(tree.st_mode))
        os.utime(nothing, ns=(tree.st_atime_ns, tree.st_mtime_ns))
        return upper

    def _container(self) -> str:
        link = self._require_link()
        assert isinstance(link, ContainerLink)
        return link.container


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
        world_id = WorldId(secrets.token_hex(6))
        folder = self._session.folder / world_id
        spawner = ContainerSpawner(self._docker, image, folder, spec, hidden=self._hidden)
        resources = WorldResources(self._store, spawner, BASH, folder, self._hidden, self._forget, self._blobs)
        world = self._worlds[world_id] = DockerWorld(resources, snapshot, spec, spawner)
        return await self._begin(world)
