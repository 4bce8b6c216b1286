"""The merged view of a stack of layers, as overlayfs would show it, and the differences between two views.

A view is the base layer's manifest, which is shared and never copied, plus a small dictionary of what the layers
above it changed. So making a view costs what changed, however large the workspace is. `find_in_stack` finds one path
in a stack of layer folders without their manifests and without a mount.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ramify.fork_engine.filesystem.openat import parent_folders, split_path
from ramify.fork_engine.filesystem.scan import OPAQUE, relink
from ramify.fork_engine.manifest import Manifest, StackManifest
from ramify.fork_engine.types import WHITEOUT, Change, ChangeKind, Entry, EntryKind, LayerId

_MOST_LINKS = 40
"""One after the other, as the kernel follows."""


def find_in_stack(folders: Sequence[Path], path: str) -> Path | None:
    """The uppermost folder's copy of `path` (lowest folder first), or None. Links on the way are not followed."""
    for folder in reversed(folders):
        found, hidden = _in_layer(folder, path)
        if found is not None or hidden:
            return found
    return None


def is_folder_in_stack(folders: Sequence[Path], path: str) -> bool:
    """Whether a path is a folder. Links are followed as they lead inside the stack, never on this machine."""
    at, todo, links = list[str](), path.split("/")[::-1], 0
    while todo:
        part = todo.pop()
        if part == "..":
            del at[-1:]
        elif part not in ("", "."):
            found = find_in_stack(folders, "/".join([*at, part]))
            if found is None:
                return False
            if not found.is_symlink():
                at.append(part)
                continue
            links, target = links + 1, str(found.readlink())
            if links > _MOST_LINKS:
                return False
            if target.startswith("/"):
                at = []
            todo += target.split("/")[::-1]
    there = find_in_stack(folders, "/".join(at))
    return there is not None and stat.S_ISDIR(there.lstat().st_mode)


def _in_layer(folder: Path, path: str) -> tuple[Path | None, bool]:
    """What one layer has at the path, and whether it hides what lower layers have there."""
    at, hides = folder, False
    for part in path.split("/") if path else ():
        if not stat.S_ISDIR(at.lstat().st_mode):
            return None, True
        hides = hides or _is_opaque(at)
        at = at / part
        try:
            status = at.lstat()
        except FileNotFoundError:
            return None, hides
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            return None, True
    return at, True


def _is_opaque(folder: Path) -> bool:
    try:
        return os.getxattr(folder, OPAQUE) == b"y"
    except OSError:
        return False


class LocatedEntry(NamedTuple):
    """An entry and the layer whose folder holds it."""

    entry: Entry
    layer: LayerId


