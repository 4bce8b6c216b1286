"""A live world over an agent: what the namespace and the copy backend have in common.

One operation at a time, under the world's lock. An operation that has begun is never left half done: when the task
that awaits it is cancelled, a command is killed, anything else runs to its end, and only then does the cancellation
go on.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Processes, ProcessTier, Snapshot
from ramify.sandboxes.contract import Limit, Repl, RunResult, WorldId, WorldSpec
from ramify.sandboxes.errors import SandboxError, SealFailed, WorldDied, WorldStartFailed
from ramify.sandboxes.helper import AgentLink
from ramify.sandboxes.safety.bounds import Bounds
from ramify.sandboxes.scratch import remove_tree
from ramify.sandboxes.shellstate import HOUSEKEEPING, NAME, Kept, Report, environment_without
from ramify.sandboxes.tiers import criu, tracing
from ramify.sandboxes.tiers.grounds import Grounds
from ramify.sandboxes.tiers.repl import SESSION, SESSION_NAME, AgentRepl
from ramify.sandboxes.wire import (
    Carried,
    Carry,
    Done,
    Dump,
    Dumped,
    Freeze,
    Frozen,
    Look,
    Looked,
    Message,
    Open,
    Ran,
    Run,
    Start,
    Thaw,
)

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

T = TypeVar("T")


class Spawner(Protocol):
    """What starts agents: a backend's helper process, for one."""

    async def spawn(self, start: Start) -> AgentLink:
        """Raises `WorldStartFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class Ground:
    """What a backend gives each of its worlds to stand on."""

    store: SnapshotStore
    helper: Spawner
    bash: str
    folder: Path  # the world's own; not there yet
    hidden: tuple[Path, ...]  # what commands must not read
    forget: Callable[[WorldId], None]


class AgentWorld(ABC):
    """The part of `World` that does not depend on how the tree is made."""

    def __init__(self, ground: Ground, snapshot: Snapshot, spec: WorldSpec) -> None:
        self._id = WorldId(ground.folder.name)
        self._ground, self._folder = ground, ground.folder
        self._snapshot, self._spec = snapshot, spec
        self._lock = asyncio.Lock()
        self._link: AgentLink | None = None
        self._looked: Looked | None = None  # as things stand, where nothing can have changed since
        self._told: tuple[Looked, ShellState] | None = None  # what the last seal made of it
        self._why_no_dump = self._why_no_session = ""
        self._running: dict[
            str, int
        ] = {}  # commands that are kept running: their pids, -1 where they came back with the image
        self._awake = False  # they were started
        self._flush = True  # what is sealed
        self._killed = 0  # processes, by the kernel for memory
        self._still = False  # all processes, the shell too, wait for `Thaw`
        self._maps_files = True  # when all last stood still, a process could write to one by a mapping
        self._closed = False
        self._kept, self._began_with = Kept(), ""  # what the first shell began with, and its blob
        self._grounds = Grounds(ground.folder / "grounds")

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
        """What commands find set where the specification sets nothing."""

    @abstractmethod
    async def _make(self, snapshot: Snapshot) -> Start:
        """Make `folder` and what stands in it; how the agent is to start there."""

    @abstractmethod
    async def _seal_files(self, state: ShellState, others: int) -> Snapshot:
        """Turn what changed into a layer. `others` processes live beside the shell."""

    # Life

    async def begin(self) -> None:
        """Come to life at the snapshot. Raises `WorldStartFailed`."""
        start = replace(await self._make(self._snapshot), bounds=Bounds(**asdict(self._spec.limits)))
        shell = self._snapshot.processes.shell
        if shell:
            start = replace(start, shell=await asyncio.to_thread(self._ground.store.blob, shell))
        start = self._with_sessions(self._dumpable(start))
        self._kept, self._began_with = Kept.decode(start.shell) if start.shell else Kept(), shell
        self._looked = None if start.image else Looked(b"", b"", 0)
        self._running = dict.fromkeys(self._snapshot.processes.commands, -1) if start.image else {}
        self._awake = bool(start.image)
        self._killed = 0
        link = await self._link_to(start)
        if self._closed:  # meanwhile
            await link.close()
            raise WorldDied("the world was closed while it started")
        self._link = link

    async def _link_to(self, start: Start) -> AgentLink:
        """The way to the world's agent."""
        return await self._ground.helper.spawn(start)

    async def rollback(self, snapshot: Snapshot) -> None:
        await self._whole(self._rollback(snapshot))

    async def _rollback(self, snapshot: Snapshot) -> None:
        """End the world and begin it again: exactly what a new fork of `snapshot` would be. Revives a dead one."""
        async with self._lock:
            if self._closed:
                raise WorldDied("the world was closed")
            await self._abandon()
            await asyncio.to_thread(remove_tree, self._folder)
            self._snapshot = snapshot
            await self.begin()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._whole(self._end())

    async def _end(self) -> None:
        try:
            await self._abandon()  # which also ends what is under way
        finally:  # also where a process of it hangs in the kernel, and its control group stays
            async with self._lock:
                await asyncio.to_thread(remove_tree, self._folder)
            self._ground.forget(self._id)

    async def _abandon(self) -> None:
        """End the world's processes: it cannot go on, and says `WorldDied` from now on."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _living(self) -> AgentLink:
        if self._link is None:
            raise WorldDied("the world was closed" if self._closed else "the world could not go on after an error")
        return self._link

    async def _ask(self, message: Message, kind: type[T]) -> T:
        answer = await self._living().ask(message)
        if not isinstance(answer, kind):
            # by its kind alone: an answer holds the world's variables, secrets among them
            raise SandboxError(f"the agent answered {type(answer).__name__} where {kind.__name__} was due")
        return answer

    async def _whole(self, work: Coroutine[object, object, T], interrupt: Callable[[], None] | None = None) -> T:
        """Await `work` to its end even if we are cancelled, after telling it so by `interrupt`."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if interrupt is not None:
                interrupt()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen: the cancellation says more
            raise

    def _dumpable(self, start: Start) -> Start:
        """With CRIU in sight, and the processes of the snapshot to begin with. Raises `WorldStartFailed`."""
        self._why_no_dump = (
            criu.why_not(self._spec) if start.view is not None else "only an isolated world can be dumped"
        )
        whole = self._snapshot.tier is ProcessTier.CRIU
        image = self._snapshot.processes.image if whole else ""
        if self._why_no_dump and image:
            raise WorldStartFailed(f"snapshot {self._snapshot.id} holds dumped processes: {self._why_no_dump}")
        if self._why_no_dump or start.view is None:
            return start
        view = replace(start.view, visible=[*start.view.visible, str(criu.folder())])
        place = str(self._ground.store.image_dir(image)) if image else ""
        return replace(start, view=view, criu=list(criu.command()), image=place)

    def _with_sessions(self, start: Start) -> Start:
        """With the Python sessions of the snapshot, or with why they cannot be there."""
        self._why_no_session = self.why_no_session(isolated=start.view is not None)
        if self._snapshot.tier is not ProcessTier.REPL:
            return start
        place = self._ground.store.image_dir(self._snapshot.processes.image)
        if self._why_no_session:
            return replace(start, lost={folder.name: self._why_no_session for folder in place.iterdir()})
        self._grounds.keep(place)
        return replace(start, sessions=str(place))

    def why_no_session(self, *, isolated: bool) -> str:
        """Why Python sessions are not kept; "" where they are."""
        if not isolated:
            return "only an isolated world keeps Python sessions"
        if self._spec.secrets:
            return "the world holds secrets, and an image of a session's memory would keep them"
        return tracing.why_not()

    # Commands

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> RunResult:
        text = command if isinstance(command, str) else shlex.join(command)
        check_command(text, env)
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        message = Run(text, data, timeout, dict(env or {}), cwd)
        async with self._lock:
            await self._wake()
            link = self._living()
            killed_before = self._looked is None and await self._killed_since()
            self._looked = None  # also where we are cancelled, and never hear what it came to
            ran = await self._whole(self._ask(message, Ran), interrupt=link.cancel)
            self._looked = None if ran.others else Looked(ran.state, ran.began, 0)
            limit = _limit_met(ran, killed=await self._killed_since())
            earlier = Limit.MEMORY if killed_before else Limit(ran.earlier)
        return RunResult(
            text,
            ran.exit_code,
            ran.stdout,
            ran.stderr,
            ran.duration_s,
            ran.timed_out,
            ran.truncated,
            limit,
            earlier=earlier,
        )

    async def _killed_since(self) -> bool:
        """Whether the kernel has killed for memory since this was last asked: it tells the agent nothing of it."""
        before, self._killed = self._killed, await self._living().out_of_memory()
        return self._killed > before

    async def python(self, name: str = "python", *, interpreter: str = "python3") -> Repl:
        if not SESSION_NAME.fullmatch(name):
            raise ValueError(f"not a name for a Python session: {name!r}")
        await self._session(Open(name, interpreter, SESSION.read_bytes()), Done)
        return AgentRepl(self._session, name)

    async def _session(self, message: Message, kind: type[T]) -> T:
        """Ask about a Python session: a process beside the shell, so what we knew is no longer sure."""
        async with self._lock:
            await self._wake()
            link = self._living()
            self._looked = None
            return await self._whole(self._ask(message, kind), interrupt=link.cancel)

    async def background_processes(self) -> int:
        async with self._lock:
            await self._wake()
            return (await self._whole(self._look())).others

    async def keep_running(self, command: str) -> None:
        check_command(command, None)
        async with self._lock:
            await self._wake()
            await self._whole(self._keep_running(command))

    async def _wake(self) -> None:
        """Before the world is first used: start what its snapshot and its specification say should run."""
        if not self._awake:
            self._awake = True
            commands = dict.fromkeys((*self._snapshot.processes.commands, *self._spec.startup))
            for command in commands:
                await self._whole(self._keep_running(command))

    async def _keep_running(self, command: str) -> None:
        """In a shell of its own below ours, so that it is none of our shell's jobs."""
        self._looked = None
        text = f"(eval {shlex.quote(command)} </dev/null >/dev/null 2>&1 & builtin echo $!)"
        ran = await self._ask(Run(text), Ran)
        if ran.exit_code != 0:
            raise SandboxError(f"a command that should be kept running could not be started: {command}")
        self._running[command] = int(ran.stdout)

    async def _look(self) -> Looked:
        """What the agent says of the shell; as it said last, where only the shell lives and nobody spoke to it."""
        self._living()
        if self._looked is None:
            looked = await self._ask(Look(list(self._running.values())), Looked)
            self._looked = None if looked.others else looked
            return looked
        return self._looked

    # Seals

    async def seal(self, *, flush: bool = True) -> Snapshot:
        return await self._whole(self._seal(flush))

    async def _seal(self, flush: bool) -> Snapshot:
        async with self._lock:
            self._flush = flush
            looked = await self._look()
            state = await self._shell_state(looked)
            try:
                self._snapshot = await self._seal_with_processes(state, looked.others)
            except WorldDied:
                raise
            except (OSError, ForkEngineError, SandboxError) as error:
                raise SealFailed(
                    f"what changed in world {self._id} could not be made into a layer: {error}"
                ) from error
            return self._snapshot

    async def _seal_with_processes(self, state: ShellState, others: int) -> Snapshot:
        """Files and memory are taken while all stands still."""
        if not others:
            return await self._seal_files(state, 0)
        why = self._why_no_dump
        if not why:
            self._still = True
            try:
                why = await self._dump()
                if not why:
                    kept = replace(state.processes, tier=ProcessTier.CRIU, image=await self._adopt(), dropped=0)
                    return await self._seal_files(replace(state, processes=kept), others)
            finally:
                await self._go_on()
        return await self._seal_with_sessions(state.because(why), others)

    async def _seal_with_sessions(self, state: ShellState, others: int) -> Snapshot:
        """What cannot be dumped whole: its Python sessions at least."""
        why = self._why_no_session
        if why:
            return await self._seal_files(state.because(f"{state.processes.reason}; {why}"), others)
        self._still = True
        try:
            carried = await self._carry()
            if carried.reason:
                state = state.because(f"{state.processes.reason}; {carried.reason}")
            if carried.taken:
                dropped = max(0, state.processes.dropped - len(carried.taken))
                kept = replace(state.processes, tier=ProcessTier.REPL, image=await self._adopt(), dropped=dropped)
                self._grounds.keep(self._ground.store.image_dir(kept.image))
                state = replace(state, processes=kept)
            return await self._seal_files(state, others)
        finally:
            await self._go_on()

    async def _adopt(self) -> str:
        return await asyncio.to_thread(self._ground.store.adopt_image, self._folder / "images", self._grounds.image)

    async def _carry(self) -> Carried:
        """Take the Python sessions into `images`; from then on all but the shell stands still."""
        images = await self._fresh_images()
        carried = await self._ask(Carry(str(images), self._grounds.there()), Carried)
        self._maps_files = carried.maps_files
        for session, ground in carried.taken.items():
            if ground:
                self._grounds.put(ground, images / session)
        return carried

    async def _go_on(self) -> None:
        """Let all that stood still run, and only then wait for the disk."""
        self._still = False
        await self._ask(Thaw(), Done)
        if self._flush:
            await asyncio.to_thread(self._ground.store.flush)

    async def _dump(self) -> str:
        """Dump all processes into `images`, which then stand still; else why not."""
        dumped = await self._ask(Dump(str(await self._fresh_images())), Dumped)
        self._maps_files = dumped.maps_files
        return dumped.reason

    async def _fresh_images(self) -> Path:
        images = self._folder / "images"
        await asyncio.to_thread(remove_tree, images)
        images.mkdir()
        return images

    async def _frozen(self, work: Callable[[], Snapshot]) -> Snapshot:
        """Run `work` in a thread while every process but the shell stands still; where all do already, at once."""
        if self._still:
            return await asyncio.to_thread(work)
        self._still = True
        try:
            self._maps_files = (await self._ask(Freeze(), Frozen)).maps_files
            return await asyncio.to_thread(work)
        finally:
            await self._go_on()

    async def _shell_state(self, looked: Looked) -> ShellState:
        """What the snapshot will say of the shell and of what runs beside it. No secret is in it."""
        if self._told is not None and self._told[0] == looked:
            return self._told[1]
        processes = Processes(tier_of(looked.others), self._snapshot.processes.shell, dropped=looked.others)
        if self._running or not self._awake:
            commands = tuple(self._running) if self._awake else self._snapshot.processes.commands
            tier = ProcessTier.COMMANDS if commands else ProcessTier.NONE
            processes = replace(processes, tier=tier, commands=commands, dropped=looked.strays)
        if not looked.state:
            return ShellState.standing(self._snapshot, processes)
        secrets, tree = self._spec.secrets, self._tree_inside()
        report, began = Report.parse(looked.state), Report.parse(looked.began).kept(tree)
        now = report.kept(tree)
        if now != began:
            kept = now.since(began, self._kept).without(secrets)
            processes = replace(processes, shell=await asyncio.to_thread(self._ground.store.put_blob, kept.encode()))
        else:
            processes = replace(processes, shell=self._began_with)
        place = os.fsdecode(report.pwd)
        state = ShellState.of(report.environment, place, self._start_env(), tree, processes)
        state = replace(state, env=environment_without(state.env, secrets))
        self._told = (looked, state)
        return state

    def _start_env(self) -> dict[str, str]:
        """The secrets apart."""
        return {**self._default_env(), **self._spec.env}

    def _shell_env(self, snapshot: Snapshot) -> dict[str, str]:
        merged = {**self._start_env(), **self._spec.secrets, **snapshot.env}
        return {name: value for name, value in merged.items() if name not in snapshot.env_unset}


