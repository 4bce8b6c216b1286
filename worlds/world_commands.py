"""The commands of a live world: in processes of their own, with streams, and in its shell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

from ramify import paths
from ramify.sandboxes import contract
from ramify.sandboxes.contract import Repl, RunResult, WorldSpec
from ramify.sandboxes.process_contract import Process, TerminalSize
from ramify.worlds.commands import Input, Terminal, WorldShell, checked, command_of, run_to_end, starter_of
from ramify.worlds.world_network import ExposedPort, exposed

INTERACTIVE = 'exec "$BASH" -i'  # the world's own bash


class WorldCommands(ABC):
    """The part of `World` that runs commands."""

    _spec: WorldSpec

    @abstractmethod
    def _alive(self) -> contract.World:
        """The live sandbox. Raises `WorldClosed`."""

    @property
    def workdir(self) -> PurePosixPath:
        """Where commands start: the image's WORKDIR if the world was made of an image alone, else the top of the
        tree."""
        return PurePosixPath(self._spec.workdir or self._spec.mount_at)

    def _place(self, cwd: str | None) -> str:
        return cwd or self._spec.workdir or "."

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: Input | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> RunResult:
        """Run one command in a process of its own, in parallel with others: a string by `bash -c`, a sequence as it
        is. Its files and background processes stay; its directory and variables do not. It does not see variables
        that a shell exported.

        stdin: text, bytes, a binary file, or an async iterable of bytes; None is an empty input. env: added to the
        variables that the world was made with. cwd: relative to the tree, or absolute; by default `workdir`. user: a
        name or an id of the world, also "NAME:GROUP". timeout: seconds; it kills everything that the command started,
        and the exit code is 124, as cancelling does. check: raise `CommandFailed` for an exit code that is not 0.

        Of each stream, 16 MiB are kept (`truncated`); `start` has no such bound. Raises `UnknownUser`,
        `ForbiddenUser`, `CommandRefused` (the folder is missing), `WorldDied`.
        """
        order = command_of(command, env, self._place(cwd), user, stdin=stdin is not None)
        result = await run_to_end(self._alive(), order, stdin=stdin, timeout=timeout, most=self._spec.max_output)
        return checked(result, check)

    @asynccontextmanager
    async def start(
        self,
        command: str | Sequence[str],
        *,
        stdin: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> AsyncIterator[Process]:
        """Start a command as `exec` does, and use its streams while it runs:

            async with world.start("make") as process:
                async for data in process.stdout:
                    ...
                code = await process.wait()

        Output is read only as fast as you read it: a slow reader stops the writer, so memory use is bounded. Read
        both outputs, or redirect one. Leaving the block kills the command and everything that it started, if it still
        runs. stdin: whether `write_stdin` will be called. Raises as `exec` does.
        """
        process = await starter_of(self._alive()).start(command_of(command, env, self._place(cwd), user, stdin=stdin))
        try:
            yield process
        finally:
            await process.close()

    @asynccontextmanager
    async def pty(
        self,
        command: str | Sequence[str] | None = None,
        *,
        rows: int = 24,
        columns: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> AsyncIterator[Terminal]:
        """A terminal of the world, with a command in it; without one, an interactive bash:

            async with world.pty() as terminal:
                await terminal.write("ls\\n")
                shown = await terminal.read()

        Leaving the block kills the command and everything that it started. TERM is xterm-256color, unless the world
        or `env` sets another. Raises as `exec` does, and `ValueError` for a size that no terminal has.
        """
        what = INTERACTIVE if command is None else command
        size = TerminalSize(rows, columns)
        order = command_of(what, env, self._place(cwd), user, stdin=False, terminal=size)
        process = await starter_of(self._alive()).start(order)
        try:
            yield Terminal(process)
        finally:
            await process.close()

    @asynccontextmanager
    async def expose(
        self, port: int, *, host_port: int = 0, unix_socket: str | Path | None = None
    ) -> AsyncIterator[ExposedPort]:
        """An address of this machine that reaches a TCP port inside the world, while the block lasts:

            async with world.expose(8000) as exposed:
                httpx.get(exposed.url)

        The world still cannot connect out. The server inside may start later: a connection that nothing answers is
        closed. host_port: of 127.0.0.1; 0 is a free one. Every user of this machine can connect to it; unix_socket, a
        path instead, is this user's alone. Raises `PortUnavailable`, `ValueError`.
        """
        for number, least in ((port, 1), (host_port, 0)):
            if not isinstance(number, int) or not least <= number < 1 << 16:
                raise ValueError(f"{number!r} is not a port: a port is a number from {least} to 65535")
        place = None if unix_socket is None else paths.expanded(unix_socket)
        async with exposed(lambda: starter_of(self._alive()).connect(port), host_port, place) as found:
            yield found

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> RunResult:
        """Run a command in the world's persistent shell, which a snapshot keeps: `cd`, `export` and functions last.
        One command runs at a time in it. Otherwise as `exec`."""
        result = await self._alive().run(command, stdin=stdin, timeout=timeout, env=env, cwd=cwd)
        return checked(result, check)

    def shell(self, name: str) -> WorldShell:
        """The persistent shell of this name, beside the one of `run` and in parallel with it.

        Snapshots, and so forks, have the shells too, in their states after their last complete commands.
        """
        return WorldShell(name, self._alive)

    async def python(self, name: str = "python", *, interpreter: str = "python3") -> Repl:
        """A Python session in the world, which a snapshot keeps if the backend can. Raises `Unsupported`,
        `SandboxError`."""
        return await self._alive().python(name, interpreter=interpreter)

    async def keep_running(self, command: str) -> None:
        """Start a command beside the shell, and again in every fork. Its output is dropped. Raises `Unsupported`."""
        await self._alive().keep_running(command)
