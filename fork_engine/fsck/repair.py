"""Check and repair a whole store, and verify unflushed objects after the machine went down.

A repair uses only other copies in the same store. A tree is rebuilt from its manifest: intact files are linked, each
other file is copied from any place in the store that has the same bytes. A manifest is rebuilt from its tree if the
digest confirms it. A snapshot's record is written again if some record file still holds every field of its id.
What cannot be repaired is moved to `damaged/`, together with the snapshots that need it.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError, SnapshotCorrupt
from ramify.fork_engine.filesystem.file_content import digest_bytes, digest_fd
from ramify.fork_engine.filesystem.openat import OpenatWalker, file
from ramify.fork_engine.filesystem.write import place_bytes, place_copy, place_link, write_tree
from ramify.fork_engine.fsck.check import (
    HARMLESS,
    CheckFindings,
    Damage,
    Key,
    Problem,
    check,
    check_blob,
    check_record,
    check_tree,
    missing_objects,
    owner,
    restore_permissions,
    wrong_content_keys,
)
from ramify.fork_engine.layers import Layers
from ramify.fork_engine.manifest import MALFORMED, Manifest
from ramify.fork_engine.snapshots import fields_of, snapshot_id
from ramify.fork_engine.store_folder import (
    ID,
    UnflushedNote,
    make_folder,
    read_store_file,
    remove_if_present,
    write_new,
)
from ramify.fork_engine.store_parts import OpenStore, Part, needed_by
from ramify.fork_engine.types import Entry, EntryKind, LayerId, Snapshot, SnapshotId

DAMAGED = "damaged"  # the store's folder for what could not be repaired
_EMPTY = digest_bytes(b"")


class NoOtherCopy(ForkEngineError):
    """No other copy of the bytes is in the store."""


def repair_objects(
    parts: OpenStore, found: CheckFindings
) -> tuple[set[Problem], dict[SnapshotId, Snapshot], list[str]]:
    """Repair what can be repaired. Returns (the problems solved, the records to write, the names moved aside).

    The caller holds the store's lock exclusively.
    """
    repaired: set[Problem] = set()
    aside: list[str] = []
    copies = _Copies(parts, found)
    for part, layers in parts.trees():
        for name in sorted(found.bad(part)):
            if _repair_tree(part, layers, LayerId(name), found, copies):
                repaired |= {p for p in found.problems if (p.part, p.name) == (part, name)}
            else:
                aside += copies.move_tree_aside(part, name)
    for old in copies.aside - set(aside):  # not earlier: the wrong bytes of one tree may be the right ones of another
        remove_if_present(parts.folder.root / DAMAGED / old)
    sound = {**_readable_records(parts, found), **found.snapshots}
    broken = {SnapshotId(name) for name in found.bad(Part.SNAPSHOTS) if ID.fullmatch(name)}
    records = {id: sound[id] for id in broken if id in sound}
    repaired |= {p for p in found.problems if p.part is Part.SNAPSHOTS and p.name in records}
    for problem in found.problems:
        path = parts.folder.root / problem.part / problem.name
        if problem.part is Part.STORE:
            path = parts.folder.root / problem.name
        if problem.damage is Damage.MODE:
            continue  # restore_permissions has done what is possible
        if problem.damage in (Damage.LEFTOVER, Damage.INDEX):
            if problem.damage is Damage.INDEX:
                remove_if_present(path)
            repaired.add(problem)
        elif problem.part in (Part.STORE, Part.BLOBS) and problem.damage is not Damage.MISSING:
            aside.append(move_aside(parts, path))
            if problem.damage is Damage.EXTRA:
                repaired.add(problem)
        elif problem.part is Part.SNAPSHOTS and problem.damage is Damage.EXTRA:
            aside.append(move_aside(parts, path))
            repaired.add(problem)
    repaired |= {p for p in found.problems if p.damage is Damage.EXTRA and not p.path}
    parts.folder.remove_leftovers()
    return repaired, records, aside


def _readable_records(parts: OpenStore, found: CheckFindings) -> dict[SnapshotId, Snapshot]:
    """Return the snapshots of the damaged record files that still hold every field of the id, as the id confirms.

    Fields that the id does not cover are dropped: nothing confirms them.
    """
    folder = parts.folder.root / Part.SNAPSHOTS
    readable: dict[SnapshotId, Snapshot] = {}
    for name in found.bad(Part.SNAPSHOTS):
        with suppress(OSError, SnapshotCorrupt, *MALFORMED):
            raw = json.loads(read_store_file(folder / f"{name}.json"))
            snapshot = fields_of({**raw, "content_key": "", "parents": (), "merges": ()}, SnapshotId(""))
            id = snapshot_id(snapshot)
            readable[id] = replace(snapshot, id=id)
    return readable


def move_aside(parts: OpenStore, path: Path) -> str:
    """Move a path into `damaged/` under an unused name, and return that name."""
    folder = parts.folder.root / DAMAGED
    make_folder(folder)
    for number in itertools.count():
        target = folder / f"{path.parent.name}-{path.name}{f'.{number}' if number else ''}"
        if not os.path.lexists(target):
            path.rename(target)
            return target.name
    raise AssertionError


def lost_snapshots(found: CheckFindings, gone: set[tuple[Part, str]]) -> list[SnapshotId]:
    """Return the snapshots that need something in `gone`, or whose own record is in it."""
    own = {SnapshotId(name) for part, name in gone if part is Part.SNAPSHOTS}
    return sorted(own | {id for id, snapshot in found.snapshots.items() if needed_by(snapshot) & gone})


class _Copies:
    """Finds bytes by digest in the trees that the check read, also after a tree was moved."""

    def __init__(self, parts: OpenStore, found: CheckFindings) -> None:
        self.found = found
        self._parts = parts
        self._aside: dict[tuple[Part, str], str] = {}  # trees moved aside → their names under damaged/
        self._roots: dict[str, list[tuple[tuple[Part, str], str]]] = {}
        for tree, scan in found.scans.items():
            for path, entry in scan.entries.items():
                if entry.kind is EntryKind.FILE:
                    self._roots.setdefault(entry.digest, []).append((tree, path))

    @property
    def aside(self) -> set[str]:
        return set(self._aside.values())

    def fs(self, part: Part, name: str) -> Path:
        """Return the current place of the tree that the check read under this name."""
        aside = self._aside.get((part, name))
        root = self._parts.folder.root
        return (root / part / name if aside is None else root / DAMAGED / aside) / "fs"

    def move_tree_aside(self, part: Part, name: str) -> list[str]:
        """Move a tree aside. Returns its name under `damaged/`, or nothing if there was no tree."""
        old = self._parts.folder.root / part / name
        if os.path.lexists(old):
            self._aside[part, name] = move_aside(self._parts, old)
        return [self._aside[part, name]] if (part, name) in self._aside else []

    def foreign(self, part: Part, name: str) -> set[str]:
        """Return the paths of a tree that must be copied and not linked: they belong to another user or have an
        attribute that no layer has."""
        scan, mine = self.found.scans.get((part, name)), owner(self._parts.folder.root)
        if scan is None:
            return set()
        if mine == 0:
            return set(scan.marked)
        if self.fs(part, name).stat().st_uid == mine:
            return scan.owners.keys() | scan.marked.keys()
        return {path for path in scan.entries if scan.owners.get(path) != mine} | scan.marked.keys()

    @functools.cached_property
    def manifests(self) -> list[Manifest]:
        """The manifests of all trees as they are on disk, whatever their names."""
        return [Manifest(scan.entries, scan.root) for scan in self.found.scans.values()]

    def place(self, entry: Entry, parent: int, name: str) -> None:
        """Copy a file from another place in the store. Raises `NoOtherCopy`.

        The source is hashed again, because it may have been replaced by a repaired tree.
        """
        if entry.digest == _EMPTY:
            place_bytes(b"", entry, parent, name)
            return
        for (part, at_name), path in self._roots.get(entry.digest, []):
            with suppress(FileNotFoundError, NotADirectoryError), OpenatWalker(self.fs(part, at_name)) as tree:
                holder, at = tree.parent(path)
                with file(at, holder) as fd:
                    same = digest_fd(fd) == entry.digest
                if same:
                    place_copy(tree, path, entry, parent, name, verify=False)
                    return
        raise NoOtherCopy(f"no other copy of {entry.digest} is in the store")


def _repair_tree(part: Part, layers: Layers, id: LayerId, found: CheckFindings, copies: _Copies) -> bool:
    """Repair one tree and return whether that succeeded. A missing manifest is taken from any tree of this digest."""
    top = layers.folder.root / part / id
    if top.is_dir() and not top.is_symlink():
        top.chmod(0o700)
    manifest = found.manifests.get((part, id)) or next((m for m in copies.manifests if m.id == id), None)
    if manifest is not None:
        found.manifests[part, id] = manifest
        return _rebuild_tree(part, layers, id, manifest, copies)
    return False


def _rebuild_tree(part: Part, layers: Layers, id: LayerId, manifest: Manifest, copies: _Copies) -> bool:
    """Rebuild a tree from its manifest and return whether that succeeded."""
    scan = copies.found.scans.get((part, id))
    seen = scan.entries if scan is not None else {}
    foreign = copies.foreign(part, id)
    with layers.folder.temporary() as aside:
        fs = aside / "layer" / "fs"
        fs.mkdir(parents=True)
        sources = [OpenatWalker(copies.fs(part, id))] if scan is not None else []
        # inodes used in this tree: two paths share one only if they are hard links
        taken: dict[tuple[int, int], str] = {}

        def place(path: str, entry: Entry, parent: int, name: str) -> None:
            now = seen.get(path) if path not in foreign else None
            if sources and now is not None and replace(now, link="") == replace(entry, link=""):
                inode = _inode(sources[0], path)
                if inode not in taken:
                    taken[inode] = path
                    place_link(sources[0], path, entry, parent, name)
                    return
            copies.place(entry, parent, name)

        try:
            write_tree(fs, manifest.entries, manifest.root, place)
        except NoOtherCopy:
            return False
        finally:
            for source in sources:
                source.close()
        write_new(fs.parent / "manifest.json", manifest.encoded)
        copies.move_tree_aside(part, id)
        layers.place(manifest, fs.parent)
    return True


def _inode(tree: OpenatWalker, path: str) -> tuple[int, int]:
    parent, name = tree.parent(path)
    with file(name, parent) as fd:
        status = Path(f"/proc/self/fd/{fd}").stat()
    return status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The result of a check. `lost`: after a repair, the snapshots that are gone for good; without one, those that
    cannot be trusted."""

    checked: Mapping[Part, int]
    problems: tuple[Problem, ...]
    mended: tuple[Problem, ...]
    lost: tuple[SnapshotId, ...]
    aside: tuple[str, ...]  # names under damaged/

    @property
    def left(self) -> tuple[Problem, ...]:
        """Return the problems that were not repaired."""
        repaired = set(self.mended)
        return tuple(problem for problem in self.problems if problem not in repaired)

    @property
    def status(self) -> int:
        """Return an exit status like that of `git fsck`: bit 1 for damage, bit 2 for missing objects, 0 if only
        leftovers were found."""
        left = [problem for problem in self.left if problem.damage not in HARMLESS]
        misses = any(problem.damage is Damage.MISSING for problem in left)
        damaged = any(problem.damage is not Damage.MISSING for problem in left)
        return (1 if damaged else 0) | (2 if misses else 0)


