"""Find the damage in a store: compare everything in it with the digest that names it, and the modes and owners of the
store's own files with what they have to be.

A tree is damaged if it and its manifest differ in anything: bytes, size, kind, mode, time, attributes, links, opaque
folders, whiteouts. docs/snapshot-format.md lists what a store may hold.

Modes and owners say who can read what worlds left, and whether worlds can overwrite it. The files of a layer have the
modes that the world gave them, including set-id bits. Other users cannot run them because the store's folders are
closed to them. A world of an ordinary user cannot copy up a file that another user owns. `restore_permissions` is the
only function here that writes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError, SnapshotCorrupt, SnapshotNotFound, StoreUnusable
from ramify.fork_engine.filesystem.openat import folder
from ramify.fork_engine.filesystem.scan import OPAQUE, Scan, scan_upper
from ramify.fork_engine.importer import read_index
from ramify.fork_engine.layers import Layers
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.store_folder import (
    FILE_MODE,
    FOLDER_MODE,
    ID,
    TREE_MODE,
    StoreFolder,
    read_store_file,
    write_new,
)
from ramify.fork_engine.store_parts import OpenStore, Part, needed_by
from ramify.fork_engine.types import ContentKey, Entry, LayerId, Snapshot, SnapshotId

FOLDERS = ("layers", "images", "blobs", "snapshots", "index", "tmp", "unflushed")
TREES = ("layers", "images")
_FILES = ("blobs", "snapshots", "index")
_SHUT = stat.S_IRWXG | stat.S_IRWXO | stat.S_IXUSR | stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


def owner(root: Path) -> int:
    """Return the store's owner: the owner of most of its folders, since a single one may have been given away."""
    found = [(root / name).lstat().st_uid for name in FOLDERS if (root / name).is_dir()]
    return Counter(found).most_common(1)[0][0] if found else os.geteuid()


def wrong_permissions(root: Path) -> Iterator[tuple[str, str, str, str]]:
    """Find wrong modes and owners of the store's own files: (folder, name, path, what is wrong). Reads only.

    The folder is "" for names at the top. In a tree the path is "manifest.json" or "".
    """
    mine = owner(root)
    for name in FOLDERS:
        link = "a link: move the folder here" if (root / name).is_symlink() else ""
        if wrong := link or _wrong(root / name, stat.S_IFDIR, FOLDER_MODE, mine):
            yield "", name, "", wrong
    if wrong := _shut(root / "lock", mine):
        yield "", "lock", "", wrong
    for kind in TREES:
        for name in _files_in(root / kind):
            if wrong := _wrong(root / kind / name, stat.S_IFDIR, TREE_MODE, mine):
                yield kind, name, "", wrong
            if wrong := _wrong(root / kind / name / "manifest.json", stat.S_IFREG, FILE_MODE, mine):
                yield kind, name, "manifest.json", wrong
    for kind in _FILES:
        for name in _files_in(root / kind):
            if wrong := _wrong(root / kind / name, stat.S_IFREG, FILE_MODE, mine):
                yield kind, name, "", wrong


