"""Write a snapshot into a user's folder, never through a symbolic link (see `filesystem/openat.py`).

In an existing folder each file is written under a temporary name and then renamed over its target, so a crash leaves
either the old or the new file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import CheckoutRefused
from ramify.fork_engine.filesystem.file_content import sync_file_system
from ramify.fork_engine.filesystem.openat import OpenatWalker, parent_folders, remove_any, remove_tree
from ramify.fork_engine.filesystem.scan import FoundPath, entry_of, hash_file, scan_tree
from ramify.fork_engine.filesystem.write import Place, finish_folder, make_special, write_tree
from ramify.fork_engine.types import Change, ChangeKind, Entry, EntryKind
from ramify.fork_engine.view import View, change

_IN_THE_WAY = Entry(EntryKind.WHITEOUT)  # differs from every entry that a snapshot can hold
_SHOWN = 5


def fill(view: View, dest: Path, place: Place) -> None:
    """Copy the whole view into the empty folder `dest`, with hard links, attributes, modes and times (also those of
    `dest`)."""
    write_tree(dest, view, view.root, place)


def write_view(view: View, dest: Path, place: Place, *, force: bool) -> list[Change]:
    """Write a whole view into `dest`, which is missing or empty.

    With `force`, `dest` may hold files: those that differ are overwritten. Files that the snapshot does not hold are
    kept, unless they are in the way. Returns what was changed.
    """
    if dest.exists() and any(dest.iterdir()):
        if not force:
            raise CheckoutRefused(
                f"{dest}: not empty. Name a new folder, or have it overwritten: --force, or force=True in Python"
            )
        here = scan_tree(dest, view).entries
        changes = [item for path in view if (item := change(path, here.get(path), view[path]))]
        _apply(changes, view, dest, place)
        return changes
    if dest.exists():
        fill(view, dest, place)
    else:
        _fill_new(view, dest, place)
    _flush(dest)
    return [Change(path, ChangeKind.ADDED, None, view[path]) for path in view]


def _fill_new(view: View, dest: Path, place: Place) -> None:
    dest.parent.mkdir(parents=True, exist_ok=True)
    aside = dest.parent / f".ramify-{os.getpid()}-{dest.name[:100]}"
    aside.mkdir()
    try:
        fill(view, aside, place)
        aside.rename(dest)
        crash_points.point("written out")
    except BaseException:
        remove_tree(aside)
        raise


def apply_changes(changes: Sequence[Change], after: View, dest: Path, place: Place, *, force: bool) -> list[Change]:
    """Apply `changes` to a folder that is still as it was before them. Returns the changes that were not there yet.

    Raises `CheckoutRefused`, before anything is written, if the folder differs at a changed path. `force` overwrites
    it.
    """
    made = {item.path for item in changes if item.after is not None and item.after.kind is EntryKind.DIR}
    gone = {item.path for item in changes if item.after is None}
    todo: list[Change] = []
    clashes: list[str] = []
    with OpenatWalker(dest) as tree:
        for item in changes:
            now = _current_entry(tree, item, made)
            if change(item.path, now, item.after) is None:
                continue
            todo.append(item)
            if change(item.path, now, item.before) is not None:
                clashes.append(item.path)
            elif now is not None and now.kind is EntryKind.DIR and item.path not in made:
                clashes.extend(child for child in _children(tree, item.path) if child not in gone)
    if clashes and not force:
        shown = ", ".join(map(repr, clashes[:_SHOWN])) + (
            f" and {len(clashes) - _SHOWN} more" if len(clashes) > _SHOWN else ""
        )
        raise CheckoutRefused(
            f"{dest}: changed since the run began: {shown}. Check the snapshot out into a new folder, "
            f"or have these overwritten (force=True)"
        )
    _apply(todo, after, dest, place)
    return todo


def _current_entry(tree: OpenatWalker, item: Change, made: set[str]) -> Entry | None:
    """Return the entry at the path, or None if nothing is there and the folder that would hold it exists or is in
    `made`."""
    path = item.path
    try:
        parent, name = tree.parent(path)
    except (FileNotFoundError, NotADirectoryError):
        return None if item.after is None or next(parent_folders(path)) in made else _IN_THE_WAY
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    found = FoundPath(path, name, parent, status)
    if stat.S_ISDIR(status.st_mode):
        found.folder = tree.folder(path)
    return entry_of(found, hash_file) or _IN_THE_WAY


def _children(tree: OpenatWalker, path: str) -> list[str]:
    with os.scandir(tree.folder(path)) as found:
        return sorted(f"{path}/{child.name}" for child in found)


@dataclass(slots=True)
class _Writing:
    after: View
    tree: OpenatWalker
    place: Place
    # path → whether the folder is new; modes and times are set at the end
    folders: dict[str, bool] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)  # folders that are known to exist
    written: int = 0


def _apply(changes: Sequence[Change], after: View, dest: Path, place: Place) -> None:
    with OpenatWalker(dest, grant=0o700) as tree:
        writing = _Writing(after, tree, place)
        for item in sorted(changes, key=lambda item: item.path, reverse=True):
            if item.after is None:
                _remove(item.path, tree)
        for item in sorted(changes, key=lambda item: item.path):
            if item.after is not None:
                _write(item.path, item.after, writing)
    # a new walker, because the first one restored the modes that it had found
    with OpenatWalker(dest, grant=0o700) as tree:
        for path in sorted(writing.folders, reverse=True):
            parent, name = tree.parent(path)
            finish_folder(after[path], parent, name, times=writing.folders[path])
    _flush(dest)


def _remove(path: str, tree: OpenatWalker) -> None:
    """Remove the path, unless it is a folder that still holds something."""
    try:
        parent, name = tree.parent(path)
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            if not _children(tree, path):
                parent, name = tree.parent(path)
                os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        return  # its folder is gone, or something else is there


def _write(path: str, entry: Entry, writing: _Writing) -> None:
    above = takewhile(lambda folder: folder not in writing.there, parent_folders(path))
    for folder in reversed(list(above)):
        _ensure_folder(folder, writing)
    if entry.kind is EntryKind.DIR:
        _ensure_folder(path, writing)
        writing.folders.setdefault(path, False)
        return
    parent, name = writing.tree.parent(path)
    aside = f".ramify-{os.getpid()}-{writing.written}"
    writing.written += 1
    try:
        if entry.kind is EntryKind.FILE:
            writing.place(path, entry, parent, aside)
        else:
            make_special(entry, parent, aside)
        if _is_folder(name, parent):
            remove_tree(name, parent)
        os.rename(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
        crash_points.point("written out")
    except BaseException:
        remove_any(aside, parent)
        raise


def _ensure_folder(path: str, writing: _Writing) -> None:
    if path in writing.there:
        return
    writing.there.add(path)
    parent, name = writing.tree.parent(path)
    if not _is_folder(name, parent):
        remove_any(name, parent)
        os.mkdir(name, 0o700, dir_fd=parent)
        writing.folders[path] = True


def _is_folder(name: str, parent: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _flush(dest: Path) -> None:
    fd = os.open(dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(fd)
    finally:
        os.close(fd)
