"""The life of a world with an agent: its start, its end, requests to its agent, and what a snapshot records of it.

One operation at a time, under the world's lock. An operation that has begun is never left half done. If the task that
awaits it is cancelled, a command is killed, anything else runs to its end, and only then does the cancellation
continue. One that still waits for another is cancelled at once.

`BaseImages` are files of pages that a world's next session images may build on (memory_image.py). Each is a hard link
in the world's own folder, so it outlives the image that it came with; an image that builds on it gets another hard
link to it. So every image is complete by itself, and garbage collection, checks and copies need to know of no other
image. If the store and the worlds are on two file systems there are no base images, and every image is written whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Processes, ProcessTier, Snapshot
from ramify.sandboxes.agent.checkpointing.process_image import BASE_PAGES, PAGES
from ramify.sandboxes.agent.messages import Inspection, Message, Start
from ramify.sandboxes.agent.shell import NAME
from ramify.sandboxes.agent.shell_snapshot import HOUSEKEEPING, ShellSnapshot
from ramify.sandboxes.contract import WorldId, WorldSpec
from ramify.sandboxes.errors import SandboxError, WorldDied, WorldStartFailed
from ramify.sandboxes.host import criu
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.host.concurrency import SharedLock, finish_before_cancelling, finish_once_begun
from ramify.sandboxes.host.scratch import remove_tree
from ramify.sandboxes.linux import ptrace
from ramify.sandboxes.linux.resource_limits import Bounds


class BaseImages:
    """The base images of one world."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.image = ""  # the last image that was kept; the digests of its files are known

    def available(self) -> list[int]:
        """The inodes of the base images at hand."""
        return [int(path.name) for path in self._folder.iterdir()] if self._folder.exists() else []

    def link_into(self, inode: int, session: Path) -> None:
        """Let a session's image build on one of them. Raises `OSError`."""
        (session / BASE_PAGES).hardlink_to(self._folder / str(inode))

    def keep(self, image: Path) -> None:
        """Keep the base images of this image, and drop all others."""
        self.image = image.parent.name
        self._folder.mkdir(exist_ok=True)
        held = set(self.available())
        wanted = {path.stat().st_ino: path for path in map(_base_of, image.iterdir()) if path.exists()}
        for inode in held - wanted.keys():
            (self._folder / str(inode)).unlink()
        for inode in wanted.keys() - held:
            with contextlib.suppress(OSError):  # another file system, or the file has its maximum of links
                (self._folder / str(inode)).hardlink_to(wanted[inode])


def _base_of(session: Path) -> Path:
    return session / BASE_PAGES if (session / BASE_PAGES).exists() else session / PAGES


BASE_IMAGES_FOLDER = "base-images"  # in a world's own folder
BLOBS_KEPT, BIGGEST_KEPT = 8, 1 << 20


@dataclass(frozen=True, slots=True)
class ShellState:
    """A snapshot's record beside the files: changed exported variables, the directory, the processes."""

    env: Mapping[str, str]
    unset: tuple[str, ...]
    cwd: str
    processes: Processes

    @classmethod
    def of(
        cls, now: Mapping[str, str], cwd: str, start: Mapping[str, str], tree: str, own: str, processes: Processes
    ) -> ShellState:
        """A directory in the tree is recorded relative to it, because the next world's tree may be elsewhere. One
        in the world's `own` folder beside its tree goes away with the world: the next one starts at the top of
        its tree."""
        kept = {name: value for name, value in now.items() if name not in HOUSEKEEPING}
        env = {name: value for name, value in sorted(kept.items()) if start.get(name) != value}
        gone = (name for name in start if NAME.fullmatch(name) and name not in kept and name not in HOUSEKEEPING)
        if f"{cwd}/".startswith(tree.rstrip("/") + "/"):
            cwd = "" if cwd == tree else os.path.relpath(cwd, tree)
        elif f"{cwd}/".startswith(own + "/"):
            cwd = ""
        return cls(env, tuple(sorted(gone)), cwd, processes)

    @classmethod
    def unstarted(cls, snapshot: Snapshot, processes: Processes) -> ShellState:
        """The record of a world whose shell has not started yet."""
        return cls(snapshot.env, snapshot.env_unset, snapshot.cwd, processes)

    def with_reason(self, reason: str) -> ShellState:
        """A copy with the reason why processes are not kept better."""
        return replace(self, processes=replace(self.processes, reason=reason))

    def same_as(self, snapshot: Snapshot) -> bool:
        mine = (dict(self.env), self.unset, self.cwd, self.processes)
        return mine == (dict(snapshot.env), snapshot.env_unset, snapshot.cwd, snapshot.processes)


def tier_of(others: int) -> ProcessTier:
    return ProcessTier.DROPPED if others else ProcessTier.NONE


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

T = TypeVar("T")


