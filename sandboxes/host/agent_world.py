"""The operations of a live world with an agent: commands, seals and Python sessions.

Its start and end are in world_lifecycle.py. `AgentRepl` is the host's handle of a Python session in a world.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import Processes, ProcessTier, Snapshot
from ramify.sandboxes.agent.messages import (
    CloseSession,
    CodeResult,
    Done,
    Dump,
    Dumped,
    DumpedSessions,
    DumpSessions,
    ForkSession,
    Freeze,
    Frozen,
    Inspect,
    Inspection,
    Message,
    OpenSession,
    Ran,
    Run,
    RunCode,
    Thaw,
)
from ramify.sandboxes.agent.secret_forms import environment_without, place_without
from ramify.sandboxes.agent.shell import Report
from ramify.sandboxes.agent.shell_snapshot import ShellSnapshot
from ramify.sandboxes.contract import Limit, Repl, ReplResult, RunResult, check_seconds
from ramify.sandboxes.errors import SandboxError, SealFailed, WorldDied, explain_file_limit
from ramify.sandboxes.host.concurrency import finish_before_cancelling, finish_once_begun
from ramify.sandboxes.host.named_shell import as_text, check_command
from ramify.sandboxes.host.scratch import remove_tree
from ramify.sandboxes.host.world_lifecycle import ShellState, T, tier_of
from ramify.sandboxes.host.world_processes import WorldProcesses

SESSION = Path(__file__).parents[1] / "agent" / "checkpointing" / "python_session.py"
SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Ask(Protocol):
    """Send a message to the session's world, under the world's lock, and return the reply."""

    def __call__(self, message: Message, kind: type[T]) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class AgentRepl:
    """A session of a world that has an agent."""

    ask: Ask
    name: str

    async def run(self, code: str, *, timeout: float | None = None) -> ReplResult:
        check_seconds(timeout)
        told = await self.ask(RunCode(self.name, code, timeout), CodeResult)
        stdout, stderr = (stream.decode("utf-8", "replace") for stream in (told.stdout, told.stderr))
        return ReplResult(told.value, told.error, stdout, stderr, told.timed_out, told.truncated, told.lives)

    async def fork(self, name: str) -> AgentRepl:
        if not SESSION_NAME.fullmatch(name):
            raise ValueError(f"not a name for a Python session: {name!r}")
        await self.ask(ForkSession(self.name, name), Done)
        return AgentRepl(self.ask, name)

    async def close(self) -> None:
        await self.ask(CloseSession(self.name), Done)


D = TypeVar("D", Dumped, DumpedSessions)


class AgentWorld(WorldProcesses):
    """The part of `World` that does not depend on how the tree is made."""

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
        text = as_text(command)
        check_command(text, env, cwd, timeout)
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        message = Run(text, data, timeout, dict(env or {}), cwd)
        async with self._lock:
            with explain_file_limit(SandboxError):
                await self._start_commands()
                killed_before = not self._only_shell and await self._killed_since()
                self._inspection, self._only_shell = None, False  # even if we are cancelled and never see the result
                ran = await self._ran(message)
                self._only_shell = ran.others == 0
                limit = _limit_met(ran, killed=await self._killed_by(ran))
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

    async def _ran(self, message: Run) -> Ran:
        link = self._require_link()
        if link.pid == 0:  # the agent is started first
            return await finish_before_cancelling(self._ask(message, Ran), interrupt=link.cancel)
        return await self._ask(message, Ran, on_cancel=link.cancel)

    async def _killed_by(self, ran: Ran) -> bool:
        """Whether the kernel killed a process of this command for memory. After a successful command the next one may
        ask: a new world's control group takes some milliseconds, which its first command should not wait for."""
        if ran.exit_code == 0 and not self._require_link().kills_are_known:
            self._only_shell = False
            return False
        return await self._killed_since()

    async def _killed_since(self) -> bool:
        """Whether the kernel has killed for memory since the last call. The agent is not notified of that."""
        before, self._killed = self._killed, await self._require_link().out_of_memory()
        return self._killed > before

    async def python(self, name: str = "python", *, interpreter: str = "python3") -> Repl:
        if not SESSION_NAME.fullmatch(name):
            raise ValueError(f"not a name for a Python session: {name!r}")
        await self._session(OpenSession(name, interpreter, SESSION.read_bytes()), Done)
        return AgentRepl(self._session, name)

    async def _session(self, message: Message, kind: type[T]) -> T:
        """Send a message about a Python session. It is a process beside the shell, so what we knew may be
        outdated."""
        async with self._lock:
            await self._start_commands()
            link = self._require_link()
            self._inspection, self._only_shell = None, False
            return await finish_before_cancelling(self._ask(message, kind), interrupt=link.cancel)

    async def background_processes(self) -> int:
        async with self._lock:
            await self._start_commands()
            return (await finish_before_cancelling(self._inspect())).others

    async def keep_running(self, command: str) -> None:
        check_command(command)
        async with self._lock:
            await self._start_commands()
            await finish_before_cancelling(self._keep_running(command))

    async def _ensure_commands(self) -> None:
        if not self._commands_started:
            async with self._lock:
                await self._start_commands()

    async def _start_commands(self) -> None:
        """Before the first use of the world, start the commands of its snapshot and specification."""
        if not self._commands_started:
            self._commands_started = True
            commands = dict.fromkeys((*self._snapshot.processes.commands, *self._spec.startup))
            for command in commands:
                await finish_before_cancelling(self._keep_running(command))

    async def _keep_running(self, command: str) -> None:
        """Start the command in a subshell, so that it is not one of our shell's jobs."""
        self._inspection, self._only_shell = None, False
        text = f"(eval {shlex.quote(command)} </dev/null >/dev/null 2>&1 & builtin echo $!)"
        ran = await self._ask(Run(text), Ran)
        if ran.exit_code != 0:
            raise SandboxError(f"a command to keep running could not be started: {command}")
        self._running[command] = int(ran.stdout)

    async def _inspect(self) -> Inspection:
        """The agent's report on the shell, or the last report if only the shell lives and was sent nothing since."""
        self._require_link()
        if self._inspection is None:
            inspection = await self._ask(Inspect(list(self._running.values())), Inspection)
            self._inspection = None if inspection.others else inspection
            return inspection
        return self._inspection

    # Seals

    async def seal(self, *, flush: bool = True) -> Snapshot:
        await self.rest_shells()
        return await finish_once_begun(lambda begun: self._seal(flush, begun))

    async def begin_seal(self) -> asyncio.Future[Snapshot]:
        await self.rest_shells()
        begun = asyncio.get_running_loop().create_future()
        sealing = asyncio.ensure_future(self._seal(False, begun))
        try:
            await asyncio.wait({begun, sealing}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not begun.done():
                sealing.cancel()  # it waits for the world, and has done nothing
            await finish_before_cancelling(asyncio.wait({sealing}))
            raise
        return asyncio.ensure_future(finish_before_cancelling(sealing))  # who awaits it may be cancelled

    async def _seal(self, flush: bool, begun: asyncio.Future[None]) -> Snapshot:
        """`begun` is set once every operation that comes later waits for the seal."""
        async with self._lock, self._standing:
            begun.set_result(None)
            self._flush = flush
            try:
                inspection = await self._inspect()
                state = await self._shell_state(inspection)
                shells = await self._named_shells()
                state = replace(state, processes=replace(state.processes, shells=shells))
                self._snapshot = await self._seal_with_processes(state, inspection.others)
            except WorldDied:
                raise
            except (OSError, ForkEngineError, SandboxError, ValueError) as error:  # ValueError: a forged report
                raise SealFailed(
                    f"the changes in world {self._id} could not be made into a layer: {error}"
                ) from error
            return self._snapshot

    async def _named_shells(self) -> tuple[tuple[str, str], ...]:
        """The blobs of the named shells' states."""
        states = await self.shell_states()
        put = self._resources.store.put_blob
        return tuple([(name, await asyncio.to_thread(put, states[name])) for name in sorted(states)])

    async def _seal_with_processes(self, state: ShellState, others: int) -> Snapshot:
        """Seal files and memory while all processes stand still."""
        if not others:
            return await self._seal_files(state, 0)
        why = self._why_no_dump
        if not why:
            self._stopped = True
            try:
                dumped = await self._dump(Dump, Dumped)
                why = dumped.reason
                if not why:
                    return await self._seal_files(await self._with_dumped(state, dumped), others)
            finally:
                await self._resume_processes()
        return await self._seal_with_sessions(state.with_reason(why), others)

    async def _seal_with_sessions(self, state: ShellState, others: int) -> Snapshot:
        """Seal with the Python sessions at least, as the processes cannot be dumped whole."""
        why = self._why_no_session
        if why:
            return await self._seal_files(state.with_reason(f"{state.processes.reason}; {why}"), others)
        self._stopped = True
        try:
            dumped = await self._dump(DumpSessions, DumpedSessions)
            if dumped.reason:
                state = state.with_reason(f"{state.processes.reason}; {dumped.reason}")
            if dumped.taken:
                dropped = max(0, state.processes.dropped - len(dumped.taken))
                kept = replace(
                    state.processes, tier=ProcessTier.REPL, image=await self._adopt_images(), dropped=dropped
                )
                self._base_images.keep(self._resources.store.image_dir(kept.image))
                state = replace(state, processes=kept)
            return await self._seal_files(state, others)
        finally:
            await self._resume_processes()

    async def _adopt_images(self) -> str:
        return await asyncio.to_thread(
            self._resources.store.adopt_process_image, self._folder / "images", self._base_images.image
        )

    async def _dump(self, request: type[Dump | DumpSessions], reply: type[D]) -> D:
        """Dump all processes (`Dump`) or the Python sessions (`DumpSessions`) into a new folder of images. All dumped
        processes stand still afterwards, and so do the others except the shell, unless it fails."""
        images = await self._fresh_images()
        dumped = await self._ask(request(str(images), self._base_images.available()), reply)
        self._maps_files = dumped.maps_files
        for name, base in dumped.taken.items():
            if base:  # pages of an earlier image, on which this one builds
                self._base_images.link_into(base, images / name)
        return dumped

    async def _resume_processes(self) -> None:
        """Let all processes run again, and only then wait for the disk."""
        self._stopped = False
        await self._ask(Thaw(), Done)
        if self._flush:
            await asyncio.to_thread(self._resources.store.flush)

    async def _with_dumped(self, state: ShellState, dumped: Dumped) -> ShellState:
        """The state with all processes, which were dumped."""
        tier = ProcessTier.TREE if dumped.tree else ProcessTier.CRIU
        image = await self._adopt_images()
        if dumped.tree:
            self._base_images.keep(self._resources.store.image_dir(image))
        kept = replace(state.processes, tier=tier, image=image, dropped=0, reason=dumped.why_no_tree)
        return replace(state, processes=kept)

    async def _fresh_images(self) -> Path:
        images = self._folder / "images"
        await asyncio.to_thread(remove_tree, images)
        images.mkdir()
        return images

    async def _frozen(self, work: Callable[[], Snapshot], *, shell: bool = False) -> Snapshot:
        """Run `work` in a thread while every process but the shell stands still (`shell`: the shell, too); at once if
        all do already."""
        if self._stopped:
            return await asyncio.to_thread(work)
        self._stopped = True
        try:
            self._maps_files = (await self._ask(Freeze(shell), Frozen)).maps_files
            return await asyncio.to_thread(work)
        finally:
            await self._resume_processes()

    async def _shell_state(self, inspection: Inspection) -> ShellState:
        """What the snapshot will record of the shell and of other processes, without secrets."""
        if self._recorded is not None and self._recorded[0] == inspection:
            return self._recorded[1]
        processes = Processes(tier_of(inspection.others), self._snapshot.processes.shell, dropped=inspection.others)
        if self._running or not self._commands_started:
            commands = tuple(self._running) if self._commands_started else self._snapshot.processes.commands
            tier = ProcessTier.COMMANDS if commands else ProcessTier.NONE
            processes = replace(processes, tier=tier, commands=commands, dropped=inspection.strays)
        if not inspection.state:
            return ShellState.unstarted(self._snapshot, processes)
        secrets, tree = self._spec.secrets, self._tree_inside()
        report, began = Report.parse(inspection.state), ShellSnapshot.of(Report.parse(inspection.began), tree)
        now = ShellSnapshot.of(report, tree)
        if now != began:
            kept = now.since(began, self._first_snapshot).without(secrets)
            processes = replace(
                processes, shell=await asyncio.to_thread(self._resources.store.put_blob, kept.encode())
            )
        else:
            processes = replace(processes, shell=self._first_blob)
        place = os.fsdecode(report.pwd)
        state = ShellState.of(report.environment, place, self._start_env(), tree, str(self._folder), processes)
        env, cwd = environment_without(state.env, secrets), place_without(state.cwd, secrets)
        state = replace(state, env=env, cwd=cwd)
        self._recorded = (inspection, state)
        return state


def _limit_met(ran: Ran, *, killed: bool) -> Limit:
    """The limit that ended the command which has just returned. The kernel's kill counts only for a command that
    failed."""
    if ran.timed_out:
        return Limit.TIME
    return Limit.MEMORY if killed and ran.exit_code and not ran.limit else Limit(ran.limit)
