"""Names of worlds and tags of snapshots: one JSON file each, in `HOME/references`.

A file is written whole and renamed into place, so a crash leaves the old or the new one. `ramify gc` keeps every
snapshot that a reference names.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ramify import paths
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.store_folder import flush_folder, translate_disk_errors, write_durably
from ramify.fork_engine.types import SnapshotId
from ramify.sandboxes.egress.connection_log import ConnectionFiles
from ramify.worlds.errors import BadName, NameTaken, WorldError, WorldInUse, WorldNotFound

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Kind(StrEnum):
    WORLD = "worlds"
    TAG = "tags"


@dataclass(frozen=True, slots=True)
class Reference:
    """A name and the snapshot that it stands for. Times are Unix seconds."""

    name: str
    snapshot: SnapshotId
    created_at: float
    updated_at: float
    backend: str = ""  # of a world: the backend that it runs on
    mount_at: str = ""  # of a world: where its tree stands inside
    image: str = ""  # of a world: the path of its root file system, or the engine's name of it
    network: bool = False
    egress: tuple[str, ...] | None = None  # of a world: its allow-list; None: it has no broker
    credentials: tuple[str, ...] = ()  # of a world: the hosts that it has credentials for, never their values
    workdir: str = ""  # of a world over an image: where its commands start
    user: str = ""  # of a world over an image: its USER
    command_env: Mapping[str, str] = field(default_factory=dict)  # of a world over an image: its ENV
    dumpable: bool = False  # of a world: its snapshots keep all processes
    env: Mapping[str, str] = field(default_factory=dict)  # of a world: the variables that it was made with
    source: str = ""  # what it was made from, for people


class References:
    """The references of one home. `folder`: where they are kept; it need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, kind: Kind, name: str) -> Reference:
        """Raises `BadName`, `WorldNotFound`, and `WorldError` if the file is damaged."""
        path = self._path(kind, name)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            what, option = ("world", "") if kind is Kind.WORLD else ("tag", " --tags")
            raise WorldNotFound(
                f"no {what} is called {name!r} in {self._folder.parent}: `ramify world ls{option}` lists them"
            ) from None
        return _parsed(text, path)

    def all(self, kind: Kind) -> list[Reference]:
        """All references of a kind, newest first."""
        found = []
        for path in self._files(kind):
            with suppress(WorldNotFound):  # it was deleted meanwhile
                found.append(self.get(kind, path.stem))
        return sorted(found, key=lambda one: (-one.created_at, one.name))

    def put(self, kind: Kind, reference: Reference, *, new: bool = False) -> None:
        """Write a reference durably. Raises `StoreUnusable` if the disk is full; with `new`, `NameTaken` if the name
        exists."""
        path = self._path(kind, reference.name)
        try:
            with translate_disk_errors(self._folder):
                paths.make_private(path.parent)
                write_durably(path, json.dumps(asdict(reference)), new=new)
        except FileExistsError:
            what = "world" if kind is Kind.WORLD else "tag"
            raise NameTaken(f"a {what} is called {reference.name!r} already: choose another name") from None

    def delete(self, kind: Kind, name: str) -> None:
        """Raises `WorldNotFound`. The snapshots stay until `ramify gc`."""
        self.get(kind, name)
        path = self._path(kind, name)
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        if kind is Kind.WORLD:
            ConnectionFiles(self.connections(name)).remove()
        flush_folder(path.parent)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold a named world alone while the block runs; the kernel lets go of it when the process dies. Raises
        `WorldInUse`."""
        path = self._path(Kind.WORLD, name).with_suffix(".lock")
        paths.make_private(path.parent)
        while True:
            handle = open_lock(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(handle).st_nlink:
                    break
            except BlockingIOError:
                close_lock(handle)
                raise WorldInUse(
                    f"the world {name!r} is open elsewhere: close it there, or start another world "
                    f"from its last state: snapshot={name!r}"
                ) from None
            except BaseException:
                close_lock(handle)
                raise
            close_lock(handle)  # a world of this name was deleted meanwhile, and its lock with it
        try:
            yield
        finally:
            close_lock(handle)

    def connections(self, name: str) -> Path:
        """Where the connection log of a named world is kept, without an ending (`ConnectionFiles`). Raises
        `BadName`."""
        return self._path(Kind.WORLD, name).with_suffix("")

    def snapshots(self) -> set[SnapshotId]:
        """Every snapshot that a reference names."""
        return {one.snapshot for kind in Kind for one in self.all(kind)}

    def _files(self, kind: Kind) -> Iterator[Path]:
        folder = self._folder / kind
        if folder.is_dir():
            yield from (path for path in folder.iterdir() if path.suffix == ".json" and _NAME.fullmatch(path.stem))

    def _path(self, kind: Kind, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise BadName(
                f"{name!r} cannot be a name: use 1 to 100 letters, digits, '.', '_' or '-', and begin with a "
                "letter or digit"
            )
        return self._folder / kind / f"{name}.json"


def _parsed(text: bytes, path: Path) -> Reference:
    try:
        said: dict[str, Any] = json.loads(text)
        known = {name: said[name] for name in Reference.__slots__ if name in said}
        known |= {name: tuple(one) for name, one in known.items() if isinstance(one, list)}
        return _checked(Reference(**known))
    except (ValueError, TypeError, RecursionError) as error:
        raise WorldError(f"{path} is damaged: {error}. Delete it, or restore it from a backup") from error


def _checked(one: Reference) -> Reference:
    """The reference, if its fields have their types: the home may come from somebody else. Raises `TypeError`."""
    texts = (one.name, one.snapshot, one.backend, one.mount_at, one.image, one.workdir, one.user, one.source)
    pairs = (one.env, one.command_env)
    listed = (() if one.egress is None else one.egress, one.credentials)
    kinds: list[tuple[type, Iterable[object]]] = [
        (str, texts),
        (bool, (one.network, one.dumpable)),
        (tuple, listed),
        (dict, pairs),
        (str, (part for each in listed for part in each)),
        (str, (part for pair in pairs for item in pair.items() for part in item)),
    ]
    if not all(isinstance(value, kind) for kind, values in kinds for value in values):
        raise TypeError("a field has another type")
    if not (math.isfinite(one.created_at) and math.isfinite(one.updated_at)):
        raise TypeError("a time is not finite")
    return one
