"""One contract, several backends: what a world is and what it can be asked.

A backend materialises a snapshot into a live `World`; the world runs commands and seals itself into the next
snapshot. `tests/sandboxes/test_conformance.py` and `test_shells.py` hold every backend to this page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NewType, Protocol

from ramify.fork_engine.types import Snapshot

WorldId = NewType("WorldId", str)


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
    """

    mount_at: Path
    env: Mapping[str, str] = field(default_factory=dict)  # the start environment, whole: nothing is inherited
    visible: tuple[Path, ...] = ()
    max_output: int = 16 * 1024 * 1024  # bytes kept of each of stdout and stderr, a command


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do here. `reason` says why it cannot be used at all, and is empty where it can."""

    backend: str
    available: bool
    reason: str = ""
    isolation: bool = False  # the host's files cannot be written from inside
    network_isolation: bool = False
    fork_by_mount: bool = False  # a fork costs O(1), not a copy
    kills_process_tree: bool = False
    notes: tuple[str, ...] = ()


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

    async def seal(self) -> Snapshot:
        """Freeze what changed into a layer; the same snapshot where nothing did (files, environment, cwd).

        The world lives on, on top of the new layer.
        """
        ...

    async def rollback(self, snapshot: Snapshot) -> None:
        """Drop all changes and processes and stand at `snapshot`."""
        ...

    async def background_processes(self) -> int:
        """How many processes live in the world beside its shell."""
        ...

    async def close(self) -> None:
        """End every process, drop what is not sealed, free the disk. Safe to call twice."""
        ...


class Backend(AbstractAsyncContextManager["Backend"], Protocol):
    """Makes worlds. Entering it starts what the backend needs; leaving it ends every world it made."""

    @property
    def name(self) -> str: ...

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        """A live world standing at `snapshot`. This is what a fork costs."""
        ...
