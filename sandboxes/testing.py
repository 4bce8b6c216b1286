"""Worlds whose commands are answered by a script, for tests of code above worlds. The trees are real.

    def script(tree: Path, command: str) -> Answer:
        if command.startswith("patch "):
            (tree / "fixed").touch()
            return Answer()
        return Answer(exit_code=0 if (tree / "fixed").exists() else 1, stdout="1 failed")

    async with ScriptedBackend(store, scratch, script) as backend: ...

Seals, forks and rollbacks work as everywhere. There is no shell, so `cd` and `export` have no effect and a snapshot's
environment stays as it is. `backend.commands` lists the commands in order. The fake has every capability, since a
script can play any (`Answer(limit=Limit.MEMORY)`), except egress and those in `missing`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.capabilities import Capabilities, Feature, flags
from ramify.sandboxes.contract import Limit, Repl, RunResult, World, WorldId, WorldSpec, check_supported
from ramify.sandboxes.errors import Unsupported, WorldDied
from ramify.sandboxes.host.concurrency import finish_before_cancelling, fork_all
from ramify.sandboxes.host.named_shell import as_text, check_command
from ramify.sandboxes.host.scratch import ScratchSession, remove_tree


@dataclass(frozen=True, slots=True)
class Answer:
    """What a scripted command does: its result, and its edits of the tree (a path's new text; None removes it)."""

    exit_code: int = 0
    stdout: str | bytes = b""
    stderr: str | bytes = b""
    edits: Mapping[str, str | None] = field(default_factory=dict)
    limit: Limit = Limit.NONE  # the limit that ended it


Script = Callable[[Path, str], Answer] | Mapping[str, Answer]
"""Called in a thread with the world's tree and the command, or looked up by the command."""


class ScriptedBackend:
    """The fake backend. A command that a mapping lacks ends with 127, like one that is not installed."""

    name = "scripted"

    def __init__(
        self, store: SnapshotStore, scratch: Path, script: Script, *, missing: Mapping[Feature, str] | None = None
    ) -> None:
        self.store, self.script = store, script
        self.capabilities = Capabilities(
            self.name, flags({Feature.EGRESS: "a script makes no connections", **(missing or {})})
        )
        self.commands: list[tuple[WorldId, str]] = []
        self._session = ScratchSession(scratch)
        self._worlds: list[ScriptedWorld] = []

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._session.open)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for world in self._worlds:
            await world.close()
        await asyncio.to_thread(self._session.close)

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        return await fork_all(self, snapshot, spec, n)

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        check_supported(self.capabilities, spec)
        world = ScriptedWorld(self, self._session.folder / secrets.token_hex(6), snapshot)
        try:
            await finish_before_cancelling(asyncio.to_thread(self.store.materialise, snapshot, world.folder))
        except BaseException:
            await world.close()
            raise
        self._worlds.append(world)
        return world

    def answer(self, world: ScriptedWorld, command: str) -> Answer:
        self.commands.append((world.id, command))
        if isinstance(self.script, Mapping):
            return self.script.get(command, Answer(127, stderr=f"no scripted answer to: {command}\n"))
        return self.script(world.folder, command)


class ScriptedWorld:
    """A world of the fake: a folder with a tree, and the script's answers. The script sees a command's text alone:
    the other arguments of `run` are checked as in a real world, and change nothing."""

    def __init__(self, backend: ScriptedBackend, folder: Path, snapshot: Snapshot) -> None:
        self._backend, self.folder, self._snapshot = backend, folder, snapshot
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def id(self) -> WorldId:
        return WorldId(self.folder.name)

    @property
    def path(self) -> Path:
        self._check_alive()
        return self.folder

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> RunResult:
        text = as_text(command)
        check_command(text, env, cwd, timeout)
        async with self._lock:
            self._check_alive()
            answer = await asyncio.to_thread(self._backend.answer, self, text)
            for path, content in answer.edits.items():
                place = self.folder / path
                if content is None:
                    place.unlink()
                else:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(content)
        return RunResult(
            text,
            answer.exit_code,
            _bytes(answer.stdout),
            _bytes(answer.stderr),
            duration_s=0.0,
            timed_out=answer.limit is Limit.TIME,
            limit=answer.limit,
        )

    async def seal(self, *, flush: bool = True) -> Snapshot:
        async with self._lock:
            return await self._sealed(flush=flush)

    async def begin_seal(self) -> asyncio.Future[Snapshot]:
        await self._lock.acquire()
        sealing = asyncio.ensure_future(self._sealed(flush=False))
        sealing.add_done_callback(lambda _: self._lock.release())
        return sealing

    async def _sealed(self, *, flush: bool) -> Snapshot:
        self._check_alive()
        old = self._snapshot
        self._snapshot = await asyncio.to_thread(
            self._backend.store.seal_tree,
            self.folder,
            old,
            env=dict(old.env),
            env_unset=old.env_unset,
            cwd=old.cwd,
            flush=flush,
        )
        return self._snapshot

    async def rollback(self, snapshot: Snapshot) -> None:
        async with self._lock:
            self._check_alive()
            await asyncio.to_thread(remove_tree, self.folder)
            await asyncio.to_thread(self._backend.store.materialise, snapshot, self.folder)
            self._snapshot = snapshot

    async def keep_running(self, command: str) -> None:
        raise Unsupported("scripted", Feature.COMMANDS.value, "no process lives between scripted commands")

    async def python(self, name: str = "python", *, interpreter: str = "python3") -> Repl:
        raise Unsupported("scripted", Feature.REPL.value, "no process lives between scripted commands")

    async def background_processes(self) -> int:
        self._check_alive()
        return 0

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(remove_tree, self.folder)

    def _check_alive(self) -> None:
        if self._closed:
            raise WorldDied("the world was closed")


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
