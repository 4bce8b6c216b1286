"""Find a path in a stack of layer folders without mounting it, as overlayfs would."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ramify.fork_engine.filesystem.scan import OPAQUE


def find_in_stack(folders: Sequence[Path], path: str) -> Path | None:
    """The uppermost folder's copy of `path` (lowest folder first), or None. Links on the way are not followed."""
    for folder in reversed(folders):
        found, hidden = _in_layer(folder, path)
        if found is not None or hidden:
            return found
    return None


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
