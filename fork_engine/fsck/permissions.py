"""Modes and owners of the store's own files: who can read what worlds left, and whether worlds can overwrite it.

The files of a layer have the modes that the world gave them, including set-id bits. Other users cannot run them
because the store's folders are closed to them. A world of an ordinary user cannot copy up a file that another user
owns.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ramify.fork_engine.errors import StoreUnusable
from ramify.fork_engine.store_folder import FILE_MODE, FOLDER_MODE, TREE_MODE, StoreFolder, read_store_file, write_new

FOLDERS = ("layers", "images", "blobs", "snapshots", "index", "tmp", "unflushed")
TREES = ("layers", "images")
_FILES = ("blobs", "snapshots", "index")
_SHUT = stat.S_IRWXG | stat.S_IRWXO | stat.S_IXUSR | stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


def owner(root: Path) -> int:
    """Return the store's owner: the owner of most of its folders, since a single one may have been given away."""
    found = [(root / name).lstat().st_uid for name in FOLDERS if (root / name).is_dir()]
    return Counter(found).most_common(1)[0][0] if found else os.geteuid()


def wrong_permissions(root: Path) -> Iterator[tuple[str, str, str, str]]:
    """Find wrong modes and owners of the store's own files: (folder, name, path, what is wrong). Reads only.

    The folder is "" for names at the top. In a tree the path is "manifest.json" or "".
    """
    mine = owner(root)
    for name in FOLDERS:
        link = "a link: move the folder here" if (root / name).is_symlink() else ""
        if wrong := link or _wrong(root / name, stat.S_IFDIR, FOLDER_MODE, mine):
            yield "", name, "", wrong
    if wrong := _shut(root / "lock", mine):
        yield "", "lock", "", wrong
    for kind in TREES:
        for name in _names(root / kind):
            if wrong := _wrong(root / kind / name, stat.S_IFDIR, TREE_MODE, mine):
                yield kind, name, "", wrong
            if wrong := _wrong(root / kind / name / "manifest.json", stat.S_IFREG, FILE_MODE, mine):
                yield kind, name, "manifest.json", wrong
    for kind in _FILES:
        for name in _names(root / kind):
            if wrong := _wrong(root / kind / name, stat.S_IFREG, FILE_MODE, mine):
                yield kind, name, "", wrong


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _wrong(path: Path, kind: int, mode: int, mine: int) -> str:
    """Describe a wrong mode or owner; "" if the path is missing or of another kind, which other checks report."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""
    if stat.S_IFMT(status.st_mode) != kind:
        return ""
    found = stat.S_IMODE(status.st_mode)
    told = [f"mode {found:04o}, not {mode:04o}"] if found != mode else []
    told += [f"owner {status.st_uid}, not {mine}"] if status.st_uid != mine else []
    return "; ".join(told)


def _shut(lock: Path, mine: int) -> str:
    """Describe a wrong mode of the lock file. In a store that is only read, even its owner may lack access; others
    never have any."""
    status = lock.lstat()
    found = stat.S_IMODE(status.st_mode)
    told = [f"mode {found:04o}, not 0600"] if found & _SHUT else []
    told += [f"owner {status.st_uid}, not {mine}"] if status.st_uid != mine else []
    return "; ".join(told)


def restore_permissions(folder: StoreFolder) -> None:
    """Set the right mode and owner wherever `wrong_permissions` finds a wrong one. What is not permitted is left.

    Raises `StoreUnusable` for root in another user's store: what root repaired would belong to root, and that user's
    worlds could not overwrite it.
    """
    root, mine = folder.root, owner(folder.root)
    if os.geteuid() == 0 != mine:
        raise StoreUnusable(f"the store {root} belongs to user {mine}. Run `ramify fsck --repair` as that user")
    for kind, name, inner, _ in list(wrong_permissions(root)):
        path = root / kind / name / inner
        if path.is_symlink():
            continue
        mode = 0o600 if not kind and name == "lock" else FOLDER_MODE if not kind else FILE_MODE
        if kind in TREES and not inner:
            mode = TREE_MODE
        try:
            if path.lstat().st_uid != mine:
                _take(path, mine, folder)
            path.chmod(mode)
        except PermissionError:
            continue  # the following check reports it


def _take(path: Path, mine: int, folder: StoreFolder) -> None:
    """Take over a file that another user owns: replace it by our copy. Raises PermissionError."""
    if os.geteuid() == 0:
        os.chown(path, mine, -1, follow_symlinks=False)
        return
    if path.is_dir() or path.name == "lock":
        raise PermissionError(path)
    with folder.temporary() as aside:
        write_new(aside / path.name, read_store_file(path))
        (aside / path.name).rename(path)
