"""Open a backend by name. If it cannot run here, that is an error; no other backend is used instead."""

from __future__ import annotations

import os
from pathlib import Path

from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes import doctor
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.backends.docker.backend import DockerBackend
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import Backend
from ramify.sandboxes.errors import BackendUnavailable

NAMES = ("namespaces", "docker", "copy")


_places_of_worlds: set[tuple[int, int]] = set()
"""Where this process has found that worlds in namespaces can be made: the file system's device, and the user."""


def open_backend(name: str, store: SnapshotStore, scratch: Path) -> Backend:
    """The backend of this name, for `async with`. Blocks for a tenth of a second to check that it works here; worlds
    in namespaces are not tried again on a file system where this process has made some.

    Raises `BackendUnavailable` with the reason, also for an unknown name.
    """
    match name:
        case "namespaces":
            _require_namespaces(scratch)
            return NamespaceBackend(store, scratch)
        case "docker":
            able = doctor.docker()
            if not able.available:
                raise BackendUnavailable(f"worlds in containers cannot be made here: {able.reason}")
            return DockerBackend(store, scratch)
        case "copy":
            return CopyBackend(store, scratch)
        case _:
            raise BackendUnavailable(
                f"there is no sandbox backend {name!r}: choose one of {', '.join(NAMES)} (--sandbox, $RAMIFY_SANDBOX)"
            )


def _require_namespaces(scratch: Path) -> None:
    existing = next(folder for folder in (scratch.absolute(), *scratch.absolute().parents) if folder.exists())
    place = (existing.stat().st_dev, os.geteuid())
    if place in _places_of_worlds:
        return
    able = doctor.namespaces(scratch)
    if not able.available:
        raise BackendUnavailable(
            f"worlds in namespaces cannot be made here: {able.reason}. "
            "To run without isolation, on copies of the tree, use --sandbox copy"
        )
    _places_of_worlds.add(place)
