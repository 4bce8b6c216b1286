"""Three-way merge of two snapshots over the paths that either side changed. Pure but for reading texts to merge.

A path changed on one side only is taken from there; equal changes are taken once. A file changed on both sides is
merged field by field: mode, attributes, contents, where contents are merged by line if all three are UTF-8. Times
never conflict. What does not fit is a typed conflict, or settled for one side by the strategy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from merge3 import Merge3

from ramify.fork_engine.content import digest_bytes
from ramify.fork_engine.diff import above
from ramify.fork_engine.types import Conflict, ConflictKind, Entry, EntryKind, LayerId, MergeStrategy, Snapshot
from ramify.fork_engine.view import Located, View, differing

T = TypeVar("T")
NO_LAYER = LayerId("")  # where a file that the merge composed is located: it is in no layer yet


@dataclass(slots=True)
class Merged:
    """What to change on `ours`. Composed files take their bytes from `texts` or from another place, `copies`."""

    changes: dict[str, Located | None] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    copies: dict[str, Located] = field(default_factory=dict)
    conflicts: dict[str, Conflict] = field(default_factory=dict)
    root: Entry = field(default_factory=lambda: Entry(EntryKind.DIR))


@dataclass(frozen=True, slots=True)
class _Sides:
    base: View
    ours: View
    theirs: View
    strategy: MergeStrategy
    read: Callable[[View, str], bytes]


def merge_views(
    base: View, ours: View, theirs: View, strategy: MergeStrategy, read: Callable[[View, str], bytes]
) -> Merged:
    """With FAIL, the conflicts are the caller's to raise; with another strategy they are settled."""
    sides, merged = _Sides(base, ours, theirs, strategy, read), Merged()
    for path in differing(base, theirs):
        _merge_path(path, sides, merged)
    _keep_links(sides, merged)
    _mend_additions(sides, merged)
    _mend_removals(sides, merged)
    _merge_root(sides, merged)
    return merged


