"""A terminal in a live world: what is typed into it, what it shows, its size."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ramify.sandboxes.process_contract import Process, TerminalSize


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
