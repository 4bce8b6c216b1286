"""The data types of the fork engine: entries, layers, snapshots, changes, conflicts.

Everything here is immutable. Paths are `str` relative to the world's root folder, `/`-separated, without a leading
slash, decoded with `os.fsdecode` (so a name that is not UTF-8 has surrogate escapes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

LayerId = NewType("LayerId", str)
"""sha256, in hex, of a layer's manifest (times included)."""

SnapshotId = NewType("SnapshotId", str)
"""sha256, in hex, of everything that a restore brings back: layers (times and links included), environment,
directory."""

ContentKey = NewType("ContentKey", str)
"""sha256, in hex, of what differs from the base in content, mode, type and attributes, without times and volatile
paths. Used for reuse, never to restore."""


class EntryKind(StrEnum):
    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    FIFO = "fifo"
    WHITEOUT = "whiteout"  # only in a layer's manifest: the path was removed


@dataclass(frozen=True, slots=True)
class Entry:
    """What is at one path. `digest` is that of a file's bytes or of a link's target, "" for a folder."""

    kind: EntryKind
    mode: int = 0  # permission bits only (S_IMODE)
    size: int = 0
    mtime_ns: int = 0
    digest: str = ""
    target: str = ""  # a symlink's target
    opaque: bool = False  # only in a layer's manifest: the folder hides the content of lower layers
    xattrs: tuple[tuple[str, str], ...] = ()  # (name, hex value), sorted, without overlayfs's own
    link: str = ""  # for hard links: the first path (sorted) of the same inode, "" for that path itself

    @property
    def content(self) -> tuple[str, int, str]:
        """Kind, mode, digest."""
        return (self.kind.value, self.mode, self.digest)


WHITEOUT = Entry(EntryKind.WHITEOUT)  # has no other fields, so that all of them are equal


class ProcessTier(StrEnum):
    """How much of a world's processes a snapshot kept. Always reported, never guessed."""

    NONE = "none"  # only the shell ran; its environment and directory are kept
    DROPPED = "dropped"  # others ran: their files are kept, the processes are not
    COMMANDS = "commands"  # recorded start-up commands are kept and run again
    REPL = "repl"  # Python sessions are kept in `image`; other processes are in `dropped` or `commands`
    CRIU = "criu"  # all processes were dumped by CRIU
    TREE = "tree"  # all processes are kept in Ramify's own images, whose pages forks share

    @property
    def whole(self) -> bool:
        """Whether every process was kept, the shell among them."""
        return self in (ProcessTier.CRIU, ProcessTier.TREE)


@dataclass(frozen=True, slots=True)
class Processes:
    """What a snapshot kept of the world's processes. Part of its id, except `reason`."""

    tier: ProcessTier = ProcessTier.NONE
    shell: str = ""  # digest of the blob with the shell's whole state; "" for a new shell
    image: str = ""  # id of a folder of process images (REPL, CRIU, TREE); "" if there is none
    commands: tuple[str, ...] = ()  # commands that start the processes again (COMMANDS)
    dropped: int = 0  # number of processes that were not kept
    reason: str = field(default="", compare=False)  # why the tier is not higher, for people
    shells: tuple[tuple[str, str], ...] = ()  # named shells beside it: name and digest of the blob, sorted by name

    @property
    def blobs(self) -> tuple[str, ...]:
        """The digests of all blobs that are needed."""
        return tuple(digest for digest in (self.shell, *(digest for _, digest in self.shells)) if digest)

    @property
    def declared(self) -> bool:
        """Whether the snapshot declares all that will run in its forks, so that their results can be reused."""
        return self.tier in (ProcessTier.NONE, ProcessTier.COMMANDS) and not self.dropped


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Snapshot:
    """An immutable state of a world. Stacks are ordered from the bottom; layers[0] is the imported workspace."""

    id: SnapshotId
    layers: tuple[LayerId, ...]  # the workspace
    content_key: ContentKey  # "" while undeclared processes live: nothing is reused then
    env: Mapping[str, str] = field(default_factory=dict)  # what differs from the world's start environment
    env_unset: tuple[str, ...] = ()
    cwd: str = ""  # relative to the world's root folder
    processes: Processes = Processes()
    # everything outside the workspace, paths relative to "/", over the host or `image`
    outside: tuple[LayerId, ...] = ()
    image: LayerId | None = None  # root file system of the world; None is the host's
    image_layers: int = 0  # of an OCI image: how many of the lowest layers of `outside` belong to it
    parents: tuple[SnapshotId, ...] = field(default=(), compare=False)
    """What it was first made from: one parent for a seal, (ours, theirs) for a merge. Not part of the id."""
    merges: tuple[tuple[SnapshotId, ...], ...] = field(default=(), compare=False)
    """(ours, theirs) of later merges with the same result. Not part of the id."""

    @property
    def base(self) -> LayerId:
        return self.layers[0]

    @property
    def image_stack(self) -> tuple[LayerId, ...]:
        """The layers of the image, lowest first."""
        return () if self.image is None else (self.image, *self.outside[: self.image_layers])

    @property
    def all_layers(self) -> tuple[LayerId, ...]:
        """The layers that its files need: of the workspace, of what is outside it, and of the image."""
        return (*self.layers, *self.outside, *(() if self.image is None else (self.image,)))

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


@dataclass(frozen=True, slots=True)
class Withheld:
    """A path that a checkout left out, or whose set-uid bit it cleared, and the reason. See `active_files`."""

    path: str
    reason: str


class Written(list[Change]):
    """What a checkout changed in a folder, and what it withheld."""

    def __init__(self, changes: Iterable[Change] = (), withheld: tuple[Withheld, ...] = ()) -> None:
        super().__init__(changes)
        self.withheld = withheld


class ConflictKind(StrEnum):
    BOTH_CHANGED = "both changed"
    CHANGED_REMOVED = "changed against removed"
    TYPE = "type"
    MODE = "mode"
    ENV = "environment"
    PROCESSES = "process state"


@dataclass(frozen=True, slots=True)
class Conflict:
    path: str  # a file's path ("/…" outside the workspace), a variable's name or "cwd" (ENV), or "processes"
    kind: ConflictKind
    detail: str = ""


class MergeStrategy(StrEnum):
    """What to do with a conflict that a three-way merge, including the merge by line, cannot resolve."""

    FAIL = "fail"  # raise `MergeConflict`
    OURS = "ours"
    THEIRS = "theirs"
    UNION = "union"  # keep both: the lines and mode bits of either side, and what one side removed; else as FAIL


Resolver = Callable[[Conflict, bytes | None, bytes | None, bytes | None], bytes | MergeStrategy]
"""A function that is asked for each conflict: (the conflict, what base, ours and theirs hold: the bytes of a file of
at most 64 MiB, a link's target, a variable's value; None for anything else). It returns the bytes to put there, or a
strategy for this conflict."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path of an imported folder that a snapshot cannot hold, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    snapshot: Snapshot
    skipped: tuple[Skipped, ...]
    files: int
    bytes: int