def _files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _wrong(path: Path, kind: int, mode: int, mine: int) -> str:
    """Describe a wrong mode or owner; "" if the path is missing or of another kind, which other checks report."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""
    if stat.S_IFMT(status.st_mode) != kind:
        return ""
    found = stat.S_IMODE(status.st_mode)
    differences = [f"mode {found:04o}, not {mode:04o}"] if found != mode else []
    differences += [f"owner {status.st_uid}, not {mine}"] if status.st_uid != mine else []
    return "; ".join(differences)


def _shut(lock: Path, mine: int) -> str:
    """Describe a wrong mode of the lock file. In a store that is only read, even its owner may lack access; others
    never have any."""
    status = lock.lstat()
    found = stat.S_IMODE(status.st_mode)
    differences = [f"mode {found:04o}, not 0600"] if found & _SHUT else []
    differences += [f"owner {status.st_uid}, not {mine}"] if status.st_uid != mine else []
    return "; ".join(differences)


def restore_permissions(folder: StoreFolder) -> None:
    """Set the right mode and owner wherever `wrong_permissions` finds a wrong one. What is not permitted is left.

    Raises `StoreUnusable` for root in another user's store: what root repaired would belong to root, and that user's
    worlds could not overwrite it.
    """
    root, mine = folder.root, owner(folder.root)
    if os.geteuid() == 0 != mine:
        raise StoreUnusable(f"the store {root} belongs to user {mine}. Run `ramify fsck --repair` as that user")
    for kind, name, inner, _ in list(wrong_permissions(root)):
        path = root / kind / name / inner
        if path.is_symlink():
            continue
        mode = 0o600 if not kind and name == "lock" else FOLDER_MODE if not kind else FILE_MODE
        if kind in TREES and not inner:
            mode = TREE_MODE
        try:
            if path.lstat().st_uid != mine:
                _take(path, mine, folder)
            path.chmod(mode)
        except PermissionError:
            continue  # the following check reports it


def _take(path: Path, mine: int, folder: StoreFolder) -> None:
    """Take over a file that another user owns: replace it by our copy. Raises PermissionError."""
    if os.geteuid() == 0:
        os.chown(path, mine, -1, follow_symlinks=False)
        return
    if path.is_dir() or path.name == "lock":
        raise PermissionError(path)
    with folder.temporary() as aside:
        write_new(aside / path.name, read_store_file(path))
        (aside / path.name).rename(path)


class Damage(StrEnum):
    MISSING = "missing"
    EXTRA = "not the store's"
    CHANGED = "changed"
    UNREADABLE = "unreadable"
    MANIFEST = "bad manifest"
    RECORD = "bad record"
    # wrong mode or owner of a file or folder of the store itself: others get in, or we are kept out
    MODE = "not as the store makes it"
    LEFTOVER = "left by a crash"  # harmless: only takes space
    INDEX = "bad index"  # harmless: only costs time


HARMLESS = frozenset({Damage.LEFTOVER, Damage.INDEX})


@dataclass(frozen=True, slots=True)
class Problem:
    part: Part
    name: str  # id of a layer or snapshot, or name of a file
    damage: Damage
    path: str = ""  # path inside the layer; "." is its top folder
    detail: str = ""

    def __str__(self) -> str:
        where = f"{self.part.value}/{self.name}" if self.part is not Part.STORE else self.name
        inside = f": {self.path!r}" if self.path else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{where}{inside}: {self.damage.value}{detail}"


@dataclass(slots=True)
class CheckFindings:
    problems: list[Problem] = field(default_factory=list)
    checked: dict[Part, int] = field(default_factory=dict)
    scans: dict[tuple[Part, str], Scan] = field(default_factory=dict)  # of each tree that can be read
    manifests: dict[tuple[Part, str], Manifest] = field(default_factory=dict)
    snapshots: dict[SnapshotId, Snapshot] = field(default_factory=dict)  # of each record whose digests match
    volatile: dict[SnapshotId, tuple[str, ...]] = field(default_factory=dict)  # globs left out of its content key

    def bad(self, part: Part) -> set[str]:
        """Return the names in a part that have a problem."""
        return {p.name for p in self.problems if p.part is part}


_TOP = {part.value for part in Part if part is not Part.STORE} | {"unflushed", "damaged", "lock"}


Key = Callable[[Snapshot, tuple[str, ...]], ContentKey]
"""Computes a snapshot's content key from its layers, with these globs left out."""


