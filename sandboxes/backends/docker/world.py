"""A world in a container."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.container import PRIVATE
from ramify.sandboxes.agent.container_changes import LAYERS
from ramify.sandboxes.agent.messages import Ready, Start
from ramify.sandboxes.agent.private_folder import PrivateFolder
from ramify.sandboxes.backends.copying import CopyWorld
from ramify.sandboxes.backends.docker.container_link import ContainerLink, launch
from ramify.sandboxes.backends.docker.engine import Changes, Engine, Plan
from ramify.sandboxes.backends.docker.portable_python import PortablePython
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.errors import SandboxError, SealFailed, WorldStartFailed
from ramify.sandboxes.host.scratch import remove_tree
from ramify.sandboxes.host.world_lifecycle import DEFAULT_PATH, ShellState, WorldResources


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
