"""A world as a deployment of SWE-ReX (`swerex.deployment`, `swerex.runtime`).

    deployment = WorldDeployment(folder=".")
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    await deployment.runtime.run_in_session(BashAction(command="make test"))

A session is a shell of the world, so snapshots and forks have it, with its directory, variables and functions. An
interactive program has a terminal beside the shell, which they do not have.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ramify.integrations.world_access import FileAccessFailed, as_os_error, merged, read_file, upload, write_file
from ramify.sandboxes.contract import why_no_argument
from ramify.sandboxes.errors import CommandRefused, InputClosed, WorldDied
from ramify.worlds.commands import Terminal, WorldShell
from ramify.worlds.errors import PathRefused, WorldClosed
from ramify.worlds.world import World

try:
    from pydantic import BaseModel, ConfigDict
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
    from swerex.exceptions import (
        BashIncorrectSyntaxError,
        CommandTimeoutError,
        DeploymentNotStartedError,
        NonZeroExitCodeError,
        SessionDoesNotExistError,
        SessionExistsError,
        SessionNotInitializedError,
    )
    from swerex.runtime.abstract import (
        AbstractRuntime,
        BashAction,
        BashInterruptAction,
        BashObservation,
        CloseBashSessionRequest,
        CloseBashSessionResponse,
        CloseResponse,
        Command,
        CommandResponse,
        CreateBashSessionRequest,
        CreateBashSessionResponse,
        IsAliveResponse,
        ReadFileRequest,
        ReadFileResponse,
        UploadRequest,
        UploadResponse,
        WriteFileRequest,
        WriteFileResponse,
    )
    from swerex.utils.log import get_logger
except ImportError as error:
    raise ImportError("ramify.integrations.swe_rex needs swe-rex: pip install 'ramify[swe-rex]'") from error

PROMPT = "SHELLPS1PREFIX"
"""What ends a command in a terminal, as in SWE-ReX's own sessions; an observation's `expect_string` says so."""

STARTING_S = 10.0
"""Seconds that a session has to start, at least: SWE-ReX's default of one is too few for a machine that is busy."""

_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_][0-?]*[ -/]*[@-~]")


class WorldDeploymentConfig(BaseModel):
    """What `WorldDeployment` takes. `folder`, `snapshot`, `image`, `sandbox`, `home`: as `ramify.World.create`."""

    model_config = ConfigDict(extra="forbid")

    folder: str | None = None
    snapshot: str | None = None
    image: str | None = None
    env: dict[str, str] = {}
    egress: list[str] | None = None
    sandbox: str | None = None
    home: str | None = None
    type: Literal["ramify"] = "ramify"

    def get_deployment(self) -> WorldDeployment:
        return WorldDeployment.from_config(self)


class _Interactive:
    """A bash in a terminal, for a session's interactive program."""

    def __init__(self, terminal: Terminal, held: AsyncExitStack) -> None:
        self.terminal = terminal
        self._held = held
        self._shown = ""

    @classmethod
    async def start(cls, world: World, cwd: str, env: dict[str, str]) -> _Interactive:
        async with AsyncExitStack() as stack:
            bash = ["bash", "--norc", "--noprofile", "-i"]
            own = {**env, "PS1": PROMPT, "PS2": "", "PS0": "", "TERM": "dumb"}
            terminal = await stack.enter_async_context(world.pty(bash, columns=500, cwd=cwd, env=own))
            made = cls(terminal, stack.pop_all())
        await made.terminal.write("stty -echo; unset PROMPT_COMMAND\n")
        await made.until([])  # the first prompt, or what is echoed before it
        await made.terminal.write(f"PS1={PROMPT}; echo {PROMPT[:5]}''{PROMPT[5:]}-READY\n")
        await made.until([f"{PROMPT}-READY"], prompt=False)
        await made.until([])
        return made

    async def until(self, expect: Sequence[str], *, prompt: bool = True) -> tuple[str, str]:
        """Read until one of the patterns, or the prompt, is shown: what was shown before it, and which it is. ("…",
        "") if the program and its bash have ended."""
        patterns = [*expect, *([PROMPT] if prompt else [])]
        while True:
            found = [(match, one) for one in patterns if (match := re.search(one, self._shown))]
            if found:
                match, which = min(found, key=lambda one: one[0].start())
                before, self._shown = self._shown[: match.start()], self._shown[match.end() :]
                return before, which
            data = await self.terminal.read()
            if not data:
                before, self._shown = self._shown, ""
                return before, ""
            shown = self._shown + data.decode("utf-8", "backslashreplace")
            self._shown = _CONTROL.sub("", shown).replace("\r\n", "\n")

    async def close(self) -> None:
        await self._held.aclose()


