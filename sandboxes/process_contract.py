"""The contract for processes that run beside a world's shell, each with streams of its own, in parallel; and for
connections to those that listen.

A world that is a `ProcessStarter` can start them. `tests/sandboxes/test_contract_processes.py` holds every backend
with such worlds to this contract.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ramify.sandboxes.contract import Limit, RunResult, is_variable, why_no_argument


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """In characters."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        if not all(isinstance(size, int) and 0 < size < 1 << 16 for size in (self.rows, self.columns)):
            raise ValueError(f"a terminal cannot have {self.rows} rows and {self.columns} columns")


@dataclass(frozen=True, slots=True)
class Command:
    """What to start: `script`, read by bash, or the words of one command.

    `env` is added to the variables that the world was made with; what a shell exported is not part of them. `cwd` is
    absolute or relative to the tree. `user` is a name or an id of the world, also `NAME:GROUP`; "" is the user that
    the world runs as. `terminal`: a terminal of its own instead of three streams.
    """

    script: str | None = None
    words: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "."
    user: str = ""
    stdin: bool = False  # whether something will be written to it; else it reads an end
    terminal: TerminalSize | None = None

    def __post_init__(self) -> None:
        if (self.script is None) is not bool(self.words):
            raise ValueError("a command is a script, or a sequence of at least one word")
        for text in (self.script or "", *self.words, self.cwd, self.user):
            if not isinstance(text, str):
                raise TypeError(f"a command consists of texts, and {text!r} is a {type(text).__name__}: use str()")
            if why := why_no_argument(text):
                raise ValueError(f"a command cannot contain {why}: pass such data by stdin")
        if self.words and not self.words[0]:
            raise ValueError("the first word of a command names its program: it is empty")
        for name, value in self.env.items():
            if not is_variable(name, value):
                raise ValueError(f"not an environment variable that a process can have: {name!r}")


class Output(Protocol):
    """One output of a process. An async iterator of its bytes, as they come; a slow reader stops the writer."""

    @property
    def truncated(self) -> bool:
        """Whether more came than `collect` kept."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def read(self) -> bytes:
        """The next bytes, b"" at the end: when the process has ended, even if what it left behind could write on."""
        ...

    def collect(self, most: int) -> None:
        """Instead of being read: keep the first `most` bytes, and drop what follows."""
        ...

    async def collected(self) -> bytes:
        """What was kept, once the stream has ended."""
        ...


class Process(Protocol):
    """A process in a world."""

    @property
    def pid(self) -> int:
        """Inside the world."""
        ...

    @property
    def stdout(self) -> Output: ...

    @property
    def stderr(self) -> Output: ...

    @property
    def returncode(self) -> int | None:
        """None while it runs; 128 + the signal's number if one ended it."""
        ...

    @property
    def limit(self) -> Limit:
        """The limit that ended it, if one is known."""
        ...

    async def write_stdin(self, data: bytes | str) -> None:
        """Returns when all was taken over by the kernel. Raises `InputClosed`."""
        ...

    def close_stdin(self) -> None: ...

    def send_signal(self, number: int, *, group: bool = True) -> None:
        """Send a signal to its process group, or to it alone; nothing if it has ended."""
        ...

    async def kill(self) -> None:
        """Kill it and everything that it started, and wait until that has ended."""
        ...

    async def wait(self) -> int:
        """The exit code. Raises `WorldDied` if the world ended first."""
        ...

    def resize(self, size: TerminalSize) -> None:
        """Resize its terminal. Raises `ValueError` without one."""
        ...

    async def close(self) -> None:
        """Kill it if it runs, and give up its streams. May be called twice."""
        ...


class PersistentShell(Protocol):
    """A bash with a state that lasts: directory, variables, functions, options."""

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> RunResult:
        """As `World.run`. A timeout ends all that the shell has started, also by earlier commands."""
        ...

    async def close(self) -> None:
        """End it and everything that it started, and forget its state."""
        ...


@runtime_checkable
class ProcessStarter(Protocol):
    """A world that starts processes beside its shell, and connects to them."""

    async def start(self, command: Command) -> Process:
        """Start a process. It runs until it ends, is closed, or its world ends; other commands do not wait for it.

        A seal does not keep it, and stops it for a moment. Raises `CommandRefused` (`UnknownUser`, `ForbiddenUser`),
        `WorldDied`, `WorldStartFailed`.
        """
        ...

    async def connect(self, port: int) -> socket.socket:
        """A connection to a TCP port of the world's own loopback, IPv4 or IPv6. The world gets no way out by it.

        Raises `NothingListens`, `WorldDied`, `ValueError` for what is no port.
        """
        ...

    async def shell(self, name: str) -> PersistentShell:
        """The shell of this name, beside the main one: the same for the same name, until a rollback.

        A snapshot holds its state after the last complete command. Raises `ValueError` for what is no name.
        """
        ...