class AgentSpawner(Protocol):
    """Starts agents; for example, a backend's helper process."""

    async def spawn(self, start: Start) -> AgentLink:
        """Raises `WorldStartFailed`."""
        ...


class RecentBlobs:
    """Reads the states of shells from the store. The last few stay in memory: forks of a snapshot and rollbacks to it
    read the same one, and a thread takes longer than the rest of a fork."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._kept: dict[str, bytes] = {}

    async def get(self, digest: str) -> bytes:
        """Raises `SnapshotCorrupt`."""
        data = self._kept.pop(digest, None)
        if data is None:
            data = await asyncio.to_thread(self._store.blob, digest)
        if len(data) <= BIGGEST_KEPT:
            self._kept[digest] = data
            while len(self._kept) > BLOBS_KEPT:
                del self._kept[next(iter(self._kept))]
        return data


@dataclass(frozen=True, slots=True)
class WorldResources:
    """What a backend gives to each of its worlds."""

    store: SnapshotStore
    helper: AgentSpawner
    bash: str
    folder: Path  # the world's own folder, not yet created
    hidden: tuple[Path, ...]  # what commands must not read
    forget: Callable[[WorldId], None]
    blobs: RecentBlobs


class WorldLifecycle(ABC):
    """The part of `World` that starts, rolls back and ends, and the connection to its agent."""

    def __init__(self, resources: WorldResources, snapshot: Snapshot, spec: WorldSpec) -> None:
        self._id = WorldId(resources.folder.name)
        self._resources, self._folder = resources, resources.folder
        self._snapshot, self._spec = snapshot, spec
        self._made_from = snapshot  # its image is also for snapshots that name none: no world had sealed them yet
        self._lock = asyncio.Lock()
        # taken after `_lock`, if both are: alone while no process may start and nobody outside may touch the files
        self._standing = SharedLock()
        self._link: AgentLink | None = None
        self._inspection: Inspection | None = None  # the last report, while nothing can have changed since
        self._only_shell = True  # at the last request, only the shell or nothing lived
        # the last report, and its record in the last seal
        self._recorded: tuple[Inspection, ShellState] | None = None
        self._why_no_dump = self._why_no_session = ""
        # commands to keep running: their pids, -1 if they were restored with the image
        self._running: dict[str, int] = {}
        self._commands_started = False  # whether they were started
        self._flush = True  # what is sealed
        self._killed = 0  # processes killed by the kernel for memory
        self._stopped = False  # all processes, including the shell, stand still until `Thaw`
        self._maps_files = True  # at the last freeze, a process could write to a file by a mapping
        self._closed = False
        self._first_snapshot, self._first_blob = ShellSnapshot(), ""  # what the first shell began with, and its blob
        self._base_images = BaseImages(resources.folder / BASE_IMAGES_FOLDER)

    @property
    def id(self) -> WorldId:
        return self._id

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    @abstractmethod
    def path(self) -> Path: ...

    # What a backend adds

    @abstractmethod
    def _tree_inside(self) -> str:
        """Where commands see the tree."""

    @abstractmethod
    def _default_env(self) -> dict[str, str]:
        """Variables that are set unless the specification sets them."""

    @abstractmethod
    async def _make(self, snapshot: Snapshot) -> Start:
        """Make `folder` and its contents; return how the agent is to start there."""

    @abstractmethod
    def restore_shells(self, states: Mapping[str, bytes]) -> None:
        """Let the named shells have these states, in place of those that they have."""

    @abstractmethod
    async def _seal_files(self, state: ShellState, others: int) -> Snapshot:
        """Turn the changes into a layer. `others` is the number of processes beside the shell."""

    # Life

    async def begin(self) -> None:
        """Start the world at the snapshot. Raises `WorldStartFailed`, `WorldDied`."""
        start = replace(await self._make(self._snapshot), bounds=Bounds(**asdict(self._spec.limits)))
        shell, blobs = self._snapshot.processes.shell, self._resources.blobs
        if shell:
            start = replace(start, shell=await blobs.get(shell))
        start = self._with_sessions(self._dumpable(start))
        self.restore_shells({name: await blobs.get(digest) for name, digest in self._snapshot.processes.shells})
        if shell != self._first_blob:
            self._first_snapshot = ShellSnapshot.decode(start.shell) if start.shell else ShellSnapshot()
            self._first_blob = shell
        whole = self._snapshot.tier.whole
        self._inspection = None if whole or start.sessions else Inspection(b"", b"", 0)
        self._only_shell = not whole
        self._running = dict.fromkeys(self._snapshot.processes.commands, -1) if whole else {}
        self._commands_started = whole
        self._killed = 0
        link = await self._link_to(start)
        if self._closed:  # meanwhile
            await link.close()
            raise WorldDied("the world was closed while it started")
        self._link = link

    async def _link_to(self, start: Start) -> AgentLink:
        """The connection to the world's agent."""
        return await self._resources.helper.spawn(start)

    async def rollback(self, snapshot: Snapshot) -> None:
        await finish_once_begun(lambda begun: self._rollback(snapshot, begun))

    async def _rollback(self, snapshot: Snapshot, begun: asyncio.Future[None]) -> None:
        """End the world and start it again, exactly like a new fork of `snapshot`. Revives a dead world. `begun` is
        set when its turn has come."""
        async with self._lock, self._standing:
            begun.set_result(None)
            if self._closed:
                raise WorldDied("the world was closed")
            if snapshot.image is None and self._spec.image is not None:
                count = self._made_from.image_layers
                outside = (*self._made_from.outside[:count], *snapshot.outside)
                snapshot = replace(snapshot, image=self._made_from.image, outside=outside, image_layers=count)
            self._check_dumped(snapshot, criu.why_not(self._spec))
            await self._leave(snapshot)
            self._snapshot = snapshot
            await self.begin()

    async def _leave(self, snapshot: Snapshot) -> None:
        """End all processes and leave all files, before the world starts anew at `snapshot`."""
        await self._end_processes()
        await asyncio.to_thread(remove_tree, self._folder)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await finish_before_cancelling(self._end())

    async def _end(self) -> None:
        try:
            await self._end_processes()  # which also ends the current operation
        finally:  # also where a process of it hangs in the kernel, and its control group stays
            async with self._lock, self._standing:
                await asyncio.to_thread(remove_tree, self._folder)
            self._resources.forget(self._id)

    async def _end_processes(self) -> None:
        """End the world's processes. From now on it raises `WorldDied`."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _require_link(self) -> AgentLink:
        if self._link is None:
            raise WorldDied(
                "the world was closed" if self._closed else "the world ended after an error: restore a snapshot"
            )
        return self._link

    async def _ask(self, message: Message, kind: type[T], on_cancel: Callable[[], None] | None = None) -> T:
        """Send a request to the agent and check the type of its reply. With `on_cancel`, a cancelled task calls it
        and still waits for the reply."""
        answer = await self._require_link().ask(message, (), on_cancel)
        if not isinstance(answer, kind):
            # name only the type: a reply holds the world's variables, secrets among them
            raise SandboxError(f"the agent answered {type(answer).__name__} where {kind.__name__} was due")
        return answer

    def _dumpable(self, start: Start) -> Start:
        """Add CRIU and the snapshot's dumped processes to the start. Raises `WorldStartFailed`."""
        self._why_no_dump = (
            criu.why_not(self._spec) if start.view is not None else "only an isolated world can be dumped"
        )
        self._check_dumped(self._snapshot, self._why_no_dump)
        if self._why_no_dump or start.view is None:
            return start
        tier, image = self._snapshot.tier, self._snapshot.processes.image
        view = replace(start.view, visible=[*start.view.visible, str(criu.folder())])
        place = str(self._resources.store.image_dir(image)) if tier is ProcessTier.CRIU else ""
        return replace(start, view=view, criu=list(criu.command()), image=place)

    @staticmethod
    def _check_dumped(snapshot: Snapshot, why_not: str) -> None:
        """Raise `WorldStartFailed` for a snapshot with dumped processes where there can be none."""
        if why_not and snapshot.tier.whole and snapshot.processes.image:
            raise WorldStartFailed(f"snapshot {snapshot.id} holds dumped processes: {why_not}")

    def _with_sessions(self, start: Start) -> Start:
        """Add the snapshot's Python sessions to the start, or why they cannot be restored."""
        self._why_no_session = self.why_no_session(isolated=start.view is not None)
        if self._snapshot.tier not in (ProcessTier.REPL, ProcessTier.TREE):
            return start
        place = self._resources.store.image_dir(self._snapshot.processes.image)
        if self._why_no_session and self._snapshot.tier is ProcessTier.REPL:
            return replace(start, lost={folder.name: self._why_no_session for folder in place.iterdir()})
        self._base_images.keep(place)
        return replace(start, sessions=str(place))

    def why_no_session(self, *, isolated: bool) -> str:
        """Why Python sessions are not kept; "" if they are."""
        if not isolated:
            return "only an isolated world keeps Python sessions"
        if self._spec.secrets:
            return "the world holds secrets, and an image of a session's memory would keep them"
        return ptrace.why_not()

    def _start_env(self) -> dict[str, str]:
        """The start environment without the secrets."""
        return {**self._default_env(), **self._spec.env}

    def _shell_env(self, snapshot: Snapshot) -> dict[str, str]:
        merged = {**self._start_env(), **self._spec.secrets, **snapshot.env}
        return {name: value for name, value in merged.items() if name not in snapshot.env_unset}
