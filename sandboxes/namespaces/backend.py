"""The default backend: a fork is a mount, a seal is a rename.

A world's tree is an overlay: the snapshot's layers below, a fresh upper folder on top. A seal takes the mount away
for a moment, hands the upper to the store as a new layer and mounts the longer stack. Where a process besides the
shell lives, or something holds the mount, all are frozen and the upper is copied instead; the world then goes on
over its old stack, so that its next layer is again everything since that stack.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends import AgentBackend
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.errors import SandboxError
from ramify.sandboxes.namespaces.view import HOME, HOST_TREE, PRIVATE
from ramify.sandboxes.scratch import remove_tree
from ramify.sandboxes.wire import Attach, Detach, Done, Start, View
from ramify.sandboxes.worlds import DEFAULT_PATH, AgentWorld, Ground, ShellState, tier_of


class NamespaceBackend(AgentBackend):
    """Worlds in user, mount, pid, net, ipc and uts namespaces. `scratch` must lie on the store's file system."""

    name = "namespaces"

    def _world(self, ground: Ground, snapshot: Snapshot, spec: WorldSpec) -> AgentWorld:
        return NamespaceWorld(ground, snapshot, spec)


class NamespaceWorld(AgentWorld):
    _base: Snapshot  # what is mounted below the upper: older than the last seal, where that had to copy
    _layers: Attach
    _untouched: tuple[int, int]  # the upper's own mode and time as we made it

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self._living().pid}/root{HOST_TREE}")

    def _tree_inside(self) -> str:
        return str(self._spec.mount_at)

    def _default_env(self) -> dict[str, str]:
        return {"PATH": DEFAULT_PATH, "HOME": HOME}

    async def _make(self, snapshot: Snapshot) -> Start:
        await asyncio.to_thread(self._make_folders, snapshot)
        return Start(
            tree=self._tree_inside(),
            private=PRIVATE,
            bash=self._ground.bash,
            env=self._shell_env(snapshot),
            cwd=snapshot.cwd,
            max_output=self._spec.max_output,
            view=View(
                folder=str(self._folder),
                store=str(self._ground.hidden[0]),
                hidden=[str(path) for path in self._ground.hidden],
                visible=[str(path) for path in self._spec.visible],
            ),
            layers=self._layers,
        )

    def _make_folders(self, snapshot: Snapshot) -> None:
        (self._folder / "root").mkdir(parents=True)
        self._fresh_upper(snapshot)

    def _fresh_upper(self, snapshot: Snapshot) -> None:
        """An empty upper over `snapshot`, and a new work folder: overlayfs takes none twice after `volatile`."""
        lowers = self._ground.store.lower_dirs(snapshot)
        upper, work = self._folder / "upper", self._folder / "work"
        for folder in (upper, work):
            remove_tree(folder)
            folder.mkdir()
        top = lowers[-1].stat()  # the tree's own top folder shows the upper's mode and time
        upper.chmod(stat.S_IMODE(top.st_mode))
        os.utime(upper, ns=(top.st_atime_ns, top.st_mtime_ns))
        self._base = snapshot
        self._untouched = (upper.stat().st_mode, upper.stat().st_mtime_ns)
        self._layers = Attach([str(folder) for folder in lowers], str(upper), str(work))

    def _clean(self) -> bool:
        upper = self._folder / "upper"
        now = upper.stat()
        return (now.st_mode, now.st_mtime_ns) == self._untouched and not any(upper.iterdir())

    async def _seal_files(self, state: ShellState, others: int) -> Snapshot:
        if self._clean():
            if state.same_as(self._snapshot):
                return self._snapshot
            return await asyncio.to_thread(self._seal_upper, state, others, move=False)
        if others or not (await self._ask(Detach(), Done)).ok:
            return await self._frozen(lambda: self._seal_upper(state, others, move=False))
        try:
            sealed = await asyncio.to_thread(self._seal_upper, state, others, move=True)
            await asyncio.to_thread(self._fresh_upper, sealed)
        finally:
            await self._attach_again()
        return sealed

    def _seal_upper(self, state: ShellState, others: int, *, move: bool) -> Snapshot:
        return self._ground.store.seal_upper(
            self._folder / "upper",
            self._base,
            env=state.env,
            env_unset=state.unset,
            cwd=state.cwd,
            tier=tier_of(others),
            move=move,
        )

    async def _attach_again(self) -> None:
        """Mount the tree: the longer stack after a seal; after a failed one the old stack, its upper still there."""
        work = Path(self._layers.work)
        await asyncio.to_thread(remove_tree, work)
        work.mkdir()
        try:
            await self._ask(self._layers, Done)
        except SandboxError:
            await self._abandon()  # commands would see the host's folder where the tree should be
            raise