def _same(one: Entry | None, other: Entry | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.content == other.content and one.xattrs == other.xattrs


def _time(base: Entry | None, ours: Entry, theirs: Entry) -> int:
    """The one that changed; of two the later."""
    changed = _three_way(base.mtime_ns if base else None, ours.mtime_ns, theirs.mtime_ns)
    return max(ours.mtime_ns, theirs.mtime_ns) if changed is None else changed


def _merge_path(path: str, sides: _Sides, merged: Merged) -> None:
    base, ours, theirs = sides.base.get(path), sides.ours.get(path), sides.theirs.get(path)
    if _same(ours, theirs):
        if ours is not None and theirs is not None and _time(base, ours, theirs) != ours.mtime_ns:
            merged.changes[path] = sides.theirs.locate(path)
    elif _same(ours, base):
        merged.changes[path] = sides.theirs.locate(path)
    elif not _same(theirs, base):
        conflict = _merge_both(path, base, ours, theirs, sides, merged)
        if conflict is not None:
            merged.conflicts[path] = conflict
            if sides.strategy is MergeStrategy.THEIRS:
                merged.changes[path] = sides.theirs.locate(path)


def _merge_root(sides: _Sides, merged: Merged) -> None:
    ours, theirs = sides.ours.root, sides.theirs.root
    mode = _three_way(sides.base.root.mode, ours.mode, theirs.mode)
    if mode is None:
        merged.conflicts["."] = Conflict(".", ConflictKind.MODE, f"{ours.mode:o} in ours, {theirs.mode:o} in theirs")
        mode = theirs.mode if sides.strategy is MergeStrategy.THEIRS else ours.mode
    merged.root = replace(ours, mode=mode, mtime_ns=_time(sides.base.root, ours, theirs))


def _merge_both(
    path: str, base: Entry | None, ours: Entry | None, theirs: Entry | None, sides: _Sides, merged: Merged
) -> Conflict | None:
    """Both sides changed the path, differently. None where the two fit together after all."""
    if ours is None or theirs is None:
        gone = "ours" if ours is None else "theirs"
        return Conflict(path, ConflictKind.CHANGED_REMOVED, f"removed by {gone}, changed by the other")
    if ours.kind is not theirs.kind:
        return Conflict(path, ConflictKind.TYPE, f"a {ours.kind.value} in ours, a {theirs.kind.value} in theirs")
    alike = base if base is not None and base.kind is ours.kind else None
    mode = _three_way(alike.mode if alike else None, ours.mode, theirs.mode)
    xattrs = _three_way(alike.xattrs if alike else None, ours.xattrs, theirs.xattrs)
    digest = _three_way(alike.digest if alike else None, ours.digest, theirs.digest)
    if mode is None:
        return Conflict(path, ConflictKind.MODE, f"{ours.mode:o} in ours, {theirs.mode:o} in theirs")
    if xattrs is None:
        return Conflict(path, ConflictKind.BOTH_CHANGED, "extended attributes")
    if digest is None:
        text = _merge_lines(path, alike, sides) if ours.kind is EntryKind.FILE else None
        if text is None:
            return Conflict(path, ConflictKind.BOTH_CHANGED, "contents")
        merged.texts[path] = text
        entry = replace(ours, size=len(text), digest=digest_bytes(text), mtime_ns=_time(base, ours, theirs))
    else:
        side = sides.ours if digest == ours.digest else sides.theirs
        found = side.locate(path)
        assert found is not None
        entry = found.entry
        if entry.kind is EntryKind.FILE:
            merged.copies[path] = found
    entry = replace(entry, mode=mode, xattrs=xattrs, link="")
    for side, before in ((sides.theirs, theirs), (sides.ours, ours)):
        if _same(entry, before):  # one side has it all: nothing to compose
            merged.texts.pop(path, None)
            merged.copies.pop(path, None)
            if side is sides.theirs:
                merged.changes[path] = side.locate(path)
            return None
    merged.changes[path] = Located(entry, NO_LAYER)
    return None


def _three_way(base: T | None, ours: T, theirs: T) -> T | None:
    """None where both changed it, differently."""
    if ours == theirs or theirs == base:
        return ours
    return theirs if ours == base else None


def _merge_lines(path: str, base: Entry | None, sides: _Sides) -> bytes | None:
    """The clean merge by line; None where there is none. Lines keep their ends, whatever these are."""
    if base is None:
        return None
    try:
        base_text, ours, theirs = (
            sides.read(view, path).decode("utf-8") for view in (sides.base, sides.ours, sides.theirs)
        )
    except UnicodeDecodeError:
        return None
    if "\0" in base_text + ours + theirs:
        return None
    lines = Merge3(base_text.splitlines(True), ours.splitlines(True), theirs.splitlines(True))
    groups = list(lines.merge_groups())
    if any(group[0] == "conflict" for group in groups):
        return None
    return "".join(line for group in groups for line in group[1]).encode("utf-8")


def _keep_links(sides: _Sides, merged: Merged) -> None:
    """A file that theirs linked to one which did not change: take both, or they would be two."""
    for path, located in list(merged.changes.items()):
        manifest = sides.theirs.manifests.get(located.layer) if located is not None else None
        for member in manifest.groups.get(path, ()) if manifest is not None else ():
            there = sides.theirs.locate(member)
            linked = there is not None and located is not None and there.layer == located.layer
            if linked and member not in merged.changes and sides.ours.get(member) == sides.base.get(member):
                merged.changes[member] = there


def _mend_additions(sides: _Sides, merged: Merged) -> None:
    """Theirs put something into a folder that ours removed or replaced: no single path shows that conflict."""
    for path in sorted(path for path, located in merged.changes.items() if located is not None):
        broken = [folder for folder in above(path) if not _is_folder(folder, sides, merged)]
        if not broken:
            continue
        kind = ConflictKind.CHANGED_REMOVED if _result(broken[-1], sides, merged) is None else ConflictKind.TYPE
        detail = f"ours has no folder {broken[-1]} any more"
        merged.conflicts.setdefault(path, Conflict(path, kind, detail))
        if sides.strategy is MergeStrategy.THEIRS:
            merged.changes.update((folder, sides.theirs.locate(folder)) for folder in broken)
        else:
            _keep_ours(path, merged)


def _mend_removals(sides: _Sides, merged: Merged) -> None:
    """Theirs removed or replaced a folder in which ours has something of its own."""
    for path in sorted(merged.changes):
        if _is_folder(path, sides, merged) or not sides.ours.is_folder(path):
            continue
        kept = [child for child in sides.ours.below(path) if _result(child, sides, merged) is not None]
        kind = ConflictKind.CHANGED_REMOVED if merged.changes[path] is None else ConflictKind.TYPE
        for child in kept:
            detail = f"theirs has no folder {path} any more"
            merged.conflicts.setdefault(child, Conflict(child, kind, detail))
            if sides.strategy is MergeStrategy.THEIRS:
                merged.changes[child] = None
        if kept and sides.strategy is not MergeStrategy.THEIRS:
            _keep_ours(path, merged)


def _result(path: str, sides: _Sides, merged: Merged) -> Located | None:
    return merged.changes[path] if path in merged.changes else sides.ours.locate(path)


def _is_folder(path: str, sides: _Sides, merged: Merged) -> bool:
    located = _result(path, sides, merged)
    return located is not None and located.entry.kind is EntryKind.DIR


def _keep_ours(path: str, merged: Merged) -> None:
    del merged.changes[path]
    merged.texts.pop(path, None)
    merged.copies.pop(path, None)


@dataclass(frozen=True, slots=True)
class Environment:
    env: dict[str, str]
    env_unset: tuple[str, ...]
    cwd: str


def merge_environments(
    base: Snapshot, ours: Snapshot, theirs: Snapshot, strategy: MergeStrategy
) -> tuple[Environment, list[Conflict]]:
    """By the same rules, a variable at a time; a variable is set, unset, or as the world started."""
    conflicts: list[Conflict] = []

    def settle(name: str, at: tuple[T, T, T]) -> T:
        _, mine, yours = at
        if mine == yours or yours == at[0]:
            return mine
        if mine != at[0]:
            conflicts.append(Conflict(name, ConflictKind.ENV, f"{mine!r} in ours, {yours!r} in theirs"))
            return yours if strategy is MergeStrategy.THEIRS else mine
        return yours

    sides = (base, ours, theirs)
    values = [{**dict.fromkeys(s.env_unset, (False, "")), **{k: (True, v) for k, v in s.env.items()}} for s in sides]
    env: dict[str, str] = {}
    unset: list[str] = []
    for name in sorted({name for side in values for name in side}):
        result = settle(name, (values[0].get(name), values[1].get(name), values[2].get(name)))
        if result is not None:
            is_set, value = result
            if is_set:
                env[name] = value
            else:
                unset.append(name)
    cwd = settle("cwd", (base.cwd, ours.cwd, theirs.cwd))
    return Environment(env, tuple(unset), cwd), conflicts
