"""A persistent shell of a world beside its main one, with a name: driven from the host, in parallel with the others.

It is a bash as the agent's own shell is (`agent/shell.py`), on streams of its own. Its state is a report after every
command. A shell that has ended is replaced by one with the state after its last complete command; so is one that was
put to rest for a seal, which can then take the tree as if it had never been there.

`as_text` and `check_command` say what any persistent shell of a world can be asked to run: an agent that fails at it
would take its world along.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ramify.fork_engine.types import Processes
from ramify.sandboxes.agent.secret_forms import environment_without, place_without
from ramify.sandboxes.agent.shell import NAME, Report, Shell, too_long_for_exec
from ramify.sandboxes.agent.shell_snapshot import ShellSnapshot, export_script, quoted, text
from ramify.sandboxes.contract import Limit, RunResult, check_seconds, is_variable, why_no_argument
from ramify.sandboxes.errors import SandboxError, WorldDied
from ramify.sandboxes.host.started_process import LiveProcess
from ramify.sandboxes.host.world_lifecycle import ShellState


def as_text(command: str | Sequence[str]) -> str:
    """The command as a line of bash. Raises `TypeError` for words that are no texts, and `ValueError` for none."""
    if isinstance(command, str):
        return command
    words = list(command)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"a command consists of texts, and {word!r} is a {type(word).__name__}: use str()")
    if not words:
        raise ValueError("a command is a script, or a sequence of at least one word")
    return shlex.join(words)


def check_command(
    text: str, env: Mapping[str, str] | None = None, cwd: str | None = None, timeout: float | None = None
) -> None:
    """Raise `ValueError` for what no shell can execute."""
    if why := why_no_argument(text + (cwd or "")):
        raise ValueError(f"a command cannot contain {why}: pass such data by stdin")
    for name, value in (env or {}).items():
        if not is_variable(name, value) or not NAME.fullmatch(name):
            raise ValueError(f"not an environment variable that bash can set for one command: {name!r}")
    check_seconds(timeout)


SHELL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
FORMAT = 1
PATIENCE_S = 10.0  # for a shell to start, or to report its state
CHUNK = 1 << 16
TIMED_OUT = 124
NO_LIMITS = b"\0"  # this shell's own limits (ulimit) are not recorded


@dataclass(frozen=True, slots=True)
class ShellPlace:
    """What a shell has to know of its world."""

    tree: str  # where commands see it
    start: str  # where a new shell starts
    folder: str  # the world's own
    env: Mapping[str, str]  # at the start, without secrets
    secrets: Mapping[str, str]
    max_output: int


class BashStarter(Protocol):
    """The world of a shell."""

    async def start_bash(self, env: Mapping[str, str], cwd: str) -> LiveProcess: ...

    def shell_place(self) -> ShellPlace: ...


@dataclass(frozen=True, slots=True)
class SavedShell:
    """The state of a named shell: what differs from the world's start environment, the directory, and the rest."""

    env: Mapping[str, str]
    unset: tuple[str, ...]
    cwd: str  # relative to the tree if it lies in it
    shell: ShellSnapshot

    def encode(self) -> bytes:
        inner = json.loads(self.shell.encode())
        return json.dumps(
            {"format": FORMAT, "env": dict(self.env), "unset": self.unset, "cwd": self.cwd, "shell": inner},
            sort_keys=True,
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> SavedShell:
        """Raises `ValueError` for an unknown format."""
        values = json.loads(data)
        if values["format"] != FORMAT:
            raise ValueError("a named shell's state was written by a newer version of Ramify")
        shell = ShellSnapshot.decode(json.dumps(values["shell"]).encode())
        return cls(values["env"], tuple(values["unset"]), values["cwd"], shell)


class DrivenShell(Shell):
    """A shell at the other end of the host's pipes. Its `pid` is the world's own: never a target of signals here."""

    def __init__(self, process: LiveProcess, script: int, control: int, pwd: str) -> None:
        super().__init__(process.pid, script, control, pwd)
        self._process = process

    def _kill(self) -> None:
        self._process.send_signal(signal.SIGKILL, group=False)


class NamedShell:
    """One shell. Runs one command at a time; overlapping `run` calls wait for each other.

    A timeout ends all that the shell has started, also by earlier commands. Its own limits (`ulimit`) are not kept.
    """

    def __init__(self, world: BashStarter, name: str, state: bytes = b"") -> None:
        self.name = name
        self._world = world
        self._state = SavedShell.decode(state) if state else None
        self._lock = asyncio.Lock()
        self._shell: DrivenShell | None = None
        self._process: LiveProcess | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._writing = self._gone = False

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> RunResult:
        check_command(command, env, cwd, timeout)
        async with self._lock:
            began = time.monotonic()
            shell, process = await self._living()
            place = self._world.shell_place()
            for stream in (process.stdout, process.stderr):
                stream.discard()
                stream.collect(place.max_output)
            where = None if cwd is None else str(Path(place.tree, cwd))
            shell.ask(command, stdin=stdin or "/dev/null", env=dict(env or {}), cwd=where)
            self._push()
            timed_out = False
            try:
                async with asyncio.timeout(timeout):
                    await self._until(lambda: shell.status is not None)
            except TimeoutError:
                timed_out = True
                await process.kill()
            except asyncio.CancelledError:
                await self._end()
                raise
            out, err = process.stdout.collected_now(), process.stderr.collected_now()
            truncated = process.stdout.truncated or process.stderr.truncated
            code = shell.status
            if timed_out or code is None:
                code = TIMED_OUT if timed_out else await process.wait()
                await self._end()
            else:
                process.stdout.discard()
                process.stderr.discard()
            limit = Limit.TIME if timed_out else process.limit
            return RunResult(command, code, out, err, time.monotonic() - began, timed_out, truncated, limit)

    async def saved(self) -> bytes:
        """The state after the last complete command; b"" for a shell that never ran one."""
        shell = self._shell
        if shell is not None and not self._lock.locked():
            async with self._lock:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_S):
                        await self._until(lambda: not shell.awaiting_state)
        self._remember()
        return b"" if self._state is None else self._state.encode()

    async def rest(self) -> None:
        """End the bash, unless a command runs or it has jobs: the next command has a new one with the same state.
        What it has given up (`disown`, a daemon) lives on."""
        if self._lock.locked() or self._shell is None:
            return
        async with self._lock:
            shell, process = self._shell, self._process
            if shell is None or process is None:
                return
            process.stdout.discard()
            process.stdout.collect(CHUNK)
            shell.ask("builtin jobs -p", stdin="/dev/null", env={}, cwd=None)
            self._push()
            with suppress(TimeoutError):  # a trap blocks it: it stays
                async with asyncio.timeout(PATIENCE_S):
                    await self._until(lambda: shell.status is not None and not shell.awaiting_state)
                    if process.stdout.collected_now() == b"":
                        self._remember()
                        process.send_signal(signal.SIGKILL, group=False)  # no trap of it runs
                        await self._until(lambda: False)
                        await self._end()

    async def close(self) -> None:
        """End the bash and everything that it started, and forget its state."""
        async with self._lock:
            await self._end()
            self._state = None

    def abandon(self) -> None:
        """The world has ended."""
        self._gone = True
        self._release()
        self._changed.set()

    # The bash

    async def _living(self) -> tuple[DrivenShell, LiveProcess]:
        if self._gone:
            raise WorldDied("the world was closed or rolled back: ask it for the shell again")
        if self._process is not None and self._process.returncode is not None:
            await self._end()
        if self._shell is None or self._process is None:
            return await self._start()
        return self._shell, self._process

    async def _start(self) -> tuple[DrivenShell, LiveProcess]:
        place, kept = self._world.shell_place(), self._state
        env = {**place.env, **place.secrets}
        cwd = place.start
        if kept is not None:
            env = {name: value for name, value in {**env, **kept.env}.items() if name not in kept.unset}
            cwd = str(Path(place.tree, kept.cwd))
        late = too_long_for_exec(env)
        started = {name: value for name, value in env.items() if name not in late}
        try:
            process = await self._world.start_bash({**started, "PWD": cwd}, cwd)
        except WorldDied:
            raise
        except SandboxError:  # its directory is gone
            cwd = place.tree
            process = await self._world.start_bash({**started, "PWD": cwd}, cwd)
        assert process.shell_ends is not None
        script, control = process.shell_ends
        os.set_blocking(control, False)
        self._process, self._shell = process, DrivenShell(process, script, control, cwd)
        self._loop.add_reader(control, self._ready)
        process.when_ended(self._changed.set)
        process.stdout.discard()
        process.stderr.discard()
        script_text = export_script(late) + (kept.shell.script(place.tree) if kept is not None else b"")
        told = text(quoted(script_text)) if script_text else ":"
        shell = self._shell
        shell.restore(f"builtin eval {told} >/dev/null 2>&1" if script_text else ":")
        self._push()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._until(lambda: shell.status is not None and not shell.awaiting_state)
        except BaseException:
            await self._end()
            raise
        if shell.status is None:
            await self._end()
            raise SandboxError("the world's bash ended immediately")
        return shell, process

    async def _until(self, true: Callable[[], bool]) -> None:
        """Wait until this holds, or the bash has ended."""
        process = self._process
        while process is not None and process.returncode is None and not self._gone:
            self._read()
            if true():
                return
            self._changed.clear()
            await self._changed.wait()
        self._read()

    def _read(self) -> None:
        shell = self._shell
        if shell is None:
            return
        while True:
            try:
                data = os.read(shell.control, CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(shell.control)
                break
            shell.receive(data)
        self._push()

    def _ready(self) -> None:
        self._read()
        self._changed.set()

    def _push(self) -> None:
        shell = self._shell
        if shell is None:
            return
        shell.push()
        if shell.waiting and not self._writing:
            self._loop.add_writer(shell.script, self._push)
        elif not shell.waiting and self._writing:
            self._loop.remove_writer(shell.script)
        self._writing = shell.waiting

    def _remember(self) -> None:
        """Keep the state that the bash last reported."""
        shell, place = self._shell, self._world.shell_place()
        if shell is None or not shell.state:
            return
        report = Report.parse(shell.state + NO_LIMITS)
        state = ShellState.of(
            report.environment, os.fsdecode(report.pwd), place.env, place.tree, place.folder, Processes()
        )
        env = environment_without(state.env, place.secrets)
        self._state = SavedShell(
            env,
            state.unset,
            place_without(state.cwd, place.secrets),
            ShellSnapshot.of(report, place.tree).without(place.secrets),
        )

    async def _end(self) -> None:
        self._remember()
        process = self._process
        self._release()
        if process is not None:
            await process.close()

    def _release(self) -> None:
        """Close our ends of the bash."""
        shell, self._shell, self._process = self._shell, None, None
        if shell is not None:
            self._loop.remove_reader(shell.control)
            self._loop.remove_writer(shell.script)
            self._writing = False
            os.close(shell.control)
            os.close(shell.script)
