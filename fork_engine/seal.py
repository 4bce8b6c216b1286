"""Seal: turn what changed in a world into a layer, from an overlay's upper folder, a plain tree, or a stack of
layers.

An upper folder that stays in use, because processes other than the shell live in the world, holds everything that
changed since the world began. `LastSeal` remembers what the previous seal made of it, so that the next layer holds,
and reads, only what changed since then.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ramify.fork_engine.filesystem.file_content import wait_past_tick
from ramify.fork_engine.filesystem.openat import (
    OpenatWalker,
    folder,
    parent_folders,
    remove_tree,
    set_mode,
    set_xattrs,
    split_path,
)
from ramify.fork_engine.filesystem.scan import ACL, OPAQUE, Scan, Stamps, is_mark, scan_tree, scan_upper
from ramify.fork_engine.filesystem.write import place_copy
from ramify.fork_engine.layers import LayerReader, Layers
from ramify.fork_engine.manifest import Manifest, link_groups
from ramify.fork_engine.store_folder import write_new
from ramify.fork_engine.types import WHITEOUT, Entry, EntryKind, Snapshot
from ramify.fork_engine.view import View, differing, layer_between

_OUTSIDE_ROOT = Entry(EntryKind.DIR, 0o755)


@dataclass(frozen=True, slots=True)
class ReadUpper:
    """The content of an overlay's upper folder, as the layer that it would become."""

    folder: Path
    scan: Scan
    manifest: Manifest
    view: View  # the parent's view with this layer on top

    def same(self, parent: View) -> bool:
        """Return whether the layer changes nothing."""
        return self.view.root == parent.root and not differing(parent, self.view)


def read_upper(upper: Path, parent: View, known: Stamps | None = None) -> ReadUpper | None:
    """Read an upper folder. Returns None if it changes nothing. Writes nothing. `known`: see `scan_upper`."""
    scan = scan_upper(upper, known)
    for skipped in scan.skipped:
        if skipped.path in parent:  # a socket replaced a file, which must not reappear
            scan.entries[skipped.path] = WHITEOUT
    manifest = Manifest(scan.entries, scan.root)
    stacked = parent.stacked(manifest)
    read = ReadUpper(upper, scan, manifest, stacked)
    return None if read.same(parent) else read


def read_outside(upper: Path, parent: View, known: Stamps | None = None) -> ReadUpper | None:
    """Read the upper folder outside the workspace. Scaffolding folders count only if something is in them."""
    scan = scan_upper(upper, known)
    scan.root = _OUTSIDE_ROOT
    for skipped in scan.skipped:
        if skipped.path in parent:
            scan.entries[skipped.path] = WHITEOUT
    needed: set[str] = set()
    for path, entry in scan.entries.items():
        if not _is_scaffold(path, entry, scan, parent):
            needed.update((path, *parent_folders(path)))
    manifest = Manifest({path: scan.entries[path] for path in scan.entries if path in needed}, scan.root)
    stacked = parent.stacked(manifest)
    return ReadUpper(upper, scan, manifest, stacked) if differing(parent, stacked) else None


def _is_scaffold(path: str, entry: Entry, scan: Scan, parent: View) -> bool:
    """Return whether a folder may come from setting up the mounts. Such a folder has nothing but a mode and a time.

    A folder that a world makes there is opaque, and one that it changes is copied up.
    """
    if entry.kind is not EntryKind.DIR or entry.opaque or entry.xattrs or _copied_up(path, scan):
        return False
    before = parent.get(path)
    if before is not None:
        return before.kind is EntryKind.DIR and before.mode == entry.mode
    return not any(scan.entries[holder].opaque for holder in parent_folders(path))


def _copied_up(path: str, scan: Scan) -> bool:
    return any(is_mark(mark, "origin") for mark in scan.marked.get(path, ()))


def make_layer_from_upper(read: ReadUpper, layers: Layers, *, move: bool) -> Manifest:
    """Create the layer. With `move` the folder itself becomes the layer; if that fails, it is put back."""
    manifest, upper = read.manifest, read.folder
    if move and manifest.entries.keys() >= read.scan.entries.keys() and manifest.id not in layers:
        with layers.folder.temporary() as aside:
            fs = aside / "layer" / "fs"
            fs.parent.mkdir()
            write_new(fs.parent / "manifest.json", manifest.encoded)
            if _rename(upper, fs):
                try:
                    _normalise(fs, read.scan)
                    layers.place(manifest, fs.parent)
                except BaseException:
                    if fs.exists():
                        fs.rename(upper)  # never lose what the world wrote
                    raise
                return manifest
    _copied(manifest, upper, layers)
    if move:
        remove_tree(upper)
    return manifest


def _rename(upper: Path, fs: Path) -> bool:
    """Rename the folder. Returns False if that would cross file systems."""
    with folder(upper, grant=0o700):  # renaming a folder needs write permission on it
        try:
            upper.rename(fs)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return False
            raise
    return True


