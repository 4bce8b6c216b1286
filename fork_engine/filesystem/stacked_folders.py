"""Find a path in a stack of layer folders without mounting it, as overlayfs would."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ramify.fork_engine.filesystem.scan import OPAQUE

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
