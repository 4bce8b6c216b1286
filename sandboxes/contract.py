"""One contract, several backends: what a world is and what it can be asked.

A backend materialises a snapshot into a live `World`; the world runs commands and seals itself into the next
snapshot. `tests/sandboxes/test_contract.py` and `test_shells.py` hold every backend to this page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NewType, Protocol, runtime_checkable

from ramify.fork_engine.types import Snapshot

if TYPE_CHECKING:
    from ramify.sandboxes.capabilities import Capabilities

WorldId = NewType("WorldId", str)
MIB, GIB = 1 << 20, 1 << 30


class Limit(StrEnum):
    """What can end a command from outside. The values are `Limits`' fields, but for `NONE` and `TIME`."""

    NONE = ""  # it ended by itself
    TIME = "timeout"  # the command's own
    MEMORY = "memory_bytes"
    PROCESSES = "processes"
    FILE = "file_bytes"
    DISK = "disk_bytes"
    OPEN_FILES = "open_files"
    CPU = "cpu_s"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one world may use, all its processes together unless it says otherwise; None: as much as there is.

    A default holds where the backend can hold it, and its flags say where that is. A value that differs from the
    default was asked for: a backend that cannot hold it refuses the world (`Unsupported`).
    """

    memory_bytes: int | None = 8 * GIB  # resident, shared pages counted once
    processes: int | None = 1024  # threads counted
    file_bytes: int | None = 16 * GIB  # the largest file that can be written
    disk_bytes: int | None = 32 * GIB  # what the world has written and not removed
    open_files: int | None = 65536  # of each process
    cpu_s: int | None = None  # processor time of each process

    def asked(self) -> tuple[Limit, ...]:
        """The limits that differ from their defaults and are limits."""
        mine = ((f, getattr(self, f.name)) for f in fields(self))
        return tuple(Limit(f.name) for f, value in mine if value is not None and value != f.default)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one command. Output is decoded as UTF-8 with replacement; `*_bytes` are exact."""

    command: str
    exit_code: int  # 128 + signal where a signal ended it; 124 where the timeout did
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration_s: float
    timed_out: bool = False
    truncated: bool = False  # more output than `max_output` came; the rest was read and dropped
    limit: Limit = Limit.NONE  # which limit ended it, where one is known to have: `TIME` where `timed_out`
    earlier: Limit = Limit.NONE  # which limit ended what earlier commands had left running, since the last result

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """How worlds of one run look from inside.

    `mount_at` is where the tree stands inside the world: the workspace's own path, so that a virtual environment
    or an absolute path in a configuration file goes on working. `visible` are host folders that must be readable
    inside although they lie under a place that the world hides (/tmp).

    `secrets` are variables like `env`, but no snapshot, log or error ever holds their values; not even where a
    command has put one into another variable. A fork has them by its own specification only. What a command writes
    into a file is the command's doing.
    """

    mount_at: Path
    env: Mapping[str, str] = field(default_factory=dict)  # the start environment, whole: nothing is inherited
    visible: tuple[Path, ...] = ()
    max_output: int = 16 * MIB  # bytes kept of each of stdout and stderr, a command
    image: Path | None = None  # a root file system, folder or tar, in the place of the host's
    network: bool = False  # the host's network; else a loopback of the world's own at most
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: Limits = field(default_factory=Limits)
    dumpable: bool = False
    """Processes can be dumped whole (CRIU). They run without the system-call filter then, for only the machine's root
    can dump what is filtered: `docs/decisions/037-process-checkpoints-with-criu.md`."""
    startup: tuple[str, ...] = ()  # commands that every world starts beside its shell, but where they came with it


@dataclass(frozen=True, slots=True)
class ReplResult:
    """What came of code in a Python session. A failure is an `error`, never an exception of ours."""

    value: str | None  # the last expression's `repr`; none where there is none, or it is None
    error: str | None  # the traceback
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False  # more output than `max_output` came
    lives: bool = True  # the session, still: not after `os._exit`, or a timeout that it did not notice

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out and self.lives


