"""Checking and mending a store as a whole, and believing it again after the machine went down."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ramify.fork_engine.check import (
    HARMLESS,
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
from ramify.fork_engine.files import sweep
from ramify.fork_engine.folder import Note
from ramify.fork_engine.mend import lost, mend, move_aside
from ramify.fork_engine.modes import put_right
from ramify.fork_engine.types import LayerId, Snapshot, SnapshotId


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
        put_right(parts.folder)  # first of all: much may look damaged that could only not be read
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


def believe_again(parts: Parts, notes: list[Note]) -> list[SnapshotId]:
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
