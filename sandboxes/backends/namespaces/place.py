"""The folder of one world, the overlays that write into it, and a stock of such folders and trees for future worlds.

A world has one place at a time: its tree, and what lies beside the tree. A rollback gives it another one, so nothing
waits until the old one is cleared. A prepared place has an agent that waits there, with all but the tree mounted
(prepared_places.py).

A fork needs four folders on the store's file system, which can take a disk's time, and the mount of its tree, which
takes a round trip to the mount server. So a `WarmPool` makes folders in advance in the background; once a snapshot
has been forked twice, it mounts trees over it in advance as well. A new world takes one together with its name.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ramify.sandboxes.agent.mount_server import Overlay
from ramify.sandboxes.backends.namespaces.home_overlay import SideOverlay
from ramify.sandboxes.errors import SandboxError
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.host.concurrency import finish_before_cancelling, run_all_to_end
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
        return self._place / secrets.token_hex(6)

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


class Place:
    """`tree_mounted`: the status of the uppermost layer's folder, if the tree is mounted already."""

    def __init__(self, folder: Path, trees: MountServerClient, tree_mounted: os.stat_result | None = None) -> None:
        self.folder, self._trees = folder, trees
        self.agent: AgentLink | None = None  # waits for the world
        self.layers: tuple[Path, ...] = ()  # below the tree that was mounted for a warm snapshot
        self.stack: Stack = ()  # their identity then
        self.warm = False  # with the tree mounted and the snapshot's processes restored, which stand still
        self.beside: list[SideOverlay] = []
        self._works: list[Path] = []  # work folders of the mounts beside the tree
        self._fresh = folder.exists()  # the folders for the first mount of the tree exist, empty
        self._mounts = int(self._fresh)  # how many; overlayfs accepts no work folder twice after `volatile`
        self._untouched: dict[str, tuple[int, int]] = {}  # by upper: its mode and time when it was created
        self.has_tree = tree_mounted is not None  # for a start that is still to come
        if tree_mounted is not None:
            self.next_tree_overlay("")
            self.note_new_tree(tree_mounted)

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    def next_tree_overlay(self, point: str) -> Overlay:
        """The next overlay of the tree, mounted at `point` of the mount server."""
        fresh, self._fresh = self._fresh, False
        self._mounts += not fresh
        work = self.folder / f"work/{1 if fresh else self._mounts}"
        return Overlay(str(self.upper), str(work), point, fresh)

    def note_new_tree(self, top: os.stat_result) -> None:
        """The tree's first overlay was mounted over layers with this uppermost folder."""
        self.has_tree = True
        self._untouched[str(self.upper)] = (top.st_mode, top.st_mtime_ns)

    async def mount_tree(self, lowers: Sequence[Path], point: str) -> None:
        fresh = self._fresh or not self.upper.exists()
        await self._trees.mount([str(folder) for folder in lowers], [self.next_tree_overlay(point)])
        if fresh:
            self._record_unchanged(str(self.upper))

    async def mount_beside(self, given: list[int]) -> None:
        """Mount all beside the tree, and append descriptors of the mounts to `given`. Sends all orders at once: the
        mount server works through them one by one without waiting for us."""
        mounted: dict[int, list[int]] = {}
        self._works = []

        async def mount(at: int, beside: SideOverlay) -> None:
            self._mounts += 1
            fresh = not Path(beside.upper).exists()
            work = self.folder / f"work/{self._mounts}"
            self._works.append(work)
            mounted[at] = await self._trees.mount(beside.lowers, [beside.over(str(work))])
            if fresh:
                self._record_unchanged(beside.upper)

        try:
            await run_all_to_end([mount(at, beside) for at, beside in enumerate(self.beside)])
        finally:
            for at in sorted(mounted):
                given += mounted[at]

    def spent_works(self, *, outside: bool) -> set[Path]:
        """The work folders of the mounts that a seal removes: those of the tree, with `outside` all."""
        return set((self.folder / "work").iterdir()) - (set() if outside else set(self._works))

    def unchanged(self, uppers: Iterable[str]) -> bool:
        """Whether nothing was written into these since they were created."""
        return all(map(self._unchanged, uppers))

    def _record_unchanged(self, upper: str) -> None:
        now = Path(upper).stat()
        self._untouched[upper] = (now.st_mode, now.st_mtime_ns)

    def _unchanged(self, upper: str) -> bool:
        if not Path(upper).exists():
            return True  # never mounted
        now = Path(upper).stat()
        same = (now.st_mode, now.st_mtime_ns) == self._untouched.get(upper, (now.st_mode, now.st_mtime_ns))
        return same and not any(Path(upper).iterdir())

    async def clear(self) -> None:
        """End the agent that waits, and remove all."""
        if self.agent is not None:
            await self.agent.close()
        if self.warm:
            await self._trees.unmount(self.folder.name, lazily=True)
        await asyncio.to_thread(self.remove)

    def remove(self) -> None:
        """Remove the folder. Blocks."""
        remove_tree(self.folder)
