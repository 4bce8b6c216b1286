"""The open files of this process, for tests that nothing stays open.

Threads of earlier tests may open and close files of their own meanwhile, so a test counts only what it can have
opened itself, and only what is new."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

SOCKETS = ("socket:", "pipe:", "anon_inode:")


def open_files(*under: str | Path) -> Counter[str]:
    """What the descriptors of this process refer to, if the name begins with one of `under`: a folder, `socket:`."""
    found = Counter[str]()
    for held in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor that lists them
            name = str(held.readlink())
            if name.startswith(tuple(map(str, under))):
                found[name] += 1
    return found


def left_open(before: Counter[str], *under: str | Path, patience_s: float = 10) -> list[str]:
    """What has been opened since `before` and is still open after a while; empty as soon as nothing is."""
    for _ in range(int(patience_s / 0.05)):
        left = open_files(*under) - before
        if not left:
            return []
        time.sleep(0.05)
    return sorted(left.elements())