def _normalise(fs: Path, scan: Scan) -> None:
    """Make a renamed upper folder match its entries: remove foreign attributes and files that no layer can hold.

    Steps that may fail for lack of space come first, steps that cannot be undone last.
    """
    opaque = {path for path in scan.marked if path in scan.entries and scan.entries[path].opaque}
    with OpenatWalker(fs, grant=0o700) as tree:
        for path in opaque:
            if OPAQUE not in scan.marked[path]:
                parent, name = tree.parent(path)
                set_xattrs(name, parent, drop=_nothing, add={OPAQUE: b"y"})
        for path, marks in scan.marked.items():
            _unmark(path, [mark for mark in marks if mark != OPAQUE or path not in opaque], fs, tree)
        for skipped in scan.skipped:
            parent, name = tree.parent(skipped.path)
            os.unlink(name, dir_fd=parent)
            if skipped.path in scan.entries:
                os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
            holder = split_path(skipped.path)[0]
            times = scan.entries[holder].mtime_ns if holder else scan.root.mtime_ns
            os.utime(parent, ns=(times, times))
    _set_modes(fs, {path: scan.entries[path].mode for path, marks in scan.marked.items() if path and ACL in marks})
    fs.chmod(scan.root.mode)
    os.utime(fs, ns=(scan.root.mtime_ns, scan.root.mtime_ns))


def _set_modes(fs: Path, modes: Mapping[str, int]) -> None:
    """Set the modes of paths that had an ACL, parents first.

    No other walker may be open: it would restore the modes that it found.
    """
    if modes:
        with OpenatWalker(fs, grant=0o700) as tree:
            for path, mode in modes.items():
                parent, name = tree.parent(path)
                set_mode(name, parent, mode)


def _unmark(path: str, marks: list[str], fs: Path, tree: OpenatWalker) -> None:
    """Remove attributes by path name if that is permitted and the name is short enough: it is ten times faster, and
    safe because nobody else uses this folder now."""
    try:
        for mark in marks:
            os.removexattr(f"{fs}/{path}", mark, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENODATA):
            raise
        parent, name = tree.parent(path) if path else (tree.folder(""), ".")
        set_xattrs(name, parent, drop=marks.__contains__, add={})


def _nothing(_: str) -> bool:
    return False


def layer_from_tree(tree: Path, parent: View, layers: Layers) -> Manifest | None:
    """Return the layer by which a plain folder differs from the parent's view, or None if it does not."""
    scan = scan_tree(tree, parent)
    now = scan.entries
    changed = {path for path, entry in now.items() if entry != parent.get(path)}
    newest = max((now[path].mtime_ns for path in changed), default=0)
    changed.update(path for path in parent if path not in now)
    changed.update(_linked(changed, link_groups(now)))
    if not changed and scan.root == parent.root:
        return None
    manifest = _copied(Manifest(layer_between(parent, now, changed), scan.root), tree, layers)
    wait_past_tick(newest)
    return manifest


def _linked(paths: Iterable[str], groups: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Every path of the files that have one of these paths. A file may have ten thousand: look at each group once."""
    found = {groups[path][0]: groups[path] for path in paths if path in groups}
    return [member for group in found.values() for member in group]


def _copied(manifest: Manifest, source: Path, layers: Layers) -> Manifest:
    with OpenatWalker(source) as files:
        return layers.write(
            manifest,
            lambda path, entry, parent, name: place_copy(files, path, entry, parent, name, verify=True),
        )


def squashed_layer(view: View, layers: Layers) -> Manifest | None:
    """Merge all layers above the view's base into one, with files linked, not copied. Returns None if they change
    nothing."""
    base = type(view)(view.base)
    if view.root == base.root and not differing(base, view):
        return None
    entries = layer_between(base, view, view.delta)
    with LayerReader(layers) as reader:

        def place(path: str, entry: Entry, parent: int, name: str) -> None:
            located = view.locate(path)
            assert located is not None
            reader.link(path, located, parent, name)

        return layers.write(Manifest(entries, view.root), place)


@dataclass(slots=True)
class LastSeal:
    """What the last seal of upper folders that stay in use made. The world passes it to its next seal."""

    snapshot: Snapshot | None = None
    _stamps: dict[Path, Stamps] = field(default_factory=dict)

    def known(self, upper: Path) -> Stamps:
        return self._stamps.get(upper, {})

    def note(self, read: ReadUpper | None) -> None:
        if read is not None:
            self._stamps[read.folder] = read.scan.stamps

    def distrust(self) -> None:
        """Read every file at the next seal: a memory mapping may have written without a new timestamp."""
        self._stamps.clear()

    def forget(self) -> None:
        """Start over: the upper folders are gone, or were moved by a seal."""
        self.snapshot = None
        self._stamps.clear()


def layer_since(read: ReadUpper, before: View) -> ReadUpper | None:
    """Return the same upper folder as a layer over `before`, with no entries if nothing changed.

    Returns None if the upper folder alone cannot make such a layer: it is then sealed whole.
    """
    changed = set(differing(before, read.view))
    changed.update(_linked(changed, read.manifest.groups))
    made = Manifest(layer_between(before, read.view, changed), read.manifest.root)
    if any(
        entry.kind is EntryKind.FILE and path not in read.manifest.entries for path, entry in made.entries.items()
    ):
        return None
    stacked = before.stacked(made)
    if stacked.root != read.view.root or differing(stacked, read.view):
        return None
    return ReadUpper(read.folder, read.scan, made, stacked)