class View(Mapping[str, Entry]):
    """Maps paths to entries, with whiteouts and opaque folders applied. Immutable; iterates in sorted order."""

    def __init__(
        self,
        base: Manifest,
        delta: Mapping[str, LocatedEntry | None] | None = None,
        manifests: Mapping[LayerId, Manifest] | None = None,
        root: Entry | None = None,
    ) -> None:
        self.base = base
        self.delta: Mapping[str, LocatedEntry | None] = delta or {}  # against the base; None: removed
        self.manifests: Mapping[LayerId, Manifest] = manifests or {base.id: base}
        self.root = root or base.root  # the top folder itself, which is not a path of the mapping
        self._firsts: dict[
            tuple[LayerId, str], str
        ] = {}  # of a layer's file with several names: the first that is left

    def locate(self, path: str) -> LocatedEntry | None:
        if path in self.delta:
            return self.delta[path]
        entry = self.base.entries.get(path)
        return None if entry is None else LocatedEntry(entry, self.base.layer_of(path))

    def __getitem__(self, path: str) -> Entry:
        found = self.locate(path)
        if found is None:
            raise KeyError(path)
        return self._with_link(path, found)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.locate(path) is not None

    def __iter__(self) -> Iterator[str]:
        untouched = (path for path in self.base.paths if path not in self.delta)
        return heapq.merge(untouched, (path for path in self._delta_paths if self.delta[path] is not None))

    def __len__(self) -> int:
        return len(self.base.entries) + sum(
            (found is not None) - (path in self.base.entries) for path, found in self.delta.items()
        )

    def _with_link(self, path: str, found: LocatedEntry) -> Entry:
        """Return the entry with its current `link`: hard links hold between those paths of one layer's file that no
        upper layer replaced."""
        manifest = self.manifests.get(found.layer)
        group = manifest.groups.get(path) if manifest is not None else None
        if group is None:
            return found.entry
        key = (found.layer, group[0])
        if key not in self._firsts:  # a file may have ten thousands of names
            left = (p for p in group if (at := self.locate(p)) is not None and at.layer == found.layer)
            self._firsts[key] = next(left)
        first = self._firsts[key]
        link = "" if first == path else first
        return found.entry if found.entry.link == link else replace(found.entry, link=link)

    @functools.cached_property
    def _delta_paths(self) -> Sequence[str]:
        return sorted(self.delta)

    def below(self, folder: str) -> Iterator[str]:
        """Yield every path below a folder, unordered."""
        for path in _slice(self.base.paths, folder):
            if path not in self.delta:
                yield path
        for path in _slice(self._delta_paths, folder):
            if self.delta[path] is not None:
                yield path

    def is_folder(self, path: str) -> bool:
        found = self.locate(path)
        return path == "" or (found is not None and found.entry.kind is EntryKind.DIR)

    def changed(
        self, changes: Mapping[str, LocatedEntry | None], root: Entry, more: Mapping[LayerId, Manifest]
    ) -> View:
        """Return this view with some paths replaced or (None) removed. `more`: manifests of layers that are new in
        it."""
        delta = dict(self.delta)
        for path, found in changes.items():
            if found is not None or path in self.base.entries:
                delta[path] = found
            else:
                delta.pop(path, None)
        return type(self)(self.base, delta, {**self.manifests, **more}, root)

    def stacked(self, layer: Manifest) -> View:
        """Return this view with one more layer on top."""
        changes: dict[str, LocatedEntry | None] = {}
        for path in layer.paths:  # a folder comes before its content
            entry = layer.entries[path]
            merges = entry.kind is EntryKind.DIR and not entry.opaque
            if not merges and self.is_folder(path):
                changes.update(dict.fromkeys(self.below(path)))
            if entry.kind is EntryKind.WHITEOUT:
                changes[path] = None
            else:
                changes[path] = LocatedEntry(replace(entry, opaque=False) if entry.opaque else entry, layer.id)
        return self.changed(changes, layer.root, {layer.id: layer})

    def flattened(self, stack: tuple[LayerId, ...]) -> View:
        """Return the same view with everything in its base, so that views over it cost what changed since. `stack`:
        its layers."""
        layers = {path: found.layer for path in self if (found := self.locate(path)) is not None}
        return View(
            StackManifest({path: self[path] for path in layers}, self.root, layers, stack), None, self.manifests
        )


class HostOverlayView(View):
    """The view of a stack over the host's own folders, which are not listed. What hides something of the host is an
    entry.

    A whiteout is an entry here, and a folder is opaque if it hides what the host may have at its path. Nothing inside
    an opaque folder hides anything more.
    """

    def __init__(
        self,
        base: Manifest | None = None,
        delta: Mapping[str, LocatedEntry | None] | None = None,
        manifests: Mapping[LayerId, Manifest] | None = None,
        root: Entry | None = None,
    ) -> None:
        super().__init__(base or _NOTHING, delta, manifests, root)

    def stacked(self, layer: Manifest) -> HostOverlayView:
        changes: dict[str, LocatedEntry | None] = {}

        inside: dict[str, bool] = {"": False}  # whether a folder, or one above it, hides what the host has

        def now(path: str) -> Entry | None:
            found = changes[path] if path in changes else self.delta.get(path)
            return None if found is None else found.entry

        def is_closed(path: str) -> bool:
            new = []
            for folder in parent_folders(path):
                if folder in inside:
                    break
                new.append(folder)
            for folder in reversed(new):
                inside[folder] = inside[split_path(folder)[0]] or _hides(now(folder))
            return inside[split_path(path)[0]]

        for path in layer.paths:
            entry, before = layer.entries[path], now(path)
            closed = is_closed(path)
            if entry.kind is EntryKind.DIR and not entry.opaque:
                hides = before is not None and (before.opaque or before.kind is not EntryKind.DIR)
            else:
                hides = entry.opaque
                if self.is_folder(path):
                    changes.update(dict.fromkeys(self.below(path)))
            if entry.kind is EntryKind.WHITEOUT and closed:
                changes[path] = None
            else:
                changes[path] = LocatedEntry(replace(entry, opaque=hides and not closed), layer.id)
        return self.changed(changes, layer.root, {layer.id: layer})

    def changed(
        self, changes: Mapping[str, LocatedEntry | None], root: Entry, more: Mapping[LayerId, Manifest]
    ) -> HostOverlayView:
        delta = {**self.delta, **changes}
        known = {path: found for path, found in delta.items() if found is not None}
        return HostOverlayView(self.base, known, {**self.manifests, **more}, root)


