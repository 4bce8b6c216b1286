"""The errors of the package `ramify.worlds`. `WorldError` is the root of the tree."""

from __future__ import annotations


class WorldError(Exception):
    """The root of this package's errors."""


class BadName(WorldError):
    """A name of a world or a tag is empty, too long, or has a character other than letters, digits, `.`, `_`, `-`."""


class NameTaken(WorldError):
    """A world or a tag of this name exists already."""


class WorldNotFound(WorldError):
    """No world, tag or snapshot has this name."""


class WorldInUse(WorldError):
    """Another process, or another `World` in this one, has the named world open."""


class WorldClosed(WorldError):
    """The world or its home was closed, or belongs to another process."""


class CommandFailed(WorldError):
    """A command that was run with `check=True` failed. `result` is its `RunResult`."""

    def __init__(self, message: str, result: object) -> None:
        super().__init__(message)
        self.result = result


class PathRefused(WorldError):
    """A path is missing, leads out of the world's tree, or is not a regular file or folder."""


class PortUnavailable(WorldError):
    """The host's address for an exposed port is taken, or may not be used."""


class NoCommonAncestor(WorldError):
    """Two states cannot be merged because no snapshot is an ancestor of both. Name one: `merge(…, base=…)`."""
