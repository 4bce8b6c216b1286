"""Base images: files of pages that a world's next session images may build on (memory_image.py). Host side.

Each is a hard link in the world's own folder, so it outlives the image that it came with; an image that builds on it
gets another hard link to it. So every image is complete by itself, and garbage collection, checks and copies need to
know of no other image. If the store and the worlds are on two file systems there are no base images, and every image
is written whole.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.process_dump import BASE_PAGES, PAGES


class BaseImages:
    """The base images of one world."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.image = ""  # the last image that was kept; the digests of its files are known

    def available(self) -> list[int]:
        """The inodes of the base images at hand."""
        return [int(path.name) for path in self._folder.iterdir()] if self._folder.exists() else []

    def link_into(self, inode: int, session: Path) -> None:
        """Let a session's image build on one of them. Raises `OSError`."""
        (session / BASE_PAGES).hardlink_to(self._folder / str(inode))

    def keep(self, image: Path) -> None:
        """Keep the base images of this image, and drop all others."""
        self.image = image.parent.name
        self._folder.mkdir(exist_ok=True)
        held = set(self.available())
        wanted = {path.stat().st_ino: path for path in map(_base_of, image.iterdir()) if path.exists()}
        for inode in held - wanted.keys():
            (self._folder / str(inode)).unlink()
        for inode in wanted.keys() - held:
            with contextlib.suppress(OSError):  # another file system, or the file has its maximum of links
                (self._folder / str(inode)).hardlink_to(wanted[inode])


def _base_of(session: Path) -> Path:
    return session / BASE_PAGES if (session / BASE_PAGES).exists() else session / PAGES
