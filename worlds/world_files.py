"""The files of a live world, read and written from the host."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

from ramify import paths
from ramify.sandboxes import contract
from ramify.sandboxes.contract import WorldSpec, why_no_argument
from ramify.worlds import files
from ramify.worlds.errors import PathRefused

MOST_READ = 256 << 20
"""Bytes of the largest file that `World.read` returns by default."""


class WorldFiles(ABC):
    """The part of `World` that reads and writes files."""

    _spec: WorldSpec

    @abstractmethod
    def _alive(self) -> contract.World:
        """The live sandbox. Raises `WorldClosed`."""

    @abstractmethod
    async def _state_taken(self) -> None:
        """Wait until the state of a snapshot that was begun is taken."""

    async def read(self, path: str | Path, *, most: int = MOST_READ) -> bytes:
        """A file's bytes. No link out of the tree is followed. Raises `PathRefused`, also for more than `most`
        bytes."""
        await self._state_taken()
        return await asyncio.to_thread(files.read, self._alive().path, self._relative(path), most)

    async def write(self, path: str | Path, data: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file, and make the folders above it. A link in its place is replaced, never followed. Raises
        `PathRefused`."""
        raw = data.encode() if isinstance(data, str) else data
        await self._state_taken()
        await asyncio.to_thread(files.write, self._alive().path, self._relative(path), raw, mode)

    async def upload(self, source: str | Path, target: str | Path = ".") -> None:
        """Copy a file of the host to `target`, or into it if that is a folder; or what is in a folder, into the
        folder `target`. Links are copied as links. Raises `PathRefused`."""
        await self._state_taken()
        await asyncio.to_thread(files.upload, paths.expanded(source), self._alive().path, self._relative(target))

    async def download(self, source: str | Path, target: str | Path) -> None:
        """Copy a file or folder of the world to the host. Links are copied as links, and none is followed. Nothing is
        overwritten. Raises `PathRefused`."""
        await self._state_taken()
        place = paths.expanded(target)
        await asyncio.to_thread(files.download, self._alive().path, self._relative(source), place)

    def _relative(self, path: str | Path) -> str:
        if why := why_no_argument(str(path)):
            raise PathRefused(f"{path!a} is no path: it has {why}")
        given = Path(path)
        if given.is_absolute():
            if not given.is_relative_to(self._spec.mount_at):
                raise PathRefused(
                    f"{given} lies outside the world's tree, {self._spec.mount_at}: use a command, such as "
                    "exec(['cat', …])"
                )
            given = given.relative_to(self._spec.mount_at)
        if ".." in given.parts:
            raise PathRefused(f"{path}: a path with '..' may lead out of the world's tree")
        return str(given)
