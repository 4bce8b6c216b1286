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
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.contract import RunResult, WorldId, WorldSpec
from ramify.sandboxes.errors import SandboxError, SealFailed, WorldDied
from ramify.sandboxes.helper import AgentLink, Helper
from ramify.sandboxes.scratch import remove_tree
from ramify.sandboxes.shell import HOUSEKEEPING, NAME
from ramify.sandboxes.wire import Done, Freeze, Look, Looked, Message, Ran, Run, Start, Thaw

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ground:
    """What a backend gives each of its worlds to stand on."""

    store: SnapshotStore
    helper: Helper
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
        self._closed = False

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
        start = await self._make(self._snapshot)
        link = await self._ground.helper.spawn(start)
        if self._closed:  # meanwhile
            await link.close()
            raise WorldDied("the world was closed while it started")
        self._link = link

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
        await self._abandon()  # which also ends what is under way
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
            raise SandboxError(f"the agent answered {answer!r} where {kind.__name__} was due")
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
            link = self._living()
            ran = await self._whole(self._ask(message, Ran), interrupt=link.cancel)
        return RunResult(text, ran.exit_code, ran.stdout, ran.stderr, ran.duration_s, ran.timed_out, ran.truncated)

    async def background_processes(self) -> int:
        async with self._lock:
            return (await self._whole(self._ask(Look(), Looked))).others

    # Seals

    async def seal(self) -> Snapshot:
        return await self._whole(self._seal())

    async def _seal(self) -> Snapshot:
        async with self._lock:
            looked = await self._ask(Look(), Looked)
            state = ShellState.of(looked, self._start_env(), self._tree_inside())
            try:
                self._snapshot = await self._seal_files(state, looked.others)
            except WorldDied:
                raise
            except (OSError, ForkEngineError, SandboxError) as error:
                raise SealFailed(
                    f"what changed in world {self._id} could not be made into a layer: {error}"
                ) from error
            return self._snapshot

    async def _frozen(self, work: Callable[[], Snapshot]) -> Snapshot:
        """Run `work` in a thread while every process but the shell stands still."""
        try:
            await self._ask(Freeze(), Done)
            return await asyncio.to_thread(work)
        finally:
            await self._ask(Thaw(), Done)

    def _start_env(self) -> dict[str, str]:
        return {**self._default_env(), **self._spec.env}

    def _shell_env(self, snapshot: Snapshot) -> dict[str, str]:
        merged = {**self._start_env(), **snapshot.env}
        return {name: value for name, value in merged.items() if name not in snapshot.env_unset}


class ShellState:
    """What a snapshot keeps of the shell: its exported variables as a difference, and its directory."""

    def __init__(self, env: dict[str, str], unset: tuple[str, ...], cwd: str) -> None:
        self.env, self.unset, self.cwd = env, unset, cwd

    @classmethod
    def of(cls, looked: Looked, start: Mapping[str, str], tree: str) -> ShellState:
        """A directory outside the tree is not a snapshot's to keep: a world starts at the top of its tree then."""
        now = {name: value for name, value in looked.env.items() if name not in HOUSEKEEPING}
        env = {name: value for name, value in sorted(now.items()) if start.get(name) != value}
        unset = tuple(sorted(name for name in start if name not in now and name not in HOUSEKEEPING))
        inside = looked.cwd.startswith(tree.rstrip("/") + "/")
        return cls(env, unset, os.path.relpath(looked.cwd, tree) if inside else "")

    def same_as(self, snapshot: Snapshot) -> bool:
        return (self.env, self.unset, self.cwd) == (dict(snapshot.env), snapshot.env_unset, snapshot.cwd)


def tier_of(others: int) -> ProcessTier:
    return ProcessTier.DROPPED if others else ProcessTier.NONE


def check_command(text: str, env: Mapping[str, str] | None) -> None:
    """Raises `ValueError` for what no shell can be told."""
    if "\0" in text:
        raise ValueError("a command cannot hold a NUL byte: pass such data by stdin")
    for name, value in (env or {}).items():
        if not NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"not an environment variable that bash can set for one command: {name!r}")
