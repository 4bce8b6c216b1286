"""Turning what changed in a world into a layer: from an overlay's upper folder, from a plain tree, from a stack."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ramify.fork_engine.content import wait_past_tick
from ramify.fork_engine.descent import Descent, folder, remove_tree, set_xattrs, split
from ramify.fork_engine.diff import layer_between
from ramify.fork_engine.layers import Layers, Reader
from ramify.fork_engine.manifest import Manifest, link_groups
from ramify.fork_engine.scan import OPAQUE, Scan, is_overlays, scan_tree, scan_upper
from ramify.fork_engine.types import Entry, EntryKind
from ramify.fork_engine.view import View, differing
from ramify.fork_engine.write import place_copy

_WHITEOUT = Entry(EntryKind.WHITEOUT)


def upper_layer(upper: Path, parent: View, layers: Layers, *, move: bool) -> Manifest | None:
    """The layer that an upper folder is; None, the folder left as it is, where it changes nothing.

    With `move` the folder itself becomes the layer, and is gone.
    """
    scan = scan_upper(upper)
    for skipped in scan.skipped:
        if skipped.path in parent:  # a socket in place of a file: the file must not come back
            scan.entries[skipped.path] = _WHITEOUT
    manifest = Manifest(scan.entries, scan.root)
    above = parent.stacked(manifest)
    if above.root == parent.root and not differing(parent, above):
        return None
    if move:
        with layers.temporary() as aside:
            fs = aside / "layer" / "fs"
            fs.parent.mkdir()
            if _rename(upper, fs):
                _normalise(fs, scan)
                layers.adopt(manifest, fs)
                return manifest
    _copied(manifest, upper, layers)
    if move:
        remove_tree(upper)
    return manifest


def _rename(upper: Path, fs: Path) -> bool:
    """False across file systems."""
    with folder(upper, lend=0o700):  # renaming a folder writes to it
        try:
            upper.rename(fs)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return False
            raise
    return True


def _normalise(fs: Path, scan: Scan) -> None:
    """Make a renamed upper folder what its entries say: no overlay bookkeeping, nothing that cannot be kept."""
    with Descent(fs, lend=0o700) as tree:
        for path in scan.marked:
            parent, name = tree.parent(path) if path else (tree.folder(""), ".")
            opaque = path in scan.entries and scan.entries[path].opaque
            set_xattrs(name, parent, drop=is_overlays, add={OPAQUE: b"y"} if opaque else {})
        for skipped in scan.skipped:
            parent, name = tree.parent(skipped.path)
            os.unlink(name, dir_fd=parent)
            if skipped.path in scan.entries:
                os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
            holder = split(skipped.path)[0]
            times = scan.entries[holder].mtime_ns if holder else scan.root.mtime_ns
            os.utime(parent, ns=(times, times))


def tree_layer(tree: Path, parent: View, layers: Layers) -> Manifest | None:
    """The layer by which a plain folder differs from the parent's view; None where it does not."""
    scan = scan_tree(tree, parent)
    now = scan.entries
    changed = {path for path, entry in now.items() if entry != parent.get(path)}
    newest = max((now[path].mtime_ns for path in changed), default=0)
    changed.update(path for path in parent if path not in now)
    groups = link_groups(now)
    changed.update([member for path in changed for member in groups.get(path, ())])
    if not changed and scan.root == parent.root:
        return None
    manifest = _copied(Manifest(layer_between(parent, now, changed), scan.root), tree, layers)
    wait_past_tick(newest)
    return manifest


def _copied(manifest: Manifest, source: Path, layers: Layers) -> Manifest:
    with Descent(source) as files:
        return layers.write(
            manifest,
            lambda path, entry, parent, name: place_copy(files, path, entry, parent, name, verify=True),
        )


def squashed_layer(view: View, layers: Layers) -> Manifest | None:
    """All layers above the base as one, files linked, not copied. None where they cancel each other out."""
    base = View(view.base)
    if view.root == base.root and not differing(base, view):
        return None
    entries = layer_between(base, view, view.delta)
    with Reader(layers) as reader:

        def place(path: str, entry: Entry, parent: int, name: str) -> None:
            located = view.locate(path)
            assert located is not None
            reader.link(path, located, parent, name)

        return layers.write(Manifest(entries, view.root), place)
