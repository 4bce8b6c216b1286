"""Snapshot records on disk (`snapshots/<id>.json`, each with a checksum) and the blobs that they name; snapshot ids
(exact, for restoring) and content keys (by content, for reuse)."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.fork_engine import crash_points
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.manifest import MALFORMED, Manifest, canonical_json
from ramify.fork_engine.store_folder import ID, StoreFolder, flush_folder, make_folder, read_store_file, write_new
from ramify.fork_engine.types import ContentKey, Entry, LayerId, Processes, ProcessTier, Snapshot, SnapshotId
from ramify.fork_engine.view import View

FORMAT = 2
READ = (1, 2)  # formats of records that this version reads
MERGES = 64
"""How many later merges a record names. Each addition rewrites the record, and nothing is computed from them."""

UNNAMED_GRACE_S = 3600.0
"""Seconds for which a blob or process image that no snapshot names is kept: its snapshot may be about to be written.
"""

DEFAULT_VOLATILE: tuple[str, ...] = (
    "**/__pycache__",
    "**/*.pyc",
    "**/.pytest_cache",
    "**/.mypy_cache",
    "**/.ruff_cache",
    "**/.coverage",
    "**/.coverage.*",
)
"""Files that tools leave behind routinely. Content keys leave them out; snapshots hold them."""


class VolatileGlobs:
    """Globs that match whole paths: `*` and `?` match within a name, `**/` any number of folders. A match includes
    everything below it."""

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._pattern = re.compile("|".join(_translate(glob) for glob in globs) or r"(?!)", re.DOTALL)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self._pattern.fullmatch(path) is not None


def _translate(glob: str) -> str:
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.strip("/"))
    return "(?:" + "".join(tokens.get(part, re.escape(part)) for part in parts) + ")(?:/.*)?"


VOLATILE_OUTSIDE = VolatileGlobs(("tmp", "var/tmp", "run", "**/.cache", *DEFAULT_VOLATILE))
"""Default volatile globs outside the workspace: temporary folders and caches."""

UNDEFINED = ContentKey("")
"""The content key of a state with undeclared processes: nothing can be reused from it."""


def snapshot_id(state: Snapshot) -> SnapshotId:
    """Return the digest of everything that a restore brings back.

    Fields that format version 1 did not have are included only if they are set, so that the ids of version 1 stay
    valid.
    """
    return SnapshotId(digest_bytes(canonical_json(identity(state))))


def identity(state: Snapshot) -> dict[str, object]:
    """Return the fields that the id is the digest of, as docs/snapshot-format.md defines them."""
    spelled: dict[str, object] = {
        "layers": state.layers,
        "env": dict(state.env),
        "env_unset": sorted(state.env_unset),
        "cwd": state.cwd,
        "tier": state.processes.tier.value,
    }
    ran = state.processes
    later: dict[str, object] = {
        "outside": state.outside,
        "image": state.image,
        "image_layers": state.image_layers,
        "shell": ran.shell,
        "shells": ran.shells,
        "process_image": ran.image,
        "commands": ran.commands,
        "dropped": ran.dropped,
    }
    return spelled | {name: value for name, value in later.items() if value}


def base_digest(base: Manifest, volatile: VolatileGlobs) -> str:
    """Digest an imported folder without times and volatile paths: equal folders have equal digests, whenever they
    were imported."""
    files = _lines(((path, base.entries[path]) for path in base.paths), volatile)
    return digest_bytes(canonical_json([_content(base.root), files]))


@dataclass(frozen=True, slots=True)
class StackViews:
    """A state's two stacks as views, and the digests of their bases for the content key."""

    view: View
    base: str  # the `base_digest` of the view's base
    outside: View | None = None
    image: str = ""  # the `base_digest` of the image, all its layers stacked


def content_key(state: Snapshot, stacks: StackViews, volatile: VolatileGlobs) -> ContentKey:
    """Return the content key, or `UNDEFINED` if the processes are not declared. Costs the paths changed since the
    base."""
    if not state.processes.declared:
        return UNDEFINED
    spelled: dict[str, object] = {
        "base": stacks.base,
        "root": _content(stacks.view.root),
        "files": _differing(stacks.view, volatile),
        "env": dict(state.env),
        "env_unset": sorted(state.env_unset),
        "cwd": state.cwd,
    }
    later: dict[str, object] = {
        "outside": _differing(stacks.outside, VOLATILE_OUTSIDE) if stacks.outside is not None else [],
        "image": stacks.image,
        "shell": state.processes.shell,
        "shells": state.processes.shells,
        "commands": state.processes.commands,
    }
    return ContentKey(digest_bytes(canonical_json(spelled | {name: value for name, value in later.items() if value})))