def fsck(
    parts: OpenStore, *, repair: bool, expected: Collection[SnapshotId], key: Key, save: Callable[[Snapshot], object]
) -> FsckReport:
    """Check a store and, with `repair`, repair it. `save` writes a snapshot's record.

    The caller holds the store's lock, exclusively for a repair.
    """
    found = check(parts, key, expected)
    repair = repair and bool(found.problems)
    repaired: set[Problem] = set()
    before = found.problems
    if repair and any(problem.damage is Damage.MODE for problem in before):
        restore_permissions(parts.folder)  # first, because a wrong mode can make sound objects look damaged
        found = check(parts, key, expected)
        repaired = set(before) - set(found.problems)
    records: dict[SnapshotId, Snapshot] = {}
    aside: list[str] = []
    if repair:
        more, records, aside = repair_objects(parts, found)
        repaired |= more
        found.snapshots.update(records)
        known = {(problem.part, problem.name) for problem in found.problems}
        found.problems += [one for one in missing_objects(parts, found) if (one.part, one.name) not in known]
    gone = _untrusted(found, repaired)
    if repair:  # keys of snapshots on damaged layers could not be checked before
        wrong = set(wrong_content_keys(found, key, gone)) - repaired
        records.update({SnapshotId(one.name): found.snapshots[SnapshotId(one.name)] for one in wrong})
        repaired |= wrong
        found.problems += wrong - set(found.problems)
    lost_ones = lost_snapshots(found, gone)
    if repair:
        _write_records(parts, lost_ones, records, aside, save)
    problems = tuple(dict.fromkeys((*before, *found.problems)))
    return FsckReport(found.checked, problems, tuple(sorted(repaired, key=str)), tuple(lost_ones), tuple(aside))