@dataclass(eq=False, slots=True)
class _Session:
    shell: WorldShell
    interactive: _Interactive | None = None

    async def close_interactive(self) -> None:
        interactive, self.interactive = self.interactive, None
        if interactive is not None:
            await interactive.close()


class WorldRuntime(AbstractRuntime):
    """SWE-ReX's runtime over one world. Whoever made the world closes it."""

    def __init__(self, world: World, *, sessions: Sequence[str] = ()) -> None:
        """sessions: the names of the world's shells that are sessions already."""
        self.world = world
        self.logger = get_logger("rex-runtime")
        self._sessions = {name: _Session(world.shell(name)) for name in sessions}

    @property
    def sessions(self) -> tuple[str, ...]:
        return tuple(self._sessions)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            result = await self.world.exec(["true"], timeout=timeout)
        except (WorldClosed, WorldDied) as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=result.ok, message="" if result.ok else result.stderr)

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        shell = self.world.shell(request.session)
        sources = "\n".join(f"source {shlex.quote(path)}" for path in request.startup_source) or ":"
        limit = max(request.startup_timeout, STARTING_S)
        with _errors():
            result = await shell.run(_merged(sources), timeout=limit)
        if result.timed_out:
            raise CommandTimeoutError(f"timeout after {limit} seconds while starting session {request.session!r}")
        self._sessions[request.session] = _Session(shell)
        return CreateBashSessionResponse(output=result.stdout)

    async def run_in_session(self, action: BashAction | BashInterruptAction) -> BashObservation:
        session = self._session(action.session)
        with _errors():
            if isinstance(action, BashInterruptAction):
                return await self._interrupt(session, action)
            if why := why_no_argument(action.command):
                raise BashIncorrectSyntaxError(f"{action.command!a} has {why}", extra_info={"bash_stderr": why})
            if action.is_interactive_command or action.is_interactive_quit:
                return await self._run_interactive(session, action)
            return await self._run(session, action)

    async def _run(self, session: _Session, action: BashAction) -> BashObservation:
        checked = await self.world.exec(["bash", "-n"], stdin=action.command + "\n")
        if not checked.ok:
            info = {"bash_stdout": checked.stdout, "bash_stderr": checked.stderr}
            raise BashIncorrectSyntaxError(f"{action.command!r} is not bash: {checked.stderr}", extra_info=info)
        result = await session.shell.run(_merged(action.command), timeout=action.timeout)
        if result.timed_out:
            raise _too_late(action.timeout, action.command)
        if action.check == "raise":
            _check(result.exit_code, action.command, action.error_msg, f"output:\n{result.stdout!r}")
        code = None if action.check == "ignore" else result.exit_code
        return BashObservation(output=result.stdout, exit_code=code, expect_string=PROMPT)

    async def _run_interactive(self, session: _Session, action: BashAction) -> BashObservation:
        if session.interactive is None:
            session.interactive = await self._terminal(session)
        interactive = session.interactive
        await interactive.terminal.write(action.command + "\n")
        try:
            async with asyncio.timeout(action.timeout):
                shown, matched = await interactive.until(action.expect)
        except TimeoutError:
            raise _too_late(action.timeout, action.command) from None
        if action.is_interactive_quit or matched in ("", PROMPT):
            await session.close_interactive()
        output = shown.lstrip().removeprefix(action.command.strip()).strip()
        return BashObservation(output=output, exit_code=0, expect_string=matched)

    async def _terminal(self, session: _Session) -> _Interactive:
        """A terminal where the session's shell is, with what it has exported."""
        told = await session.shell.run("pwd && env -0")
        cwd, _, env = told.stdout.partition("\n")
        variables = dict(one.split("=", 1) for one in env.split("\0") if "=" in one)
        return await _Interactive.start(self.world, cwd, variables)

    async def _interrupt(self, session: _Session, action: BashInterruptAction) -> BashObservation:
        """Ctrl-C to the interactive program. A command that timed out was ended then."""
        interactive = session.interactive
        if interactive is None:
            return BashObservation(exit_code=0, expect_string=PROMPT)
        for _ in range(action.n_retry):
            await interactive.terminal.write(b"\x03")
            try:
                async with asyncio.timeout(action.timeout):
                    shown, matched = await interactive.until(action.expect)
            except TimeoutError:
                continue
            if matched in ("", PROMPT):
                await session.close_interactive()
            return BashObservation(output=shown.strip(), exit_code=0, expect_string=matched)
        await session.close_interactive()  # it does not listen
        return BashObservation(exit_code=0, expect_string=PROMPT)

    async def close_session(self, request: CloseBashSessionRequest) -> CloseBashSessionResponse:
        session = self._session(request.session)
        with _errors():
            await session.close_interactive()
            await session.shell.close()
        del self._sessions[request.session]
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        words = [command.command] if isinstance(command.command, str) else command.command
        if command.shell:
            words = ["sh", "-c", *words]
        if command.merge_output_streams:
            words = merged(words)
        with _errors():
            result = await self.world.exec(words, env=command.env, cwd=command.cwd, timeout=command.timeout)
        if result.timed_out:
            raise _too_late(command.timeout, str(command.command))
        if command.check:
            said = f"Stdout:\n{result.stdout!r}\nStderr:\n{result.stderr!r}"
            _check(result.exit_code, str(command.command), command.error_msg, said)
        return CommandResponse(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        with _errors():
            data = await read_file(self.world, request.path)
        return ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        with _errors():
            await write_file(self.world, request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        source = Path(request.source_path)
        if not source.exists():
            raise FileNotFoundError(f"there is no {source} on this machine to upload")
        with _errors():
            await upload(self.world, source, request.target_path)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        for name in self.sessions:
            await self._sessions.pop(name).close_interactive()
        return CloseResponse()

    def _session(self, name: str) -> _Session:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    # Beyond SWE-ReX's interface

    async def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag. Sessions go back with it; interactive programs end."""
        for session in self._sessions.values():
            await session.close_interactive()
        await self.world.restore(snapshot)


class WorldDeployment(AbstractDeployment):
    """SWE-ReX's deployment: `start` makes a world, `stop` ends it."""

    def __init__(self, **kwargs: Any) -> None:
        """kwargs: the fields of `WorldDeploymentConfig`."""
        self._config = WorldDeploymentConfig(**kwargs)
        self._runtime: WorldRuntime | None = None
        self._hooks = CombinedDeploymentHook()
        self.logger = get_logger("rex-deploy")

    @classmethod
    def from_config(cls, config: WorldDeploymentConfig) -> WorldDeployment:
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="the deployment was not started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Raises as `ramify.World.create` does."""
        if self._runtime is not None:
            return
        self._hooks.on_custom_step("Starting the world")
        options = self._config.model_dump(exclude={"type", "folder"})
        self._runtime = WorldRuntime(await World.create(self._config.folder, **options))

    async def stop(self) -> None:
        """May be called twice."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            try:
                await runtime.close()
            finally:
                await runtime.world.close()

    @property
    def runtime(self) -> WorldRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    # Beyond SWE-ReX's interface

    async def snapshot(self, tag: str | None = None) -> str:
        """Keep the world and its sessions as they are now. Returns the id, for `restore` and `snapshot=`."""
        return (await self.runtime.world.snapshot(tag)).id

    async def fork(self, n: int = 1) -> list[WorldDeployment]:
        """Make `n` started deployments at the state of now, with the same sessions. Stop each by itself."""
        runtime, made = self.runtime, []
        for world in await runtime.world.fork(n):
            beside = type(self).from_config(self._config)
            beside._runtime = WorldRuntime(world, sessions=runtime.sessions)
            made.append(beside)
        return made

    async def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag."""
        await self.runtime.restore(snapshot)


def _merged(command: str) -> str:
    """A command for a persistent shell, whose output and errors come as one stream."""
    return f"eval {shlex.quote(command)} 2>&1"


def _check(code: int, command: str, error_msg: str, said: str) -> None:
    if code:
        told = f"Command {command!r} failed with exit code {code}. {said}"
        raise NonZeroExitCodeError(f"{error_msg}: {told}" if error_msg else told)


def _too_late(timeout: float | None, command: str) -> CommandTimeoutError:
    return CommandTimeoutError(f"timeout after {timeout} seconds while running command {command!r}")


@contextmanager
def _errors() -> Iterator[None]:
    """Translate into what SWE-ReX's users expect."""
    try:
        yield
    except FileAccessFailed as error:
        raise as_os_error(error) from error
    except (PathRefused, CommandRefused) as error:
        raise FileNotFoundError(str(error)) from error
    except WorldClosed as error:
        raise DeploymentNotStartedError(str(error)) from error  # type: ignore[no-untyped-call]
    except (WorldDied, InputClosed) as error:
        raise SessionNotInitializedError(str(error)) from error
