"""Run one command of a world to its end: feed its input, collect its output, end it at its deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import Limit, RunResult, World, check_seconds
from ramify.sandboxes.errors import InputClosed, Unsupported
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
    if not isinstance(world, ProcessStarter):
        raise Unsupported(type(world).__name__, Feature.COMMANDS.value, "it runs no processes of its own")
    return world


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
        finally:  # also if the caller is cancelled again, while its own stream ends
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