_NOTHING = Manifest({}, Entry(EntryKind.DIR, 0o755))


def _hides(entry: Entry | None) -> bool:
    return entry is not None and entry.opaque


def differing(before: View, after: View) -> list[str]:
    """Return the sorted paths whose entries differ in anything that a restore brings back. Costs what changed if the
    base is shared."""
    if before.base.id == after.base.id:
        touched = before.delta.keys() | after.delta.keys()
        candidates = [path for path in touched if before.locate(path) != after.locate(path)]
    else:
        candidates = list(before.keys() | after.keys())
    return sorted(path for path in candidates if before.get(path) != after.get(path))


def _slice(paths: Sequence[str], folder: str) -> Sequence[str]:
    """Return the sorted paths below a folder. "0" is the character after "/"."""
    if folder == "":
        return paths
    return paths[bisect.bisect_left(paths, folder + "/") : bisect.bisect_left(paths, folder + "0")]


def changes(before: View, after: View) -> list[Change]:
    """Return the changes from `before` to `after`, sorted by path. A change of times only is not one."""
    found = (change(path, before.get(path), after.get(path)) for path in differing(before, after))
    return [item for item in found if item is not None]


def changes_over_host(before: View, after: View) -> list[Change]:
    """Return the changes between two views over the host's own folders, sorted by path.

    What the host has below is unknown: a file that a world wrote there for the first time is added, even in place of
    one of the host's. Folders are left out, because one that merely leads to a change looks like a new one.
    """
    found = []
    for path in differing(before, after):
        was, now = (_own(view.get(path)) for view in (before, after))
        after_it = after.get(path)
        if was is None and after_it is not None and after_it.kind is EntryKind.WHITEOUT:
            found.append(Change(path, ChangeKind.REMOVED, None, None))
        elif (item := change(path, was, now)) is not None:
            found.append(item)
    return found


def _own(entry: Entry | None) -> Entry | None:
    """An entry that is a file of the world's own."""
    return None if entry is None or entry.kind in (EntryKind.DIR, EntryKind.WHITEOUT) else entry


def change(path: str, before: Entry | None, after: Entry | None) -> Change | None:
    """Return the change of one path, or None if at most times or hard links differ. Extended attributes count as
    contents."""
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
    """Return the entries of the layer that turns `before` into `after`, which differ only in the paths `changed`.

    A layer also holds every folder above its paths. If the first path of a hard-linked file is not in the layer, the
    first one that is takes its place. A folder of the layer hides what `before` has at its path only if `after` hides
    more there than `before` does; then the layer holds all that is left in it.
    """
    layer: dict[str, Entry] = {}
    for path in sorted(changed):
        entry = after.get(path)
        if entry is not None:
            layer[path] = entry
        elif path in before and _is_folder(after, split_path(path)[0]):
            layer[path] = WHITEOUT
        else:
            continue  # removed together with its folder
        for folder in parent_folders(path):
            if folder in layer:  # with those above it
                break
            layer[folder] = after[folder]
    opaque = [path for path, entry in layer.items() if entry.opaque and before.is_folder(path)]
    paths = sorted(after) if opaque else []
    for folder in opaque:
        if before[folder].opaque:
            layer[folder] = replace(layer[folder], opaque=False)
        else:
            layer.update((path, after[path]) for path in _slice(paths, folder))
    groups: dict[str, list[str]] = {}
    for path, entry in layer.items():
        if entry.link:
            groups.setdefault(entry.link, [entry.link] if entry.link in layer else []).append(path)
    return relink(layer, groups.values())


def _is_folder(entries: Mapping[str, Entry], path: str) -> bool:
    entry = entries.get(path)
    return path == "" or (entry is not None and entry.kind is EntryKind.DIR)