def _untrusted(found: CheckFindings, repaired: set[Problem]) -> set[tuple[Part, str]]:
    """Return the objects that cannot be trusted. A wrong mode or owner says nothing about the bytes."""
    spared = {*HARMLESS, Damage.MODE}
    left = (problem for problem in found.problems if problem not in repaired and problem.damage not in spared)
    return {(problem.part, problem.name) for problem in left}


def _write_records(
    parts: OpenStore,
    gone: list[SnapshotId],
    records: Mapping[SnapshotId, Snapshot],
    aside: list[str],
    save: Callable[[Snapshot], object],
) -> None:
    folder = parts.folder.root / Part.SNAPSHOTS
    for id in gone:
        if os.path.lexists(folder / f"{id}.json"):
            aside.append(move_aside(parts, folder / f"{id}.json"))
    for id, snapshot in records.items():
        if id not in gone:
            remove_if_present(folder / f"{id}.json")
            save(snapshot)


def verify_unflushed(parts: OpenStore, notes: list[UnflushedNote]) -> list[SnapshotId]:
    """After the machine went down, delete the unflushed objects that are incomplete, and the snapshots that need
    them.

    Returns the deleted snapshots, none of which had been reported as durable. The caller holds the lock exclusively.
    """
    found, bad = CheckFindings(), set[tuple[Part, str]]()
    trees = dict(parts.trees())
    for note in notes:
        part, name = Part(note.kind), note.name
        path = parts.folder.root / part / name
        if not path.exists():
            problems: list[Problem] = []
        elif part in trees:
            problems = check_tree(part, trees[part], LayerId(name), found)
        elif part is Part.BLOBS:
            problems = check_blob(parts, name)
        else:
            problems = check_record(parts, name, found)
        if problems:
            bad.add((part, name))
            remove_if_present(path)
    dropped = []
    for note in notes:
        if note.kind == Part.SNAPSHOTS:
            id = SnapshotId(note.name.removesuffix(".json"))
            snapshot = found.snapshots.get(id)
            whole = snapshot is not None and all((parts.folder.root / p / n).exists() for p, n in needed_by(snapshot))
            if not whole:
                remove_if_present(parts.folder.root / Part.SNAPSHOTS / note.name)
                dropped.append(id)
    return dropped
