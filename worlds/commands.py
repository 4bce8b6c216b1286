"""Commands, shells and terminals of a live world.

`run_to_end` runs one command to its end: it feeds its input, collects its output, and ends it at its deadline.
`WorldShell` is a persistent shell by its name. `Terminal` is what is typed into a terminal, what it shows, and its
size.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, cast

from ramify.sandboxes import contract
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import Limit, RunResult, World, check_seconds
from ramify.sandboxes.errors import InputClosed, Unsupported
from ramify.sandboxes.host.named_shell import as_text
from ramify.sandboxes.process_contract import Command, Process, ProcessStarter, TerminalSize
from ramify.worlds.errors import CommandFailed

Input = str | bytes | IO[bytes] | AsyncIterable[bytes]
"""What a command reads: text, bytes, a file, or bytes as they come."""

CHUNK = 1 << 16
TIMED_OUT = 124


def command_of(
    command: str | Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str,
    user: str | int | None,
    *,
    stdin: bool,
    terminal: TerminalSize | None = None,
) -> Command:
    """Raises `ValueError` for what cannot be started."""
    script, words = (command, ()) if isinstance(command, str) else (None, tuple(command))
    return Command(script, words, dict(env or {}), cwd, "" if user is None else str(user), stdin, terminal)


def starter_of(world: World) -> ProcessStarter:
    """The world as one that starts processes. Raises `Unsupported`."""
    if not _starts_processes(type(world)):
        raise Unsupported(type(world).__name__, Feature.COMMANDS.value, "it runs no processes of its own")
    return cast(ProcessStarter, world)


@functools.cache
def _starts_processes(kind: type[World]) -> bool:
    """Cached: every command asks, and to look through a protocol takes longer than a system call."""
    return issubclass(kind, ProcessStarter)


async def run_to_end(
    world: World, command: Command, *, stdin: Input | None, timeout: float | None, most: int
) -> RunResult:
    """Start a command, wait for its end, and return its output, at most `most` bytes of each stream. If this is
    cancelled, nothing that the command started is left."""
    check_seconds(timeout)
    starter, began = starter_of(world), time.monotonic()
    process = await starter.start(command)
    feeding = None if stdin is None else asyncio.ensure_future(feed(process, stdin))
    try:
        process.stdout.collect(most)
        process.stderr.collect(most)
        timed_out = await ended_by(process, timeout)
        code = await process.wait()
        out, err = await process.stdout.collected(), await process.stderr.collected()
    finally:
        try:
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait({feeding})
        finally:  # even if the caller is cancelled again, while its own stream ends
            await process.close()
    if feeding is not None and not feeding.cancelled() and (failed := feeding.exception()) is not None:
        raise failed  # the caller's own stream
    return RunResult(
        command.script if command.script is not None else " ".join(command.words),
        TIMED_OUT if timed_out else code,
        out,
        err,
        time.monotonic() - began,
        timed_out,
        process.stdout.truncated or process.stderr.truncated,
        Limit.TIME if timed_out else process.limit,
    )


async def ended_by(process: Process, timeout: float | None) -> bool:
    """Wait for the end of a process, and kill it after `timeout` seconds: whether that was needed."""
    if timeout is None:
        await process.wait()
        return False
    try:
        async with asyncio.timeout(timeout):
            await process.wait()
    except TimeoutError:
        await process.kill()
        return True
    return False


async def feed(process: Process, stdin: Input) -> None:
    """Write all of it, as far as the process reads it, and close its input."""
    try:
        with suppress(InputClosed):  # it needs no more
            if isinstance(stdin, str | bytes):
                await process.write_stdin(stdin)
            elif isinstance(stdin, AsyncIterable):
                async for data in stdin:
                    await process.write_stdin(data)
            else:
                while data := await asyncio.to_thread(stdin.read, CHUNK):
                    await process.write_stdin(data)
    finally:
        process.close_stdin()


def checked(result: RunResult, check: bool) -> RunResult:
    """The result; raises `CommandFailed` for a failed command, with `check`."""
    if check and not result.ok:
        told = result.stderr.strip() or result.stdout.strip()
        raise CommandFailed(f"{result.command!r} ended with exit code {result.exit_code}: {told[-500:]}", result)
    return result


class WorldShell:
    """A bash whose `cd`, variables, functions and options last. Made by `World.shell`; it starts with its first
    command."""

    def __init__(self, name: str, alive: Callable[[], contract.World]) -> None:
        self.name = name
        self._alive = alive

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
        """Run a command in this shell; one runs at a time in it. `env` and `cwd` hold for this command only.

        A timeout (seconds) ends all that the shell has started, and the next command has a new bash with the state
        after the last complete command. check: raise `CommandFailed`. Raises `WorldDied`, `Unsupported`."""
        text = as_text(command)
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        shell = await starter_of(self._alive()).shell(self.name)
        result = await shell.run(text, stdin=data, env=env, cwd=cwd, timeout=timeout)
        return checked(result, check)

    async def close(self) -> None:
        """End it and everything that it started, and forget its state."""
        await (await starter_of(self._alive()).shell(self.name)).close()


class Terminal:
    """A terminal, and the command that it controls. Made by `World.pty`. An async iterator of what it shows."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._process.stdout.__aiter__()

    async def read(self) -> bytes:
        """What it shows next; b"" once the command has ended."""
        return await self._process.stdout.read()

    async def write(self, data: bytes | str) -> None:
        """Type: b"\\x03" is Ctrl-C, b"\\x04" Ctrl-D, b"\\x1a" Ctrl-Z. Raises `InputClosed`."""
        await self._process.write_stdin(data)

    def resize(self, rows: int, columns: int) -> None:
        """The programs in it are told (SIGWINCH). Raises `ValueError` for sizes that no terminal has."""
        self._process.resize(TerminalSize(rows, columns))

    def send_signal(self, number: int) -> None:
        """Send a signal to the process group of its command."""
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while the command runs; 128 + the signal's number if one ended it."""
        return self._process.returncode

    async def wait(self) -> int:
        """The command's exit code. Raises `WorldDied`."""
        return await self._process.wait()