def check(parts: OpenStore, key: Key, expected: Collection[SnapshotId] = ()) -> CheckFindings:
    """Check a whole store. `expected`: snapshots that are still referenced from outside the store.

    The caller holds the store's lock, so that nothing is deleted meanwhile.
    """
    found = CheckFindings()
    records = _names(parts.folder.root / Part.SNAPSHOTS)  # listed first: what a record names exists before the record
    for part, layers in parts.trees():
        names = _names(parts.folder.root / part)
        found.checked[part] = len(names)
        for name in names:
            found.problems += _unknown_name(part, name) or check_tree(part, layers, LayerId(name), found)
    names = _names(parts.folder.root / Part.BLOBS)
    found.checked[Part.BLOBS] = len(names)
    for name in names:
        found.problems += _unknown_name(Part.BLOBS, name) or check_blob(parts, name)
    found.checked[Part.SNAPSHOTS] = len(records)
    for name in records:
        found.problems += _unknown_name(Part.SNAPSHOTS, name, ".json") or check_record(parts, name, found)
    for id in sorted(set(expected) - {SnapshotId(name.removesuffix(".json")) for name in records}):
        found.problems.append(Problem(Part.SNAPSHOTS, id, Damage.MISSING))
    found.problems += missing_objects(parts, found)
    found.problems += wrong_content_keys(found, key, {(problem.part, problem.name) for problem in found.problems})
    found.problems += _indexes(parts)
    found.problems += _modes(parts)
    found.problems += [
        Problem(Part.STORE, name, Damage.EXTRA) for name in sorted(set(_names(parts.folder.root)) - _TOP)
    ]
    found.problems += [Problem(Part.STORE, name, Damage.EXTRA) for name in parts.folder.unknown_files()]
    found.problems += [Problem(Part.TMP, path.name, Damage.LEFTOVER) for path in parts.folder.leftovers()]
    return found


def _names(at: Path) -> list[str]:
    return sorted(path.name for path in at.iterdir())


def _modes(parts: OpenStore) -> Iterator[Problem]:
    for kind, name, path, wrong in wrong_permissions(parts.folder.root):
        part = Part(kind) if kind else Part.STORE
        known = name.removesuffix(".json") if part is Part.SNAPSHOTS else name
        yield Problem(part, known, Damage.MODE, f"../{path}" if path else "", wrong)


def _unknown_name(part: Part, name: str, ending: str = "") -> list[Problem]:
    known = name.endswith(ending) and ID.fullmatch(name.removesuffix(ending))
    return [] if known else [Problem(part, name, Damage.EXTRA)]


def check_tree(part: Part, layers: Layers, id: LayerId, found: CheckFindings) -> list[Problem]:
    """Check one layer or process image: its manifest against its name, its folder against the manifest."""
    top = layers.folder.root / part / id
    problems: list[Problem] = []
    if top.is_symlink():
        problems.append(Problem(part, id, Damage.EXTRA, ".", "a link has the layer's name"))
    try:
        if stat.S_IMODE(top.stat().st_mode) & 0o500 != 0o500:
            problems.append(Problem(part, id, Damage.UNREADABLE, detail="its mode denies access"))
        with folder(top.resolve()):
            return problems + _check_open_tree(part, layers, id, found)
    except OSError as error:
        return [*problems, Problem(part, id, Damage.UNREADABLE, detail=error.strerror or "")]


def _check_open_tree(part: Part, layers: Layers, id: LayerId, found: CheckFindings) -> list[Problem]:
    top = layers.folder.root / part / id
    extra = sorted(set(_names(top)) - {"fs", "manifest.json"})
    problems = [Problem(part, id, Damage.EXTRA, f"../{name}") for name in extra]
    fs = top / "fs"
    try:
        if fs.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a link")
        scan = found.scans[part, id] = scan_upper(fs)
    except (OSError, ForkEngineError) as error:
        scan = None
        problems.append(Problem(part, id, Damage.UNREADABLE, "." if fs.exists() else "", str(error)))
    try:
        manifest = found.manifests[part, id] = layers.read_manifest(id)
    except (SnapshotCorrupt, OSError) as error:
        return [*problems, Problem(part, id, Damage.MANIFEST, detail=str(error).split(". ")[0])]
    return problems + (
        [] if scan is None else [*_differences(part, id, manifest, scan), *_owners(part, id, scan, fs)]
    )


