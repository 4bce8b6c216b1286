"""Checking and mending a store as a whole, and believing it again after the machine went down."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.filesystem.file_content import digest_bytes, digest_fd
from ramify.fork_engine.filesystem.openat import OpenatWalker, file
from ramify.fork_engine.filesystem.write import place_bytes, place_copy, place_link, write_tree
from ramify.fork_engine.fsck.check import (
    HARMLESS,
    ID,
    Damage,
    Findings,
    Key,
    Part,
    Parts,
    Problem,
    check,
    check_blob,
    check_record,
    check_tree,
    missing,
    needs,
    wrong_keys,
)
from ramify.fork_engine.fsck.permissions import owner, restore_permissions
from ramify.fork_engine.layers import Layers
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.mend_records import record
from ramify.fork_engine.store_folder import Note, make_folder, sweep, write_new
from ramify.fork_engine.types import Entry, EntryKind, LayerId, Snapshot, SnapshotId

DAMAGED = "damaged"  # the store's folder for what could not be mended
_EMPTY = digest_bytes(b"")


class CannotMend(ForkEngineError):
    """Bytes that are nowhere else in the store."""


def mend(parts: Parts, found: Findings) -> tuple[set[Problem], dict[SnapshotId, Snapshot], list[str]]:
    """Mend what can be: (the problems that are gone, records to be written, what was moved aside).

    The caller holds the store's lock alone.
    """
    mended: set[Problem] = set()
    aside: list[str] = []
    copies = _Copies(parts, found)
    for part, layers in parts.trees():
        for name in sorted(found.bad(part)):
            if _tree(part, layers, LayerId(name), found, copies):
                mended |= {p for p in found.problems if (p.part, p.name) == (part, name)}
            else:
                aside += copies.take_away(part, name)
    for old in copies.aside - set(aside):  # only now: one tree's wrong bytes may have been another's right ones
        sweep(parts.folder.root / DAMAGED / old)
    broken = {name for name in found.bad(Part.SNAPSHOTS) if ID.fullmatch(name)}
    records = {id: made for id in broken if (made := record(parts, SnapshotId(id), found))}
    mended |= {p for p in found.problems if p.part is Part.SNAPSHOTS and p.name in records}
    for problem in found.problems:
        path = parts.folder.root / problem.part / problem.name
        if problem.part is Part.STORE:
            path = parts.folder.root / problem.name
        if problem.damage is Damage.MODE:
            continue  # what could be done was
        if problem.damage in (Damage.LEFTOVER, Damage.INDEX):
            if problem.damage is Damage.INDEX:
                sweep(path)
            mended.add(problem)
        elif problem.part in (Part.STORE, Part.BLOBS) and problem.damage is not Damage.MISSING:
            aside.append(move_aside(parts, path))
            if problem.damage is Damage.EXTRA:
                mended.add(problem)
        elif problem.part is Part.SNAPSHOTS and problem.damage is Damage.EXTRA:
            aside.append(move_aside(parts, path))
            mended.add(problem)
    mended |= {p for p in found.problems if p.damage is Damage.EXTRA and not p.path}
    parts.folder.forget()
    return mended, {SnapshotId(id): made for id, made in records.items()}, aside


def move_aside(parts: Parts, path: Path) -> str:
    """Into `damaged/`, under a name of its own; that name."""
    folder = parts.folder.root / DAMAGED
    make_folder(folder)
    for number in itertools.count():
        target = folder / f"{path.parent.name}-{path.name}{f'.{number}' if number else ''}"
        if not os.path.lexists(target):
            path.rename(target)
            return target.name
    raise AssertionError


def lost(found: Findings, gone: set[tuple[Part, str]]) -> list[SnapshotId]:
    """The snapshots that need something of `gone`, or whose own record is."""
    own = {SnapshotId(name) for part, name in gone if part is Part.SNAPSHOTS}
    return sorted(own | {id for id, snapshot in found.snapshots.items() if needs(snapshot) & gone})


class _Copies:
    """Where in the store bytes of a digest lie, as the check read them, wherever their tree is now."""

    def __init__(self, parts: Parts, found: Findings) -> None:
        self.found = found
        self._parts = parts
        self._aside: dict[tuple[Part, str], str] = {}  # what was taken away: its name under damaged/
        self._roots: dict[str, list[tuple[tuple[Part, str], str]]] = {}
        for tree, scan in found.scans.items():
            for path, entry in scan.entries.items():
                if entry.kind is EntryKind.FILE:
                    self._roots.setdefault(entry.digest, []).append((tree, path))

    @property
    def aside(self) -> set[str]:
        return set(self._aside.values())

    def fs(self, part: Part, name: str) -> Path:
        """Where the tree is that the check read under this name."""
        aside = self._aside.get((part, name))
        root = self._parts.folder.root
        return (root / part / name if aside is None else root / DAMAGED / aside) / "fs"

    def take_away(self, part: Part, name: str) -> list[str]:
        """Out of its place; its name under `damaged/`, none where nothing was there."""
        old = self._parts.folder.root / part / name
        if os.path.lexists(old):
            self._aside[part, name] = move_aside(self._parts, old)
        return [self._aside[part, name]] if (part, name) in self._aside else []

    def foreign(self, part: Part, name: str) -> set[str]:
        """The paths of a tree that another user owns, or that have an attribute of no layer: a link would keep it."""
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
        """Of every tree as it lies there, whatever it is called."""
        return [Manifest(scan.entries, scan.root) for scan in self.found.scans.values()]

    def place(self, entry: Entry, parent: int, name: str) -> None:
        """Raises `CannotMend`. A copy is read again: a tree that was mended since may stand in its place."""
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
        raise CannotMend(f"no other copy of {entry.digest} is in the store")


def _tree(part: Part, layers: Layers, id: LayerId, found: Findings, copies: _Copies) -> bool:
    """Whether one tree is mended. A manifest that is gone is any tree's that has this digest."""
    top = layers.folder.root / part / id
    if top.is_dir() and not top.is_symlink():
        top.chmod(0o700)
    manifest = found.manifests.get((part, id)) or next((m for m in copies.manifests if m.id == id), None)
    if manifest is not None:
        found.manifests[part, id] = manifest
        return _rebuilt(part, layers, id, manifest, copies)
    return False