@dataclass(frozen=True, slots=True)
class ShellState:
    """What a snapshot keeps beside the files: the exported variables as a difference, the directory, what ran."""

    env: Mapping[str, str]
    unset: tuple[str, ...]
    cwd: str
    processes: Processes

    @classmethod
    def of(
        cls, now: Mapping[str, str], cwd: str, start: Mapping[str, str], tree: str, processes: Processes
    ) -> ShellState:
        """A directory outside the tree is not a snapshot's to keep: a world starts at the top of its tree then."""
        kept = {name: value for name, value in now.items() if name not in HOUSEKEEPING}
        env = {name: value for name, value in sorted(kept.items()) if start.get(name) != value}
        gone = (name for name in start if NAME.fullmatch(name) and name not in kept and name not in HOUSEKEEPING)
        inside = cwd.startswith(tree.rstrip("/") + "/")
        return cls(env, tuple(sorted(gone)), os.path.relpath(cwd, tree) if inside else "", processes)

    @classmethod
    def standing(cls, snapshot: Snapshot, processes: Processes) -> ShellState:
        """Of a world whose shell did not start yet."""
        return cls(snapshot.env, snapshot.env_unset, snapshot.cwd, processes)

    def because(self, reason: str) -> ShellState:
        """With why processes are not kept better."""
        return replace(self, processes=replace(self.processes, reason=reason))

    def same_as(self, snapshot: Snapshot) -> bool:
        mine = (dict(self.env), self.unset, self.cwd, self.processes)
        return mine == (dict(snapshot.env), snapshot.env_unset, snapshot.cwd, snapshot.processes)


def _limit_met(ran: Ran, *, killed: bool) -> Limit:
    """Which limit ended the command that has just come back. What the kernel kills is a command that failed."""
    if ran.timed_out:
        return Limit.TIME
    return Limit.MEMORY if killed and ran.exit_code and not ran.limit else Limit(ran.limit)


def tier_of(others: int) -> ProcessTier:
    return ProcessTier.DROPPED if others else ProcessTier.NONE


def check_command(text: str, env: Mapping[str, str] | None) -> None:
    """Raises `ValueError` for what no shell can be told."""
    if "\0" in text:
        raise ValueError("a command cannot hold a NUL byte: pass such data by stdin")
    for name, value in (env or {}).items():
        if not NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"not an environment variable that bash can set for one command: {name!r}")
