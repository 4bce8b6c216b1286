"""The contract between worlds, their backends and their users.

A backend materialises a snapshot as a live `World`; the world runs commands and seals itself into the next snapshot.
`tests/sandboxes/test_contract*.py` hold every backend to this contract.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NewType, Protocol, runtime_checkable

from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.sandboxes.capabilities import Capabilities, Feature
from ramify.sandboxes.errors import WorldStartFailed

if TYPE_CHECKING:  # loading them takes long
    import asyncio

    from ramify.sandboxes.egress.broker import EgressBroker
    from ramify.sandboxes.egress.settings import Egress

WorldId = NewType("WorldId", str)
MIB, GIB = 1 << 20, 1 << 30


class Limit(StrEnum):
    """What can end a command from outside. The values are the field names of `Limits`, except `NONE` and `TIME`."""

    NONE = ""  # the command ended by itself
    TIME = "timeout"  # the command's own timeout
    MEMORY = "memory_bytes"
    PROCESSES = "processes"
    FILE = "file_bytes"
    DISK = "disk_bytes"
    OPEN_FILES = "open_files"
    CPU = "cpu_s"


FEATURE_OF = {
    Limit.MEMORY: Feature.MEMORY_LIMIT,
    Limit.PROCESSES: Feature.PROCESS_LIMIT,
    Limit.FILE: Feature.FILE_LIMIT,
    Limit.DISK: Feature.DISK_LIMIT,
    Limit.OPEN_FILES: Feature.OPEN_FILES_LIMIT,
    Limit.CPU: Feature.CPU_LIMIT,
}
"""The flag for each limit of `Limits`. Timeouts have none: every backend enforces them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one world may use. Limits hold for all its processes together unless stated otherwise; None means no
    limit.

    A default applies wherever the backend can enforce it; the backend's flags say where that is. A value other than
    the default is a request: a backend that cannot enforce it refuses the world (`Unsupported`).
    """

    memory_bytes: int | None = 8 * GIB  # resident memory, shared pages counted once
    processes: int | None = 1024  # including threads
    file_bytes: int | None = 16 * GIB  # the largest file that can be written
    disk_bytes: int | None = 32 * GIB  # what the world has written and not removed
    open_files: int | None = 65536  # per process
    cpu_s: int | None = None  # processor time per process

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{one.name}={value!r} is not a limit: give a whole number above 0, or None")

    def asked(self) -> tuple[Limit, ...]:
        """The limits that are set and differ from their defaults."""
        mine = ((f, getattr(self, f.name)) for f in fields(self))
        return tuple(Limit(f.name) for f, value in mine if value is not None and value != f.default)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one command. `stdout` and `stderr` are decoded as UTF-8 with replacement; `*_bytes` are
    exact."""

    command: str
    exit_code: int  # 128 + signal number if a signal ended it; 124 if the timeout did
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration_s: float
    timed_out: bool = False
    truncated: bool = False  # the output exceeded `max_output`; the rest was read and dropped
    limit: Limit = Limit.NONE  # the limit that ended it, if one is known; `TIME` if `timed_out`
    earlier: Limit = Limit.NONE  # the limit that ended processes of earlier commands, since the last result

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
    """How the worlds of one run look from inside.

    `mount_at` is where the tree stands inside the world: the workspace's own path, so that virtual environments and
    absolute paths in configuration files still work. `visible` are host folders that must be readable inside although
    they lie under a place that the world hides (/tmp).

    `secrets` are variables like `env`, but no log or error ever holds their values, and a snapshot's shell state
    leaves out what holds one (`agent/shell_snapshot.py` says in which forms). A fork gets them only from its own
    specification. What a command writes into a file is the command's own responsibility.
    """

    mount_at: Path
    env: Mapping[str, str] = field(default_factory=dict)  # the whole start environment: nothing is inherited
    command_env: Mapping[str, str] = field(default_factory=dict)
    """Over an image: its ENV, which single commands have besides `env`. A shell has it in its own state."""
    visible: tuple[Path, ...] = ()
    max_output: int = 16 * MIB  # bytes kept per command of each of stdout and stderr
    image: Path | None = None  # a root file system, folder or tar, instead of the host's
    workdir: str = ""  # absolute: where single commands start; "" for the tree's top folder
    user: str = ""  # over an image: USER, a name or number, with a group or without; "" for root
    network: bool = False  # use the host's network; else the world has at most its own loopback
    egress: Egress | None = None  # connections that a broker outside makes for it; None: none, and none later
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: Limits = field(default_factory=Limits)
    dumpable: bool = False
    """Whether processes can be dumped whole (CRIU). They then run without the system-call filter, because only the
    machine's root can dump filtered processes: `docs/decisions/037-process-checkpoints-with-criu.md`."""
    startup: tuple[str, ...] = ()  # commands started beside the shell in every world, unless they came with it


