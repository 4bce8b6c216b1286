"""Prepared folders and trees for future worlds, so that a fork need not wait for them.

A fork needs four folders on the store's file system, which can take a disk's time, and the mount of its tree, which
takes a round trip to the mount server. So folders are made in advance in the background; once a snapshot has been
forked twice, trees over it are mounted in advance as well. A new world takes one together with its name.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ramify.sandboxes.agent.mount_server import Overlay
from ramify.sandboxes.errors import SandboxError
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.sandboxes.host.mount_server_client import MountServerClient
from ramify.sandboxes.host.scratch import remove_tree

STOCK = 4
TREES = 2  # as many as there are spare agents
AFTER_S = 0.02  # so that the fork that took the last one is served first

Stack = tuple[tuple[int, int], ...]
"""Layers of a mount, by device and inode: a layer that was removed and made again is another one."""


class WarmPool:
    """Empty folders, ready for worlds, in a backend's folder. After a crash they are removed with that folder."""

    def __init__(self, place: Path, trees: MountServerClient) -> None:
        self._place, self._trees = place, trees
        self._empty: list[Path] = []
        self._mounted: list[tuple[Path, os.stat_result]] = []  # tree mounted; its top layer's status
        self._unwanted: list[Path] = []  # with a tree that nobody will use
        self._lowers: Sequence[Path] = ()  # layers of the last fork
        self._stack: Stack = ()
        self._forked_again = False  # the last fork was not the first of its snapshot
        self._making: asyncio.Task[None] | None = None
        self._asked = False  # since the making began
        self._restock()

    def take(self, lowers: Sequence[Path], n: int) -> list[tuple[Path, os.stat_result | None]]:
        """Folders for `n` new worlds over these layers. A folder either has the upper and work folders of its first
        mount, or does not exist yet. If its tree is mounted already, the status of the uppermost layer's folder comes
        with it."""
        stack = identity_of(lowers)
        again = stack == self._stack != ()
        self._forked_again = again or (n > 1 and stack != ())
        if not again:
            self._unwanted += [folder for folder, _ in self._mounted]
            self._mounted.clear()
        self._lowers, self._stack = lowers, stack
        self._restock()
        return [self._take() for _ in range(n)]

    def take_folder(self) -> Path:
        """A folder as in `take`, without a tree."""
        self._restock()
        return self._empty.pop() if self._empty else self._new()

    def _take(self) -> tuple[Path, os.stat_result | None]:
        if self._mounted and not self._trees.gone:
            return self._mounted.pop()
        return self._empty.pop() if self._empty else self._new(), None

    def _new(self) -> Path:
        return self._place / uuid.uuid4().hex[:12]

    def _restock(self) -> None:
        self._asked = True
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._make())

    async def _make(self) -> None:
        while self._asked:  # a request that came while a failed attempt was under way gets its own attempt
            self._asked = False
            await asyncio.sleep(AFTER_S)
            with suppress(OSError, SandboxError):  # the next fork makes its own folder and reports why that fails
                await self._fill_up()

    async def _fill_up(self) -> None:
        while True:
            if self._unwanted:
                await finish_before_cancelling(self._clear(self._unwanted.pop()))
            elif len(self._empty) < STOCK:
                await finish_before_cancelling(self._add())
            elif self._forked_again and len(self._mounted) < TREES and self._stack == identity_of(self._lowers) != ():
                await finish_before_cancelling(self._mount_tree(self._empty.pop()))
            else:
                return

    async def _add(self) -> None:
        folder = self._new()
        await asyncio.to_thread(make_folders, folder)
        self._empty.append(folder)

    async def _mount_tree(self, folder: Path) -> None:
        lowers, stack = self._lowers, self._stack
        over = Overlay(str(folder / "upper"), str(folder / "work/1"), folder.name, fresh=True)
        self._unwanted.append(folder)  # unless the mount succeeds
        await self._trees.mount([str(lower) for lower in lowers], [over])
        if stack == self._stack == identity_of(lowers) != ():
            self._unwanted.remove(folder)
            self._mounted.append((folder, lowers[-1].stat()))

    async def _clear(self, folder: Path) -> None:
        await self._trees.unmount(folder.name, lazily=True)
        await asyncio.to_thread(remove_tree, folder)

    async def close(self) -> None:
        """Stop preparing. Mounted trees go with the mount server and the backend's folder."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait({self._making})


def identity_of(lowers: Sequence[Path]) -> Stack:
    """The layers' identity; () if one is gone: whoever mounts them reports it."""
    try:
        return tuple((status.st_dev, status.st_ino) for status in map(os.stat, lowers))
    except FileNotFoundError:
        return ()


def make_folders(folder: Path) -> None:
    """Make a world's folder, with the upper and work folders of its first mount."""
    for path in (folder, folder / "upper", folder / "work", folder / "work/1"):
        path.mkdir()
