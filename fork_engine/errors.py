"""The errors of the fork engine.

ForkEngineError
├── WorkspaceError        a folder cannot be imported: missing, not a folder, unreadable
├── ImageError            a root file system cannot be imported: missing, damaged, or hostile
├── StoreUnusable         the store's disk is full, read-only, failing, or not ours
├── SnapshotNotFound      the store has no snapshot of that id
├── SnapshotCorrupt       a layer or manifest does not match its digest, or is missing
├── PathNotFound          the snapshot holds no such file
├── CheckoutRefused       the destination must not be overwritten
├── MergeConflict         both sides changed the same thing; `.conflicts` lists them
└── RemoteError           the remote tier of a store, in a bucket
    ├── RemoteUnusable        it cannot be reached, refuses, or is not configured
    ├── CredentialsRefused    the credentials are missing, expired, or not allowed to do this
    ├── ClockOff              the bucket refuses requests because this machine's clock is wrong
    ├── ForeignBucket         the bucket belongs to another store, or to something else
    ├── RemoteObjectMissing   the bucket lacks a snapshot or one of its objects
    └── RemoteObjectAltered   an object in the bucket does not match its digest
"""

from __future__ import annotations

from ramify.fork_engine.types import Conflict


class ForkEngineError(Exception):
    """Base class of the fork engine's errors."""


class WorkspaceError(ForkEngineError):
    """A folder cannot be imported as it is."""


class ImageError(ForkEngineError):
    """A root file system (a folder or a tar) cannot be imported as it is."""


class StoreUnusable(ForkEngineError):
    """The store's disk is full, read-only, failing, or not ours."""


class SnapshotNotFound(ForkEngineError):
    """The store has no snapshot of that id."""


class SnapshotCorrupt(ForkEngineError):
    """A file in the store does not match the digest that names it."""


class PathNotFound(ForkEngineError):
    """The snapshot holds no such file."""


class CheckoutRefused(ForkEngineError):
    """The destination cannot be written without losing something."""


class MergeConflict(ForkEngineError):
    """Both sides changed the same thing in incompatible ways."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        self.conflicts = conflicts
        shown = "; ".join(f"{c.path} ({c.kind.value})" for c in conflicts[:5])
        more = f" and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
        super().__init__(
            f"{len(conflicts)} conflict(s): {shown}{more}. Merge with a strategy ('ours', 'theirs', 'union'; "
            "`--strategy` on the command line) or with a function that resolves them, or change one side"
        )


class RemoteError(ForkEngineError):
    """The base class of errors of a store's remote tier. The local store is unchanged."""


class RemoteUnusable(RemoteError):
    """The bucket cannot be reached, refuses a request, or is not configured."""


class CredentialsRefused(RemoteError):
    """The bucket refuses the credentials: missing, expired, or without the permission."""


class ClockOff(RemoteError):
    """The bucket refuses requests because this machine's clock is wrong."""


class ForeignBucket(RemoteError):
    """The bucket belongs to another store, or holds something else."""


class RemoteObjectMissing(RemoteError):
    """The bucket lacks a snapshot, or an object of one."""


class RemoteObjectAltered(RemoteError):
    """An object in the bucket does not match the digest that names its content."""
