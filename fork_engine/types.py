"""The words of the fork engine: entries, layers, snapshots, changes, conflicts.

Everything here is immutable. Paths are `str` relative to the world's root folder, `/`-separated, without a
leading slash, decoded with `os.fsdecode` (so a name that is not UTF-8 carries surrogate escapes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

LayerId = NewType("LayerId", str)
"""sha256, hex, of a layer's manifest (times included)."""

SnapshotId = NewType("SnapshotId", str)
"""sha256, hex, of everything that a restore brings back: layers (times and links included), environment, cwd."""

ContentKey = NewType("ContentKey", str)
"""sha256, hex, of what differs from the base by content, mode, type and attributes: no times, no volatile paths.
Serves reuse, never restore."""


class EntryKind(StrEnum):
    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    FIFO = "fifo"
    WHITEOUT = "whiteout"  # only in a layer's manifest: the path was removed


@dataclass(frozen=True, slots=True)
class Entry:
    """What one path is. `digest` is of a file's bytes or of a link's target, "" for a folder."""

    kind: EntryKind
    mode: int = 0  # permission bits only (S_IMODE)
    size: int = 0
    mtime_ns: int = 0
    digest: str = ""
    target: str = ""  # a symlink's target
    opaque: bool = False  # only in a layer's manifest: the folder hides what the layers below it hold
    xattrs: tuple[tuple[str, str], ...] = ()  # (name, hex value), sorted; overlay's own are left out
    link: str = ""  # hard links: the first path (sorted) of the same inode, "" for that path itself

    @property
    def content(self) -> tuple[str, int, str]:
        """Kind, mode, digest."""
        return (self.kind.value, self.mode, self.digest)


class ProcessTier(StrEnum):
    """How much of a world's processes a snapshot kept. Always reported, never guessed."""

    NONE = "none"  # there were none beside the shell, whose environment and directory are kept
    DROPPED = "dropped"  # there were some: their files are kept, the processes are not
    COMMANDS = "commands"  # their recorded start-up commands are kept and run again
    REPL = "repl"  # its Python sessions are kept, in `image`; what else ran is in `dropped` or `commands`
    CRIU = "criu"  # dumped whole


@dataclass(frozen=True, slots=True)
class Processes:
    """What a snapshot kept of what ran. Part of its id, but for `reason`."""

    tier: ProcessTier = ProcessTier.NONE
    shell: str = ""  # digest of a blob: the shell's whole state; "" is a fresh shell
    image: str = ""  # id of a folder of process images (REPL, CRIU); "" where there is none
    commands: tuple[str, ...] = ()  # what starts again what ran (COMMANDS)
    dropped: int = 0  # processes that were not kept
    reason: str = field(default="", compare=False)  # why the tier is not higher, for people

    @property
    def declared(self) -> bool:
        """Whether the snapshot says all that will run in its forks: then what they do can be reused."""
        return self.tier in (ProcessTier.NONE, ProcessTier.COMMANDS) and not self.dropped


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable state of a world. Stacks are bottom first; layers[0] is the imported workspace."""

    id: SnapshotId
    layers: tuple[LayerId, ...]  # the workspace
    content_key: ContentKey  # "" while processes live that nothing declares: no reuse then
    env: Mapping[str, str] = field(default_factory=dict)  # what differs from the world's start environment
    env_unset: tuple[str, ...] = ()
    cwd: str = ""  # relative to the world's root folder
    processes: Processes = Processes()
    outside: tuple[LayerId, ...] = ()  # all beside the workspace, paths relative to "/": over the host, or `image`
    image: LayerId | None = None  # the root file system that the world stands on; None is the host's
    parents: tuple[SnapshotId, ...] = field(default=(), compare=False)
    """What it was first made from: one for a seal, (ours, theirs) for a merge. No part of the id."""
    merges: tuple[tuple[SnapshotId, ...], ...] = field(default=(), compare=False)
    """(ours, theirs) of the first merges that came to the same state when it was there already."""

    @property
    def base(self) -> LayerId:
        return self.layers[0]

    @property
    def tier(self) -> ProcessTier:
        return self.processes.tier


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    MODIFIED = "modified"  # contents
    TYPE = "type"
    MODE = "mode"


@dataclass(frozen=True, slots=True)
class Change:
    path: str
    kind: ChangeKind
    before: Entry | None
    after: Entry | None


class ConflictKind(StrEnum):
    BOTH_CHANGED = "both changed"
    CHANGED_REMOVED = "changed against removed"
    TYPE = "type"
    MODE = "mode"
    ENV = "environment"
    PROCESSES = "process state"


@dataclass(frozen=True, slots=True)
class Conflict:
    path: str  # a file's path, "/…" beside the workspace; for ENV the variable's name, or "cwd"; or "processes"
    kind: ConflictKind
    detail: str = ""


class MergeStrategy(StrEnum):
    """What becomes of a conflict that neither a line merge nor the rest of a three-way merge settles."""

    FAIL = "fail"  # it is a `MergeConflict`
    OURS = "ours"
    THEIRS = "theirs"
    UNION = "union"  # both: lines of either side, mode bits of either, what one removed is kept; else as FAIL


Resolver = Callable[[Conflict, bytes | None, bytes | None, bytes | None], bytes | MergeStrategy]
"""Asked for each conflict: (it, what base, ours and theirs hold there: bytes of a file, a link's target, a variable's
value; None for anything else). Answers with the bytes to put there, or with a strategy for this one."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path of an imported folder that a snapshot cannot hold, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    snapshot: Snapshot
    skipped: tuple[Skipped, ...]
    files: int
    bytes: int
