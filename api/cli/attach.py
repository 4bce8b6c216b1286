"""Connect this command's own streams, or its terminal, with a process in a world."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ramify.sandboxes.process_contract import Process
    from ramify.worlds.commands import Terminal

CHUNK = 1 << 16
ENDING = (signal.SIGTERM, signal.SIGHUP)


async def until_told_to_end(work: Awaitable[int]) -> int:
    """Await an exit code. If we are told to end (SIGTERM, SIGHUP), the work is cancelled, and the code is that of the
    signal: so what a world changed is stored all the same."""
    loop, told = asyncio.get_running_loop(), list[signal.Signals]()
    working = asyncio.ensure_future(work)

    def end(number: signal.Signals) -> None:
        told.append(number)
        working.cancel()

    for number in ENDING:
        loop.add_signal_handler(number, end, number)
    try:
        return await working
    except asyncio.CancelledError:
        if not told:
            raise
        return 128 + told[0]


async def pass_through(process: Process, *, stdin: bool) -> int:
    """Pass the output of a process on as it comes, to its own stream each, and our input to it; its exit code."""
    if stdin:
        _pump_input(process.write_stdin, process.close_stdin)
    await asyncio.gather(_copy(process.stdout, 1), _copy(process.stderr, 2))
    return await process.wait()


async def interact(terminal: Terminal) -> int:
    """Connect our terminal with one in a world until its command ends; the exit code.

    Every key goes inside, Ctrl-C, Ctrl-D and Ctrl-Z too. Our terminal is as before afterwards, even if this is
    cancelled.
    """
    loop = asyncio.get_running_loop()

    def follow_size() -> None:
        with suppress(OSError, ValueError):  # our terminal is gone, or has no size
            size = os.get_terminal_size(0)
            terminal.resize(size.lines, size.columns)

    with _raw(0):
        loop.add_signal_handler(signal.SIGWINCH, follow_size)
        try:
            follow_size()
            _pump_input(terminal.write, lambda: None)
            await _copy(terminal, 1)
            return await terminal.wait()
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


def terminal_size() -> tuple[int, int]:
    """Rows and columns of our terminal, or what is usual."""
    with suppress(OSError):
        size = os.get_terminal_size(0)
        if size.lines and size.columns:
            return size.lines, size.columns
    return 24, 80


async def _copy(output: AsyncIterable[bytes], to: int) -> None:
    async for data in output:
        left = memoryview(data)
        while left:
            left = left[await asyncio.to_thread(os.write, to, left) :]


def _pump_input(write: Callable[[bytes], Awaitable[None]], end: Callable[[], None]) -> None:
    """Pass our input on from a thread, which may wait for it for ever: nothing waits for the thread. It reads no
    faster than the process does."""
    from ramify.sandboxes.errors import InputClosed

    loop = asyncio.get_running_loop()

    async def whole(data: bytes) -> bool:
        try:
            await write(data)
        except InputClosed:
            return False
        return True

    def pump() -> None:
        with suppress(OSError, RuntimeError, asyncio.CancelledError):  # our input or the loop is closed
            while (data := os.read(0, CHUNK)) and asyncio.run_coroutine_threadsafe(whole(data), loop).result():
                pass
            loop.call_soon_threadsafe(end)

    threading.Thread(target=pump, name="ramify-stdin", daemon=True).start()


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Every key is passed on as it is typed. The terminal is as before afterwards."""
    sys.stdout.flush()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSANOW)  # what was typed ahead is not lost
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
