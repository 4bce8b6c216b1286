"""The words of the fork engine: entries, layers, snapshots, changes, conflicts.

Everything here is immutable. Paths are `str` relative to the world's root folder, `/`-separated, without a
leading slash, decoded with `os.fsdecode` (so a name that is not UTF-8 carries surrogate escapes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

LayerId = NewType("LayerId", str)
"""sha256, hex, of a layer's manifest (times included)."""

SnapshotId = NewType("SnapshotId", str)
"""sha256, hex, of everything that a restore brings back: layers (times and links included), environment, cwd."""

ContentKey = NewType("ContentKey", str)
"""sha256, hex, of what differs from the base by content, mode and type: no times, no volatile paths.
Serves reuse, never restore."""


class EntryKind(StrEnum):
    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    FIFO = "fifo"
    WHITEOUT = "whiteout"  # only in a layer's manifest: the path was removed


@dataclass(frozen=True, slots=True)
class Entry:
    """What one path is. `digest` is the sha256 of a file's bytes or of a link's target, "" for a folder."""

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
        """What the content key sees: kind, mode, digest."""
        return (self.kind.value, self.mode, self.digest)


class ProcessTier(StrEnum):
    """How much of a world's processes a snapshot kept. Always reported, never guessed."""

    NONE = "none"  # there were none beside the shell, whose environment and directory are kept
    DROPPED = "dropped"  # there were some: their files are kept, the processes are not


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable state of a world. `layers` are bottom first; layers[0] is the imported workspace."""

    id: SnapshotId
    layers: tuple[LayerId, ...]
    content_key: ContentKey
    env: Mapping[str, str] = field(default_factory=dict)  # what differs from the world's start environment
    env_unset: tuple[str, ...] = ()
    cwd: str = ""  # relative to the world's root folder
    tier: ProcessTier = ProcessTier.NONE

    @property
    def base(self) -> LayerId:
        return self.layers[0]


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


@dataclass(frozen=True, slots=True)
class Conflict:
    path: str  # a file's path, or the variable's name for ENV
    kind: ConflictKind
    detail: str = ""


class MergeStrategy(StrEnum):
    FAIL = "fail"  # any conflict that a line merge cannot settle is a MergeConflict
    OURS = "ours"
    THEIRS = "theirs"


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
