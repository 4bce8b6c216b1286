"""Worlds in containers: the root is any image; isolation and limits are the engine's.

The workspace is a folder of ours, mounted at its own path, so seals, rollbacks and checkouts work as with `copy`.
What changes in the rest of the container becomes a second stack of layers in our store.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import stat
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.filesystem.scan import MAX_DEPTH
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.container import HOST_NETWORK, PRIVATE
from ramify.sandboxes.agent.container_changes import LAYERS
from ramify.sandboxes.agent.messages import Ready, Start
from ramify.sandboxes.agent.private_folder import PrivateFolder
from ramify.sandboxes.backends.agent_backend import WorldBackend, homes_of_user
from ramify.sandboxes.backends.copying import CopyWorld
from ramify.sandboxes.backends.credentials import CREDENTIALS
from ramify.sandboxes.backends.docker.connection import connect
from ramify.sandboxes.backends.docker.container_link import ContainerLink, launch
from ramify.sandboxes.backends.docker.engine import PREFIX, SCRATCH, SESSION, Changes, Engine, Plan
from ramify.sandboxes.backends.docker.host_programs import Images, PortablePython, make_portable_python
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import World, WorldId, WorldSpec, check_supported
from ramify.sandboxes.errors import SandboxError, SealFailed, WorldStartFailed
from ramify.sandboxes.host.scratch import remove_tree
from ramify.sandboxes.host.world_lifecycle import DEFAULT_PATH, ShellState, WorldResources
from ramify.sandboxes.linux.mount_table import MountTable, is_within

# file systems that show a kernel or its devices
KERNELS_OWN = frozenset(
    {
        "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
        "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip
OURS = Path("/ramify")  # in every container


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

    def below(self) -> dict[str, Path]:
        """What is mounted below a shown folder: older engines would leave it writable."""
        table = MountTable.read() if self.shown else MountTable(())
        found: dict[str, Path] = {}
        for shown in self.shown.values():
            real = shown.resolve()
            for point in table.below(str(real)):
                elsewhere = any(is_within(point, str(path)) for path in (self.spec.mount_at, *self.hidden))
                if not elsewhere and os.path.lexists(point):
                    found[str(shown / Path(point).relative_to(real))] = self._mounted(table, point)
        return found

    def _mounted(self, table: MountTable, point: str) -> Path:
        """What to show at a mount point: nothing of the kernel's own file systems, nor of FUSE, which only the user
        who mounted it may read."""
        mount = table.at(point)
        if mount is not None and mount.kind not in KERNELS_OWN and not mount.kind.startswith("fuse"):
            return Path(point)
        return self._nothing(file=not Path(point).is_dir())

    def _nothing(self, *, file: bool = False) -> Path:
        """Something empty to mount."""
        folder, empty = self.folder / "hidden", self.folder / "hidden.file"
        if file:
            empty.touch(mode=0o444)
            return empty
        folder.mkdir(mode=0o555, parents=True, exist_ok=True)
        return folder

    def covers(self) -> dict[str, Path]:
        """Something empty to mount over each hidden path in a shown folder."""
        found: dict[str, Path] = {}
        for shown in self.shown.values():
            real = shown.resolve()
            for path in self.hidden:
                if path != real and path.is_relative_to(real) and path.exists():
                    found[str(shown / path.relative_to(real))] = self._nothing(file=not path.is_dir())
        return found

    def _plan(self, start: Start) -> Plan:
        python = self.docker_session.portable_python
        layers = {f"{LAYERS}/{number:06}": path for number, path in enumerate(self.outside)}
        return Plan(
            image=self.image,
            # never the same twice: one that could not be removed must not be in the way
            name=f"{PREFIX}{self.folder.parent.name}-{self.folder.name}-{secrets.token_hex(3)}",
            command=python.running("container", str(len(layers)), *((HOST_NETWORK,) if self.spec.network else ())),
            mounts={**self.shown, **self.below(), **self.covers(), **python.mounts, **layers},
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

    async def _seal_files(self, state: ShellState, others: int) -> Snapshot:
        """The shell stands still, too: with threads of its own (`enable -f`) it could write where the host reads."""
        return await self._frozen(lambda: self._seal_tree(state), shell=True)

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
        if deep := [path for path in changes.changed if path.count("/") > MAX_DEPTH]:
            raise SealFailed(
                f"{deep[0][:80]}…: folders nested more than {MAX_DEPTH} deep. Flatten them, or remove them"
            )
        passing = ("/tmp", "/var/tmp", self._start_env()["HOME"])
        return Changes(tuple(path for path in changes.changed if path not in passing), changes.removed)

    def _take_outside(self, changes: Changes) -> Path:
        """The changes as an upper folder. Also makes `nothing`, an upper folder without changes of the tree."""
        private = self._folder / "private"
        upper, nothing, tree = self._folder / "upper", self._folder / "nothing", (self._folder / "tree").stat()
        remove_tree(upper)
        told = json.dumps({"changed": changes.changed, "removed": changes.removed})
        with closing(PrivateFolder(str(private))) as shared:  # commands can write to it too
            shared.write("changes", told.encode())
        _clear(private / "upper")
        command = self._spawner.docker_session.portable_python.running(
            "capture", f"{PRIVATE}/changes", f"{PRIVATE}/upper"
        )
        engine = self._spawner.docker_session.engine
        engine.execute(self._container(), command)
        (private / "upper").rename(upper)  # where no command can put a link in its place
        if not stat.S_ISDIR(upper.lstat().st_mode):
            raise SealFailed("a command replaced the folder to be sealed. Roll the world back")
        nothing.mkdir(exist_ok=True)
        nothing.chmod(stat.S_IMODE(tree.st_mode))
        os.utime(nothing, ns=(tree.st_atime_ns, tree.st_mtime_ns))
        return upper

    def _container(self) -> str:
        link = self._require_link()
        assert isinstance(link, ContainerLink)
        return link.container


def _clear(path: Path) -> None:
    """Remove what a command has put there."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


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
        self.hide(*(home / name for home in homes_of_user() for name in CREDENTIALS))
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
        for place in (spec.mount_at, *spec.visible):
            if Path(os.path.normpath(place)).is_relative_to(OURS):
                raise WorldStartFailed(f"{place} cannot be in a container: {OURS} holds the world's agent there")
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
