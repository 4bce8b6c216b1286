"""Three-way merge of the files of two views, over the paths that either side changed. Writes nothing.

A path changed on one side only is taken from that side. Equal changes are taken once. A file changed on both sides is
merged field by field: mode, attributes, contents; contents are merged by line if all three versions are UTF-8. Times
never conflict. Everything else is a typed conflict, which the conflict handler answers.

In a view over the host's own files (`HostOverlayView`) a whiteout means "removed" and is merged as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import TypeVar

from merge3 import Merge3

from ramify.fork_engine.filesystem.file_content import digest_file
from ramify.fork_engine.filesystem.openat import parent_folders, split_path
from ramify.fork_engine.line_matching import LineMatcher
from ramify.fork_engine.merge.conflicts import ConflictHandler
from ramify.fork_engine.snapshots import VolatileGlobs
from ramify.fork_engine.types import Conflict, ConflictKind, Entry, EntryKind, LayerId, MergeStrategy
from ramify.fork_engine.view import LocatedEntry, View, differing

MOST_BYTES = 4 << 20
"""Size limit of each side in bytes. Nobody wrote a larger file by hand, and it is not read at all."""

MOST_HELD, MOST_SHOWN = 64 << 20, 64 << 20
"""Bytes of merged texts that are in memory until they are written, and of a file that a resolver function gets."""


def merge_lines(base: bytes, ours: bytes, theirs: bytes, *, union: bool = False) -> bytes | None:
    """Merge three versions by line. Returns None on a conflict, if a side is not UTF-8, or above `MOST_BYTES`.

    Lines end with LF, CRLF or CR and keep their ends. With `union`, lines that both sides changed are kept from ours
    and then from theirs, so there is no conflict. The work is linear in the number of lines: see `line_matching`.
    """
    if max(map(len, (base, ours, theirs))) > MOST_BYTES or b"\0" in base + ours + theirs:
        return None
    try:
        for side in (base, ours, theirs):
            side.decode("utf-8")
    except UnicodeDecodeError:
        return None
    before, mine, yours = (side.splitlines(True) for side in (base, ours, theirs))
    merged: list[bytes] = []
    for group in Merge3(before, mine, yours, sequence_matcher=LineMatcher).merge_groups():
        if group[0] != "conflict":
            merged += group[1]
        elif union:
            merged += [*_ended(group[2], more=bool(group[3])), *group[3]]
        else:
            return None
    return b"".join(merged)


def _ended(lines: Sequence[bytes], *, more: bool) -> list[bytes]:
    """End the last line with a newline if more lines follow."""
    ended = list(lines)
    if more and ended and ended[-1] == ended[-1].rstrip(b"\r\n"):
        ended[-1] += b"\n"
    return ended


T = TypeVar("T")
NO_LAYER = LayerId("")  # the layer of a composed file: it is in none yet


@dataclass(slots=True)
class Merged:
    """The changes to make on `ours`. Composed files take their bytes from `texts` or from the place in `copies`.

    Texts beyond `MOST_HELD` bytes in all are not kept but merged once more when they are written.
    """

    changes: dict[str, LocatedEntry | None] = field(default_factory=dict)
    texts: dict[str, bytes | Callable[[], bytes]] = field(default_factory=dict)
    copies: dict[str, LocatedEntry] = field(default_factory=dict)
    root: Entry = field(default_factory=lambda: Entry(EntryKind.DIR))
    held: int = 0  # bytes of all texts

    def hold(self, path: str, text: bytes, again: Callable[[], bytes] | None) -> None:
        """`again`: how to get the text once more; None if there is no way."""
        self.held += len(text)
        self.texts[path] = text if again is None or self.held <= MOST_HELD else again

    def text(self, path: str) -> bytes:
        held = self.texts[path]
        return held if isinstance(held, bytes) else held()

    def drop(self, path: str) -> None:
        """Leave the path as it is in ours."""
        self.changes.pop(path, None)
        self.texts.pop(path, None)
        self.copies.pop(path, None)


@dataclass(frozen=True, slots=True)
class Sides:
    """The three sides of a merge, and how conflicts are named and answered."""

    base: View
    ours: View
    theirs: View
    read: Callable[[View, str], bytes]
    handler: ConflictHandler
    volatile: VolatileGlobs
    prefix: str = ""  # put before the path in a conflict: "/" outside the workspace

    def conflict(self, path: str, kind: ConflictKind, detail: str) -> Conflict:
        return Conflict(self.prefix + path, kind, detail)

    def answer(
        self, path: str, conflict: Conflict, *, default: MergeStrategy = MergeStrategy.OURS
    ) -> bytes | MergeStrategy:
        """Ask for an answer to the conflict. `default`: the answer for a volatile path if nobody gives one."""

        def sides() -> tuple[bytes | None, bytes | None, bytes | None]:
            return self.bytes_of(self.base, path), self.bytes_of(self.ours, path), self.bytes_of(self.theirs, path)

        return self.handler.answer(conflict, sides, default=default if path in self.volatile else MergeStrategy.FAIL)

    def bytes_of(self, view: View, path: str) -> bytes | None:
        entry = view.get(path)
        if entry is None or entry.kind not in (EntryKind.FILE, EntryKind.SYMLINK) or entry.size > MOST_SHOWN:
            return None
        return (
            self.read(view, path) if entry.kind is EntryKind.FILE else entry.target.encode("utf-8", "surrogateescape")
        )


def merge_views(sides: Sides) -> Merged:
    """Merge the files of both sides. The caller raises the conflicts that the handler leaves unresolved."""
    merged = Merged()
    for path in differing(sides.base, sides.theirs):
        _merge_path(path, sides, merged)
    _keep_links(sides, merged)
    _link_composed(sides, merged)
    _resolve_additions(sides, merged)
    _resolve_removals(sides, merged)
    _merge_root(sides, merged)
    return merged


def _same(one: Entry | None, other: Entry | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.content == other.content and one.xattrs == other.xattrs and one.opaque == other.opaque


def _is_gone(entry: Entry | None) -> bool:
    return entry is None or entry.kind is EntryKind.WHITEOUT


def _time(base: Entry | None, ours: Entry, theirs: Entry) -> int:
    """Return the time that changed; if both did, the later one."""
    changed = _three_way(base.mtime_ns if base else None, ours.mtime_ns, theirs.mtime_ns)
    return max(ours.mtime_ns, theirs.mtime_ns) if changed is None else changed


def _merge_path(path: str, sides: Sides, merged: Merged) -> None:
    base, ours, theirs = sides.base.get(path), sides.ours.get(path), sides.theirs.get(path)
    if _same(ours, theirs):
        if ours is not None and theirs is not None and _time(base, ours, theirs) != ours.mtime_ns:
            merged.changes[path] = sides.theirs.locate(path)
    elif _same(ours, base):
        merged.changes[path] = sides.theirs.locate(path)
    elif not _same(theirs, base):
        conflict = _merge_both(path, base, ours, theirs, sides, merged)
        if conflict is not None:
            _resolve(path, conflict, sides, merged)


def _resolve(path: str, conflict: Conflict, sides: Sides, merged: Merged) -> None:
    """Resolve a conflict at one path. For OURS nothing needs to be done."""
    merged.drop(path)
    answer, again = sides.answer(path, conflict), None
    if answer is MergeStrategy.UNION:
        answer = _union(path, conflict, sides, merged)
        again = partial(_merged_again, path, sides.base.get(path), sides, union=True)
    if isinstance(answer, bytes):
        _compose(path, answer, sides, merged, again)
    elif answer is MergeStrategy.THEIRS:
        merged.changes[path] = sides.theirs.locate(path)


def _union(path: str, conflict: Conflict, sides: Sides, merged: Merged) -> bytes | MergeStrategy:
    ours, theirs = sides.ours.get(path), sides.theirs.get(path)
    if conflict.kind is ConflictKind.CHANGED_REMOVED:
        return MergeStrategy.THEIRS if _is_gone(ours) else MergeStrategy.OURS
    files = ours is not None and theirs is not None and ours.kind is theirs.kind is EntryKind.FILE
    if conflict.kind is ConflictKind.BOTH_CHANGED and files and ours is not None and theirs is not None:
        text = _merge_lines(path, sides.base.get(path), sides, union=True)
        if text is not None and ours.xattrs == theirs.xattrs:
            return text
    if (
        conflict.kind is ConflictKind.MODE
        and ours is not None
        and theirs is not None
        and ours.digest == theirs.digest
    ):
        found = sides.ours.locate(path)
        assert found is not None
        merged.changes[path] = LocatedEntry(replace(found.entry, mode=ours.mode | theirs.mode, link=""), NO_LAYER)
        if ours.kind is EntryKind.FILE:
            merged.copies[path] = found
        return MergeStrategy.OURS
    return sides.handler.leave_unresolved(conflict)


def _compose(path: str, data: bytes, sides: Sides, merged: Merged, again: Callable[[], bytes] | None = None) -> None:
    """Put a file with these bytes at the path. Its other fields are those of ours, or of theirs if ours has no file
    there."""
    files = [
        entry for view in (sides.ours, sides.theirs) if (entry := view.get(path)) and entry.kind is EntryKind.FILE
    ]
    like = files[0] if files else Entry(EntryKind.FILE, 0o644)
    newest = max((entry.mtime_ns for entry in files), default=0)
    entry = replace(like, size=len(data), digest=digest_file(data), mtime_ns=newest, link="")
    merged.changes[path] = LocatedEntry(entry, NO_LAYER)
    merged.hold(path, data, again)


def _merge_root(sides: Sides, merged: Merged) -> None:
    ours, theirs = sides.ours.root, sides.theirs.root
    mode = _three_way(sides.base.root.mode, ours.mode, theirs.mode)
    if mode is None:
        conflict = sides.conflict(".", ConflictKind.MODE, f"{ours.mode:o} in ours, {theirs.mode:o} in theirs")
        answer = sides.handler.answer(conflict, lambda: (None, None, None))
        if isinstance(answer, bytes):
            answer = sides.handler.leave_unresolved(conflict)
        modes = {MergeStrategy.THEIRS: theirs.mode, MergeStrategy.UNION: ours.mode | theirs.mode}
        mode = modes.get(answer, ours.mode)
    merged.root = replace(ours, mode=mode, mtime_ns=_time(sides.base.root, ours, theirs))


def _merge_both(
    path: str, base: Entry | None, ours: Entry | None, theirs: Entry | None, sides: Sides, merged: Merged
) -> Conflict | None:
    """Merge a path that both sides changed differently. Returns a conflict, or None if the changes are compatible."""
    if ours is None or theirs is None or _is_gone(ours) is not _is_gone(theirs):
        gone = "ours" if _is_gone(ours) else "theirs"
        return sides.conflict(path, ConflictKind.CHANGED_REMOVED, f"removed by {gone}, changed by the other")
    if ours.kind is not theirs.kind:
        detail = f"a {ours.kind.value} in ours, a {theirs.kind.value} in theirs"
        return sides.conflict(path, ConflictKind.TYPE, detail)
    alike = base if base is not None and base.kind is ours.kind else None
    mode = _three_way(alike.mode if alike else None, ours.mode, theirs.mode)
    xattrs = _three_way(alike.xattrs if alike else None, ours.xattrs, theirs.xattrs)
    digest = _three_way(alike.digest if alike else None, ours.digest, theirs.digest)
    if mode is None:
        return sides.conflict(path, ConflictKind.MODE, f"{ours.mode:o} in ours, {theirs.mode:o} in theirs")
    if xattrs is None:
        return sides.conflict(path, ConflictKind.BOTH_CHANGED, "extended attributes")
    if digest is None:
        text = _merge_lines(path, alike, sides) if alike and ours.kind is EntryKind.FILE else None
        if text is None:
            return sides.conflict(path, ConflictKind.BOTH_CHANGED, "contents")
        merged.hold(path, text, partial(_merged_again, path, alike, sides))
        entry = replace(ours, size=len(text), digest=digest_file(text), mtime_ns=_time(base, ours, theirs))
    else:
        side = sides.ours if digest == ours.digest else sides.theirs
        found = side.locate(path)
        assert found is not None
        entry = found.entry
        if entry.kind is EntryKind.FILE:
            merged.copies[path] = found
    entry = replace(entry, mode=mode, xattrs=xattrs, link="", opaque=ours.opaque or theirs.opaque)
    for side, before in ((sides.theirs, theirs), (sides.ours, ours)):
        if _same(entry, before):  # the result equals one side: nothing to compose
            merged.texts.pop(path, None)
            merged.copies.pop(path, None)
            if side is sides.theirs:
                merged.changes[path] = side.locate(path)
            return None
    merged.changes[path] = LocatedEntry(entry, NO_LAYER)
    return None


def _three_way(base: T | None, ours: T, theirs: T) -> T | None:
    """Return the merged value, or None if both sides changed it differently."""
    if ours == theirs or theirs == base:
        return ours
    return theirs if ours == base else None


def _merge_lines(path: str, base: Entry | None, sides: Sides, *, union: bool = False) -> bytes | None:
    """Merge a file of both sides by line; None if that is not possible. Larger files are not read."""
    ours, theirs = sides.ours.get(path), sides.theirs.get(path)
    if any(entry is not None and entry.size > MOST_BYTES for entry in (base, ours, theirs)):
        return None
    before = b"" if base is None else sides.bytes_of(sides.base, path) or b""
    return merge_lines(before, sides.read(sides.ours, path), sides.read(sides.theirs, path), union=union)


def _merged_again(path: str, base: Entry | None, sides: Sides, *, union: bool = False) -> bytes:
    text = _merge_lines(path, base, sides, union=union)
    assert text is not None  # as it was before: layers do not change
    return text


def _keep_links(sides: Sides, merged: Merged) -> None:
    """If theirs hard-linked a changed file to an unchanged path, take both paths, so that they stay one file."""
    seen: set[tuple[LayerId, str]] = set()
    for path, located in list(merged.changes.items()):
        manifest = sides.theirs.manifests.get(located.layer) if located is not None else None
        group = manifest.groups.get(path, ()) if manifest is not None else ()
        if not group or located is None or (located.layer, group[0]) in seen:
            continue
        seen.add((located.layer, group[0]))
        for member in group:
            there = sides.theirs.locate(member)
            linked = there is not None and there.layer == located.layer
            if linked and member not in merged.changes and sides.ours.get(member) == sides.base.get(member):
                merged.changes[member] = there


def _link_composed(sides: Sides, merged: Merged) -> None:
    """Link the paths that are one file on both sides and were composed equally."""
    files: dict[tuple[str, str], str] = {}
    for path in sorted(path for path, located in merged.changes.items() if located and located.layer == NO_LAYER):
        ours, theirs, composed = sides.ours.get(path), sides.theirs.get(path), merged.changes[path]
        if ours is None or theirs is None or composed is None:
            continue
        first = files.setdefault((ours.link or path, theirs.link or path), path)
        same = merged.changes[first]
        if first != path and same is not None and same.entry == composed.entry:
            merged.changes[path] = LocatedEntry(replace(composed.entry, link=first), NO_LAYER)


def _resolve_additions(sides: Sides, merged: Merged) -> None:
    """Handle paths that theirs added to a folder that ours removed or replaced: no one path shows this conflict."""
    whole: set[str] = set()  # folders that are there, with all above them
    for path in sorted(path for path, located in merged.changes.items() if located is not None):
        above = list(takewhile(lambda folder: folder not in whole, parent_folders(path)))
        broken = [folder for folder in above if not _is_folder(folder, sides, merged)]
        if not broken:
            whole.update(above)
        if not broken or merged.changes.get(path) is None or _is_whiteout(merged.changes[path]):
            continue
        kind = ConflictKind.CHANGED_REMOVED if _result_at(broken[-1], sides, merged) is None else ConflictKind.TYPE
        conflict = sides.conflict(path, kind, f"ours has removed the folder {broken[-1]}")
        answer = sides.answer(path, conflict)
        if answer is MergeStrategy.UNION and kind is ConflictKind.CHANGED_REMOVED:
            answer = MergeStrategy.THEIRS
        elif answer is MergeStrategy.UNION:
            answer = sides.handler.leave_unresolved(conflict)
        if answer is MergeStrategy.OURS:
            merged.drop(path)
            continue
        merged.changes.update((folder, sides.theirs.locate(folder)) for folder in broken)
        if isinstance(answer, bytes):
            _compose(path, answer, sides, merged)


def _resolve_removals(sides: Sides, merged: Merged) -> None:
    """Handle folders that theirs removed or replaced and in which ours has something of its own."""
    cleared: set[str] = set()  # folders with nothing left in them
    for path in sorted(merged.changes):
        if path not in merged.changes or _is_folder(path, sides, merged) or not sides.ours.is_folder(path):
            continue
        if split_path(path)[0] in cleared:
            cleared.add(path)
            continue
        kind = ConflictKind.CHANGED_REMOVED if _is_removed(merged.changes[path]) else ConflictKind.TYPE
        below = [child for child in sides.ours.below(path) if not _is_removed(_result_at(child, sides, merged))]
        holding, kept = set[str](), set[str]()
        for child in below:
            _add_parents(child, holding)
        for child in sorted(below, reverse=True):  # a kept child keeps its folder
            if child in kept:
                continue
            if child not in holding and _keeps_child(child, kind, path, sides, merged):
                kept.add(child)
                _add_parents(child, kept)
            else:
                merged.changes[child] = None
        if not kept:
            cleared.add(path)
        else:
            merged.drop(path)
            for folder in kept & merged.changes.keys():
                if merged.changes[folder] is None:
                    merged.drop(folder)


def _add_parents(path: str, folders: set[str]) -> None:
    """Add the folders above a path to a set that has those above each of its members."""
    for folder in parent_folders(path):
        if folder in folders:
            return
        folders.add(folder)


def _keeps_child(child: str, kind: ConflictKind, folder: str, sides: Sides, merged: Merged) -> bool:
    """Return whether ours keeps its path in a folder that theirs removed."""
    conflict = sides.conflict(child, kind, f"theirs has removed the folder {folder}")
    answer = sides.answer(child, conflict, default=MergeStrategy.THEIRS)
    if answer is MergeStrategy.UNION and kind is ConflictKind.TYPE:
        answer = sides.handler.leave_unresolved(conflict)
    if isinstance(answer, bytes):
        _compose(child, answer, sides, merged)
    return answer is not MergeStrategy.THEIRS


def _is_removed(located: LocatedEntry | None) -> bool:
    return located is None or located.entry.kind is EntryKind.WHITEOUT


def _is_whiteout(located: LocatedEntry | None) -> bool:
    return located is not None and located.entry.kind is EntryKind.WHITEOUT


def _result_at(path: str, sides: Sides, merged: Merged) -> LocatedEntry | None:
    return merged.changes[path] if path in merged.changes else sides.ours.locate(path)


def _is_folder(path: str, sides: Sides, merged: Merged) -> bool:
    located = _result_at(path, sides, merged)
    return located is not None and located.entry.kind is EntryKind.DIR