def _owners(part: Part, id: LayerId, scan: Scan, fs: Path) -> Iterator[Problem]:
    """Find paths that belong to another user: a world of an ordinary user cannot overwrite them. Root's worlds may
    give files away."""
    mine, top = owner(fs.parent.parent.parent), fs.stat().st_uid
    if mine == 0:
        return
    foreign = scan.owners.items() if top == mine else [(".", top)]
    for path, uid in foreign:
        if uid != mine:
            yield Problem(part, id, Damage.CHANGED, path, f"owner {uid}, not {mine}")


def _differences(part: Part, id: LayerId, manifest: Manifest, scan: Scan) -> Iterator[Problem]:
    if scan.root != manifest.root:
        yield Problem(part, id, Damage.CHANGED, ".", differing_fields(manifest.root, scan.root))
    for path in sorted(manifest.entries.keys() | scan.entries.keys() | {skipped.path for skipped in scan.skipped}):
        said, seen = manifest.entries.get(path), scan.entries.get(path)
        if said is None:
            yield Problem(part, id, Damage.EXTRA, path)
        elif seen is None:
            yield Problem(part, id, Damage.MISSING, path)
        elif said != seen:
            yield Problem(part, id, Damage.CHANGED, path, differing_fields(said, seen))
    for path, marks in scan.marked.items():
        entry = manifest.entries.get(path)
        if set(marks) != ({OPAQUE} if entry is not None and entry.opaque else set()):
            yield Problem(part, id, Damage.CHANGED, path or ".", "attributes that layers do not have")


def differing_fields(said: Entry, seen: Entry) -> str:
    """Return the names of the fields that differ, for people."""
    words = {"digest": "bytes", "mtime_ns": "time", "xattrs": "attributes", "link": "hard links"}
    differing = [f.name for f in fields(Entry) if getattr(said, f.name) != getattr(seen, f.name)]
    return ", ".join(words.get(name, name) for name in differing)


def check_blob(parts: OpenStore, digest: str) -> list[Problem]:
    try:
        parts.blobs.get(digest)
    except (SnapshotCorrupt, OSError):
        return [Problem(Part.BLOBS, digest, Damage.CHANGED, detail="bytes")]
    return []


def check_record(parts: OpenStore, name: str, found: CheckFindings) -> list[Problem]:
    id = SnapshotId(name.removesuffix(".json"))
    try:
        found.snapshots[id], found.volatile[id] = parts.snapshots.load(id)
    except (SnapshotCorrupt, SnapshotNotFound, OSError) as error:
        return [Problem(Part.SNAPSHOTS, id, Damage.RECORD, detail=str(error).split(". ")[0])]
    return []


def missing_objects(parts: OpenStore, found: CheckFindings) -> list[Problem]:
    named = {one for snapshot in found.snapshots.values() for one in needed_by(snapshot)}
    return [
        Problem(part, name, Damage.MISSING)
        for part, name in sorted(named)
        if not os.path.lexists(parts.folder.root / part / name)
    ]


def wrong_content_keys(found: CheckFindings, key: Key, bad: Set[tuple[Part, str]]) -> list[Problem]:
    """Find snapshots whose content key is wrong, which could give a step another step's result. Snapshots that need
    something in `bad` are skipped."""
    return [
        Problem(Part.SNAPSHOTS, id, Damage.RECORD, detail="content key")
        for id, snapshot in found.snapshots.items()
        if id in found.volatile and not needed_by(snapshot) & bad
        if key(snapshot, found.volatile[id]) != snapshot.content_key
    ]


def _indexes(parts: OpenStore) -> list[Problem]:
    indexes = parts.folder.root / Part.INDEX
    if not indexes.is_dir():
        return [Problem(Part.STORE, Part.INDEX, Damage.EXTRA, detail="no folder")] if os.path.lexists(indexes) else []
    names = _names(indexes)
    return [
        Problem(Part.INDEX, name, Damage.INDEX)
        for name in names
        if not ID.fullmatch(name.removesuffix(".json")) or read_index(indexes / name) is None
    ]
