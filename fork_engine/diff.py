"""What differs between two views: as changes for people and checkouts, as a layer for the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ramify.fork_engine.descent import split
from ramify.fork_engine.manifest import relink
from ramify.fork_engine.types import Change, ChangeKind, Entry, EntryKind
from ramify.fork_engine.view import View, differing

_WHITEOUT = Entry(EntryKind.WHITEOUT)


def changes(before: View, after: View) -> list[Change]:
    """Sorted by path. Times alone are no change."""
    found = (change(path, before.get(path), after.get(path)) for path in differing(before, after))
    return [item for item in found if item is not None]


def change(path: str, before: Entry | None, after: Entry | None) -> Change | None:
    """The change of one path; None where only times or hard links differ. Attributes count as contents."""
    if before is None or after is None:
        if before is after:
            return None
        return Change(path, ChangeKind.ADDED if before is None else ChangeKind.REMOVED, before, after)
    if before.kind is not after.kind:
        return Change(path, ChangeKind.TYPE, before, after)
    if (before.digest, before.xattrs) != (after.digest, after.xattrs):
        return Change(path, ChangeKind.MODIFIED, before, after)
    if before.mode != after.mode:
        return Change(path, ChangeKind.MODE, before, after)
    return None


def layer_between(before: View, after: Mapping[str, Entry], changed: Iterable[str]) -> dict[str, Entry]:
    """The entries of the layer that, stacked on `before`, shows `after`. They differ in `changed` only.

    A layer holds the folders above all it names. A hard link whose first path is not in the layer goes to the first
    that is.
    """
    layer: dict[str, Entry] = {}
    for path in sorted(changed):
        entry = after.get(path)
        if entry is not None:
            layer[path] = entry
        elif path in before and _is_folder(after, split(path)[0]):
            layer[path] = _WHITEOUT
        else:
            continue  # gone with the folder that held it
        for folder in above(path):
            layer.setdefault(folder, after[folder])
    groups: dict[str, list[str]] = {}
    for path, entry in layer.items():
        if entry.link:
            groups.setdefault(entry.link, [entry.link] if entry.link in layer else []).append(path)
    return relink(layer, groups.values())


def above(path: str) -> Iterator[str]:
    """The folders that hold a path, nearest first, the root left out."""
    while path := split(path)[0]:
        yield path


def _is_folder(entries: Mapping[str, Entry], path: str) -> bool:
    entry = entries.get(path)
    return path == "" or (entry is not None and entry.kind is EntryKind.DIR)
