"""The files of pages that a world's next session images may stand on (keeping.py): the host's side.

Each is a hard link in the world's own folder, so that it outlives the image that it came with, and becomes a hard
link of the image that stands on it. So every image is whole by itself: no collection, check or copy has to know of
another. Where the store and the worlds lie on two file systems there is none, and every image is written whole.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.process_dump import GROUND, PAGES


class BaseImages:
    """Those of one world."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.image = ""  # the last image that was kept: its digests are known

    def there(self) -> list[int]:
        """Their inodes."""
        return [int(path.name) for path in self._folder.iterdir()] if self._folder.exists() else []

    def put(self, inode: int, session: Path) -> None:
        """Let a session's image stand on one of them. Raises `OSError`."""
        (session / GROUND).hardlink_to(self._folder / str(inode))

    def keep(self, image: Path) -> None:
        """Those of this image, and no others."""
        self.image = image.parent.name
        self._folder.mkdir(exist_ok=True)
        held = set(self.there())
        wanted = {path.stat().st_ino: path for path in map(_ground, image.iterdir())}
        for inode in held - wanted.keys():
            (self._folder / str(inode)).unlink()
        for inode in wanted.keys() - held:
            with contextlib.suppress(OSError):  # another file system, or one that links a file no more often
                (self._folder / str(inode)).hardlink_to(wanted[inode])


def _ground(session: Path) -> Path:
    return session / GROUND if (session / GROUND).exists() else session / PAGES