class Repl(Protocol):
    """A Python session in a world: names live on from one `run` to the next."""

    @property
    def name(self) -> str: ...

    async def run(self, code: str, *, timeout: float | None = None) -> ReplResult:
        """Run statements; a last expression's value is told. A timeout interrupts, and kills what does not heed it.

        Raises `WorldDied`, and `SandboxError` where the session has ended.
        """
        ...

    async def fork(self, name: str) -> Repl:
        """A second session in the same world, which is this one at this instant: the memory is shared until one of
        the two writes to it. Threads do not come along. Raises `SandboxError`."""
        ...

    async def close(self) -> None:
        """End it, with all that it started."""
        ...


class World(Protocol):
    """A live sandbox. One command at a time; `run` calls that overlap wait for each other."""

    @property
    def id(self) -> WorldId: ...

    @property
    def path(self) -> Path:
        """The world's tree as the host process sees it. Valid while the world lives."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot this world last started from or was sealed into."""
        ...

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> RunResult:
        """Run in the world's persistent shell: a string as bash reads it, a sequence as one quoted command.

        `cd`, `export` and shell functions last until the world ends. `env` and `cwd` (relative to the tree) are for
        this command alone. A command that ends the shell (`exit 3`) gives that code; the next one has a new shell,
        with the directory, variables, functions and options known when the last whole command ended. What a
        background process prints while no command runs is dropped: redirect it to a file.
        A timeout kills the whole tree of processes that the command started, also those that left its session.
        Raises `WorldDied` where the world is gone, never for a command's own failure.
        """
        ...

    async def seal(self, *, flush: bool = True) -> Snapshot:
        """Freeze what changed into a layer; the same snapshot where nothing did (files, environment, cwd).

        The world lives on, on top of the new layer. Without `flush` the snapshot is complete and can be forked, but a
        machine that dies before the store's next `flush` may lose it.
        """
        ...

    async def rollback(self, snapshot: Snapshot) -> None:
        """Drop all changes and processes and stand at `snapshot`."""
        ...

    async def keep_running(self, command: str) -> None:
        """Start a command beside the shell, and again in every fork of a snapshot that did not keep it alive.

        As `WorldSpec.startup`, which every world starts, but for this world and what comes from it. What it prints is
        dropped, so have it write to a file. Raises as `run` does, and `Unsupported`.
        """
        ...

    async def python(self, name: str = "python", *, interpreter: str = "python3") -> Repl:
        """The Python session of this name: the one that lives, also one that came with the snapshot, or a new one in
        the shell's directory and environment. Raises `Unsupported`, and `SandboxError` where it cannot start, or,
        once, where the snapshot held it and this world cannot bring it back."""
        ...

    async def background_processes(self) -> int:
        """How many processes live in the world beside its shell."""
        ...

    async def close(self) -> None:
        """End every process, drop what is not sealed, free the disk. Safe to call twice."""
        ...


@runtime_checkable
class Hiding(Protocol):
    """A backend that can be told what its worlds must not see: all of ours, but for one that isolates no files."""

    def hide(self, *places: Path) -> None:
        """Have no world see these files and folders, whether they are there yet or not. Before it is opened."""
        ...


class Backend(AbstractAsyncContextManager["Backend"], Protocol):
    """Makes worlds. Entering it starts what the backend needs; leaving it ends every world it made."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities:
        """What worlds of this backend can do. Cheap: availability was settled when the backend was opened."""
        ...

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        """A live world standing at `snapshot`, its tree mounted. Its first `run` waits for whatever else is due.

        Raises `Unsupported` where the backend has no flag for what `spec` asks, `WorldStartFailed`.
        """
        ...

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        """`n` worlds standing at `snapshot`, all of them or none: where one fails the others are closed.

        Raises as `materialise` does, and `ValueError` for a negative `n`.
        """
        ...