_KERNELS_PLACES = ("/", "/proc", "/sys", "/dev")


def is_variable(name: object, value: object) -> bool:
    """Whether a process can have this variable."""
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return bool(name) and "=" not in name and not why_no_argument(name + value)


def why_no_argument(text: str) -> str:
    """Why a process cannot be given this text; "" if it can. What stands for a byte that is no UTF-8, as in the names
    of files, is that byte again."""
    if "\0" in text:
        return "a NUL byte"
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        return f"half of a surrogate pair, {text[error.start]!a}, which no encoding has"
    return ""


def required_features(spec: WorldSpec) -> Iterator[Feature]:
    """The features that a world of this specification needs."""
    if spec.image is not None:
        yield Feature.IMAGES
    if spec.network:
        yield Feature.HOST_NETWORK
    if spec.egress is not None:
        yield Feature.EGRESS
    if spec.startup:
        yield Feature.COMMANDS
    for limit in spec.limits.asked():
        yield FEATURE_OF[limit]


def check_seconds(timeout: float | None) -> None:
    """Raise `ValueError` for a timeout that is no number: nothing could wait for it."""
    if timeout is not None and (not isinstance(timeout, int | float) or math.isnan(timeout)):
        raise ValueError(f"a timeout is a number of seconds, or None for no limit: not {timeout!r}")


def check_supported(capabilities: Capabilities, spec: WorldSpec) -> None:
    """Raise `Unsupported` for the first feature that `spec` needs and the backend lacks, and `WorldStartFailed` for
    variables that no process can have, and for a place where no tree can stand."""
    for name, value in (*spec.env.items(), *spec.secrets.items()):
        if not is_variable(name, value):  # not shown: the value may be a secret
            raise WorldStartFailed(
                f"no process can have the variable {name!r}: both are texts, the name is not empty and has no '=', "
                "and neither has a NUL byte"
            )
    place = os.path.normpath(spec.mount_at)
    if not place.startswith("/") or "\0" in place or place in _KERNELS_PLACES:
        raise WorldStartFailed(
            f"the tree cannot stand at {str(spec.mount_at)!r}: name an absolute path other than "
            + ", ".join(_KERNELS_PLACES)
        )
    if spec.network and spec.egress is not None:
        raise WorldStartFailed("a world with the host's network needs no egress=: choose one of them")
    for feature in required_features(spec):
        capabilities.require(feature)


@dataclass(frozen=True, slots=True)
class ReplResult:
    """The outcome of code in a Python session. If the code fails, `error` is set; no exception is raised."""

    value: str | None  # the `repr` of the last expression; None without one, or if it is None
    error: str | None  # the traceback
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False  # the output exceeded `max_output`
    lives: bool = True  # whether the session still lives: not after `os._exit` or a timeout that it ignored

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out and self.lives


class Repl(Protocol):
    """A Python session in a world. Names persist from one `run` to the next."""

    @property
    def name(self) -> str: ...

    async def run(self, code: str, *, timeout: float | None = None) -> ReplResult:
        """Run statements; the result has the value of a last expression. A timeout interrupts the code, and kills the
        session if it ignores that.

        Raises `WorldDied`, and `SandboxError` if the session has ended.
        """
        ...

    async def fork(self, name: str) -> Repl:
        """Create a second session in the same world as a copy of this one; they share memory until one of them
        writes. Threads are not copied. Raises `SandboxError`."""
        ...

    async def close(self) -> None:
        """End the session and everything that it started."""
        ...