def _differing(view: View, volatile: VolatileGlobs) -> list[object]:
    """Return the paths whose content differs from the view's base."""
    changed = sorted(path for path in view.delta if _content(view.get(path)) != _content(view.base.entries.get(path)))
    return _lines(((path, view.get(path)) for path in changed), volatile)


def _content(entry: Entry | None) -> tuple[object, ...] | None:
    """Return what a program can see at a path, without times and hard links."""
    if entry is None:
        return None
    return (*entry.content, entry.xattrs) if entry.xattrs else entry.content


def _lines(entries: Iterable[tuple[str, Entry | None]], volatile: VolatileGlobs) -> list[object]:
    return [(path, _content(entry)) for path, entry in entries if path not in volatile]


class Snapshots:
    def __init__(self, folder: StoreFolder) -> None:
        self._store = folder
        self._folder = folder.root / "snapshots"
        make_folder(self._folder)

    def __iter__(self) -> Iterator[SnapshotId]:
        return iter(sorted(SnapshotId(path.stem) for path in self._records()))

    def _records(self) -> list[Path]:
        return [path for path in self._folder.glob("*.json") if ID.fullmatch(path.stem)]

    def older_than(self, seconds: float) -> list[SnapshotId]:
        """Return the snapshots whose record is older than `seconds`, or dated in the future (clock set back)."""
        now = time.time()
        paths = self._records()
        return sorted(SnapshotId(path.stem) for path in paths if not 0 <= now - path.stat().st_mtime < seconds)

    def save(self, snapshot: Snapshot, volatile: tuple[str, ...]) -> bool:
        """Write a snapshot's record. Returns False if another process wrote it meanwhile, whose record is kept.

        The caller has held the store's lock since it made or found the snapshot's layers.
        """
        with self._store.temporary() as aside:
            write_new(aside / "made", encode(snapshot, volatile))
            with self._writing():
                with suppress(SnapshotNotFound, SnapshotCorrupt):
                    self.load(snapshot.id)
                    return False
                self._store.place(aside / "made", "snapshots", f"{snapshot.id}.json")
        crash_points.point("snapshot")
        return True

    def note_merge(self, id: SnapshotId, parents: tuple[SnapshotId, ...]) -> None:
        """Add the parents of another merge with the same result to the snapshot's record, up to `MERGES` of them.

        The record is on disk when this returns, because the one that it replaces may have been. The caller holds the
        store's lock.
        """
        with self._writing():
            snapshot, volatile = self.load(id)
            if parents in (snapshot.parents, *snapshot.merges) or len(snapshot.merges) >= MERGES:
                return
            with self._store.temporary() as aside:
                made = aside / "made"
                write_new(made, encode(replace(snapshot, merges=(*snapshot.merges, parents)), volatile))
                with made.open("rb") as file:
                    os.fsync(file.fileno())
                made.rename(self._path(id))
            flush_folder(self._folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Let one writer at a time rewrite records, so that no change is lost."""
        fd = open_lock(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            close_lock(fd)

    def load(self, id: SnapshotId) -> tuple[Snapshot, tuple[str, ...]]:
        """Return the snapshot, and the volatile globs that its content key was computed with."""
        if not ID.fullmatch(id):
            raise SnapshotNotFound(f"{id!r} is not a snapshot id, which has 64 hexadecimal digits")
        try:
            return decode(read_store_file(self._path(id)), id)
        except FileNotFoundError:
            raise SnapshotNotFound(f"snapshot {id} is not in the store {self._store.root}") from None

    def encoded(self, id: SnapshotId) -> bytes:
        """Return a record's bytes, verified. Raises `SnapshotNotFound`, `SnapshotCorrupt`."""
        self.load(id)
        return read_store_file(self._path(id))

    def remove(self, ids: Iterable[SnapshotId]) -> None:
        """Delete records. The deletion is on disk when this returns, so that what they named may be deleted next."""
        for id in ids:
            self._path(id).unlink(missing_ok=True)
        flush_folder(self._folder)

    def _path(self, id: SnapshotId) -> Path:
        return self._folder / f"{id}.json"


def encode(snapshot: Snapshot, volatile: tuple[str, ...]) -> bytes:
    fields = {
        **identity(snapshot),
        "format": FORMAT,
        "content_key": snapshot.content_key,
        "volatile": volatile,
        "parents": snapshot.parents,
        "reason": snapshot.processes.reason,
        **({"merges": snapshot.merges} if snapshot.merges else {}),
    }
    return canonical_json({**fields, "check": digest_bytes(canonical_json(fields))})


def decode(encoded: bytes, id: SnapshotId) -> tuple[Snapshot, tuple[str, ...]]:
    """Decode a record: the snapshot, and the volatile globs of its content key. Raises `SnapshotCorrupt`."""
    try:
        raw = json.loads(encoded)
        if encoded != canonical_json(raw) or raw.pop("check") != digest_bytes(canonical_json(raw)):
            raise _corrupt(id)
        if raw["format"] not in READ:
            raise SnapshotCorrupt(
                f"snapshot {id}: format {raw['format']!r}, this version of Ramify reads up to {FORMAT}"
            )
        snapshot, volatile = fields_of(raw, id), tuple(raw["volatile"])
        if snapshot_id(snapshot) != id:
            raise _corrupt(id)
    except MALFORMED:
        raise _corrupt(id) from None
    return snapshot, volatile


def fields_of(raw: dict[str, Any], id: SnapshotId) -> Snapshot:
    """Return a record's fields, unchecked."""
    image_layers = raw.get("image_layers", 0)
    if not isinstance(image_layers, int) or not 0 <= image_layers <= len(raw.get("outside", ())):
        raise ValueError(image_layers)
    return Snapshot(
        id=id,
        layers=tuple(LayerId(layer) for layer in raw["layers"]),
        content_key=ContentKey(raw["content_key"]),
        env=raw["env"],
        env_unset=tuple(raw["env_unset"]),
        cwd=raw["cwd"],
        processes=_processes(raw),
        outside=tuple(LayerId(layer) for layer in raw.get("outside", ())),
        image=LayerId(raw["image"]) if "image" in raw else None,
        image_layers=image_layers,
        parents=tuple(SnapshotId(parent) for parent in raw.get("parents", ())),
        merges=tuple(tuple(SnapshotId(side) for side in sides) for sides in raw.get("merges", ())),
    )


def _processes(raw: dict[str, Any]) -> Processes:
    return Processes(
        tier=ProcessTier(raw["tier"]),
        shell=raw.get("shell", ""),
        shells=tuple((name, digest) for name, digest in raw.get("shells", ())),
        image=raw.get("process_image", ""),
        commands=tuple(raw.get("commands", ())),
        dropped=raw.get("dropped", 0),
        reason=raw.get("reason", ""),
    )


def _corrupt(id: SnapshotId) -> SnapshotCorrupt:
    return SnapshotCorrupt(
        f"snapshot {id}: its record does not match its digest. Delete it and go back to another snapshot"
    )


class Blobs:
    """The blobs in the store's `blobs/` folder: bytes named by their digest, such as the state of a shell."""

    def __init__(self, folder: StoreFolder) -> None:
        self._store = folder
        self._folder = folder.root / "blobs"
        make_folder(self._folder)

    def __contains__(self, digest: str) -> bool:
        return ID.fullmatch(digest) is not None and (self._folder / digest).exists()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.name for path in self._folder.iterdir() if ID.fullmatch(path.name)))

    def put(self, data: bytes) -> str:
        digest = digest_bytes(data)
        with self._store.lock():
            if digest in self:
                os.utime(self._folder / digest)
            else:
                with self._store.temporary() as aside:
                    write_new(aside / "made", data)
                    self._store.place(aside / "made", "blobs", digest)
        return digest

    def get(self, digest: str) -> bytes:
        """Return a blob's bytes. Raises `SnapshotCorrupt` if it is missing or does not match its digest."""
        try:
            data = read_store_file(self._folder / digest)
        except FileNotFoundError:
            raise _missing(digest) from None
        if digest_bytes(data) != digest:
            raise SnapshotCorrupt(f"blob {digest} does not match its digest. Delete the snapshots that name it")
        return data

    def size(self, digest: str) -> int:
        """Return a blob's size. Raises `SnapshotCorrupt` if it is missing."""
        try:
            return (self._folder / digest).stat().st_size
        except FileNotFoundError:
            raise _missing(digest) from None

    def remove_unnamed(self, named: set[str]) -> int:
        """Delete the blobs that are not in `named` and return the bytes freed. The caller holds the store's lock
        exclusively."""
        freed = 0
        for digest in self:
            path = self._folder / digest
            status = path.stat()
            if digest not in named and time.time() - status.st_mtime > UNNAMED_GRACE_S:
                path.unlink()
                crash_points.point("removed")
                freed += status.st_blocks * 512
        return freed


def _missing(digest: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"blob {digest} is missing. Delete the snapshots that name it")
