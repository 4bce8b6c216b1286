"""The folder of one world, and the overlays that write into it: its tree, and what lies beside the tree.

A world has one place at a time. A rollback gives it another one, so nothing waits until the old one is cleared. A
prepared place has an agent that waits there, with all but the tree mounted (prepared_places.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ramify.sandboxes.agent.mount_server import Overlay
from ramify.sandboxes.backends.namespaces.home_overlay import SideOverlay
from ramify.sandboxes.backends.namespaces.warm_pool import Stack
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.host.concurrency import run_all_to_end
from ramify.sandboxes.host.mount_server_client import MountServerClient
from ramify.sandboxes.host.scratch import remove_tree


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