def _rebuilt(part: Part, layers: Layers, id: LayerId, manifest: Manifest, copies: _Copies) -> bool:
    """Whether the tree stands again as its manifest says."""
    scan = copies.found.scans.get((part, id))
    seen = scan.entries if scan is not None else {}
    foreign = copies.foreign(part, id)
    with layers.folder.temporary() as aside:
        fs = aside / "layer" / "fs"
        fs.mkdir(parents=True)
        sources = [OpenatWalker(copies.fs(part, id))] if scan is not None else []
        taken: dict[tuple[int, int], str] = {}  # inodes that this tree has: two paths share one only as links do

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
        except CannotMend:
            return False
        finally:
            for source in sources:
                source.close()
        write_new(fs.parent / "manifest.json", manifest.encoded)
        copies.take_away(part, id)
        layers.place(manifest, fs.parent)
    return True


def _inode(tree: OpenatWalker, path: str) -> tuple[int, int]:
    parent, name = tree.parent(path)
    with file(name, parent) as fd:
        status = Path(f"/proc/self/fd/{fd}").stat()
    return status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What a check found. After a repair `lost` names the snapshots that are gone for good, before it those that
    cannot be trusted."""

    checked: Mapping[Part, int]
    problems: tuple[Problem, ...]
    mended: tuple[Problem, ...]
    lost: tuple[SnapshotId, ...]
    aside: tuple[str, ...]  # names under damaged/

    @property
    def left(self) -> tuple[Problem, ...]:
        """What is still wrong."""
        mended = set(self.mended)
        return tuple(problem for problem in self.problems if problem not in mended)

    @property
    def status(self) -> int:
        """As `git fsck` has it: bit 1 for what is damaged, bit 2 for what is missing; 0 also where only leftovers
        were found."""
        left = [problem for problem in self.left if problem.damage not in HARMLESS]
        misses = any(problem.damage is Damage.MISSING for problem in left)
        damaged = any(problem.damage is not Damage.MISSING for problem in left)
        return (1 if damaged else 0) | (2 if misses else 0)


def fsck(
    parts: Parts, *, repair: bool, expected: Collection[SnapshotId], key: Key, save: Callable[[Snapshot], object]
) -> FsckReport:
    """`save` writes a snapshot's record. The caller holds the lock, alone where it shall be repaired."""
    found = check(parts, key, expected)
    repair = repair and bool(found.problems)
    mended: set[Problem] = set()
    before = found.problems
    if repair and any(problem.damage is Damage.MODE for problem in before):
        restore_permissions(parts.folder)  # first of all: much may look damaged that could only not be read
        found = check(parts, key, expected)
        mended = set(before) - set(found.problems)
    records: dict[SnapshotId, Snapshot] = {}
    aside: list[str] = []
    if repair:
        more, records, aside = mend(parts, found)
        mended |= more
        found.snapshots.update(records)
        known = {(problem.part, problem.name) for problem in found.problems}
        found.problems += [one for one in missing(parts, found) if (one.part, one.name) not in known]
    gone = _gone(found, mended)
    if repair:  # what stood on damaged layers could not be told before
        wrong = set(wrong_keys(found, key, gone)) - mended
        records.update({SnapshotId(one.name): found.snapshots[SnapshotId(one.name)] for one in wrong})
        mended |= wrong
        found.problems += wrong - set(found.problems)
    lost_ones = lost(found, gone)
    if repair:
        _write_records(parts, lost_ones, records, aside, save)
    problems = tuple(dict.fromkeys((*before, *found.problems)))
    return FsckReport(found.checked, problems, tuple(sorted(mended, key=str)), tuple(lost_ones), tuple(aside))


def _gone(found: Findings, mended: set[Problem]) -> set[tuple[Part, str]]:
    """What cannot be trusted. A mode or an owner says nothing of the bytes."""
    spared = {*HARMLESS, Damage.MODE}
    left = (problem for problem in found.problems if problem not in mended and problem.damage not in spared)
    return {(problem.part, problem.name) for problem in left}


def _write_records(
    parts: Parts,
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
            sweep(folder / f"{id}.json")
            save(snapshot)


def verify_unflushed(parts: Parts, notes: list[Note]) -> list[SnapshotId]:
    """After the machine went down: of what was not yet flushed, drop all that is not whole, and the snapshots that
    need it. Those are returned; nobody was promised them. The caller holds the lock alone."""
    found, bad = Findings(), set[tuple[Part, str]]()
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
            sweep(path)
    dropped = []
    for note in notes:
        if note.kind == Part.SNAPSHOTS:
            id = SnapshotId(note.name.removesuffix(".json"))
            snapshot = found.snapshots.get(id)
            whole = snapshot is not None and all((parts.folder.root / p / n).exists() for p, n in needs(snapshot))
            if not whole:
                sweep(parts.folder.root / Part.SNAPSHOTS / note.name)
                dropped.append(id)
    return dropped