class World(Protocol):
    """A live sandbox. Runs one command at a time; overlapping `run` calls wait for each other."""

    @property
    def id(self) -> WorldId: ...

    @property
    def path(self) -> Path:
        """The world's tree as this process sees it. Valid while the world lives."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that this world last started from or was sealed into."""
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
        """Run a command in the world's persistent shell: a string as bash reads it, a sequence as one quoted command.

        `cd`, `export` and shell functions last until the world ends. `env` and `cwd` (relative to the tree) apply to
        this command only; `timeout` is in seconds. If a command ends the shell (`exit 3`), its result has that code,
        and the next command has a new shell with the directory, variables, functions and options that were known when
        the last complete command ended. Output of background processes is dropped while no command runs: redirect it
        to a file.

        A timeout kills all processes that the command started, including those that left its session. Raises
        `WorldDied` if the world is gone, never for a command's own failure.
        """
        ...

    async def seal(self, *, flush: bool = True) -> Snapshot:
        """Freeze the changes into a layer. If nothing changed (files, environment, cwd), return the same snapshot.

        The world lives on, on top of the new layer. Without `flush` the snapshot is complete and can be forked, but
        may be lost if the machine crashes before the store's next `flush`.
        """
        ...

    async def begin_seal(self) -> asyncio.Future[Snapshot]:
        """Begin a seal without a flush, and return while it goes on. The caller awaits the result, as of `seal`.

        The state is that of a moment between this call and the next operation on the world, which waits until the
        state is taken. Until then `path` may be unmounted. If the world is closed first, the result is `WorldDied`
        or the snapshot.
        """
        ...

    async def rollback(self, snapshot: Snapshot) -> None:
        """Drop all changes and processes and return to `snapshot`."""
        ...

    async def keep_running(self, command: str) -> None:
        """Start a command beside the shell, and again in every fork of a snapshot that did not keep it alive.

        Like `WorldSpec.startup`, but for this world and its forks only. Its output is dropped, so let it write to a
        file. Raises as `run` does, and `Unsupported`.
        """
        ...

    async def python(self, name: str = "python", *, interpreter: str = "python3") -> Repl:
        """The Python session of this name. It is the living one, possibly restored with the snapshot, or a new one in
        the shell's directory and environment.

        Raises `Unsupported`; `SandboxError` if it cannot start; and `SandboxError` once if the snapshot held it and
        this world cannot restore it.
        """
        ...

    async def background_processes(self) -> int:
        """The number of processes that live in the world beside its shell."""
        ...

    async def close(self) -> None:
        """End every process, drop unsealed changes, free the disk. May be called twice."""
        ...


@runtime_checkable
class Brokered(Protocol):
    """A world whose connections a broker makes."""

    @property
    def broker(self) -> EgressBroker | None:
        """None if the world was made without `WorldSpec.egress`."""
        ...


@runtime_checkable
class Hiding(Protocol):
    """A backend that can hide host files from its worlds. All of Ramify's can, except the one that isolates no
    files."""

    def hide(self, *places: Path) -> None:
        """Hide these files and folders in all worlds, whether or not they exist yet. Call before opening the
        backend."""
        ...


@dataclass(frozen=True, slots=True)
class KeptReady:
    """What a backend keeps ready for the forks of a snapshot."""

    places: int  # that wait, or soon will, each with an agent and a shell
    why_no_more: str = ""  # if they are fewer than were asked for


@runtime_checkable
class Foreseeing(Protocol):
    """A backend that starts what forks need before they are made, if it is told of them."""

    def foresee(self, snapshot: Snapshot, spec: WorldSpec, forks: int) -> KeptReady:
        """So many forks of a snapshot are about to be made. Returns at once; a failure only costs the time later."""
        ...

    def forget(self, snapshots: Collection[SnapshotId]) -> int:
        """No world will be forked from these snapshots, or rolled back to them, any more: end what waits for that.
        Returns how many places that frees."""
        ...


class Backend(AbstractAsyncContextManager["Backend"], Protocol):
    """Makes worlds. Entering it starts what the backend needs; leaving it ends all its worlds."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities:
        """What worlds of this backend can do. Cheap: availability was checked when the backend was opened."""
        ...

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        """Make a live world at `snapshot`, with its tree mounted. Its first `run` waits for the rest of its start.

        Raises `Unsupported` if the backend lacks a feature that `spec` requires, and `WorldStartFailed`.
        """
        ...

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        """Make `n` worlds at `snapshot`, all or none: if one fails, the others are closed.

        Raises as `materialise` does, and `ValueError` for a negative `n`.
        """
        ...
