"""Worlds anywhere, without isolation: the tree is a copy, commands run as ordinary processes of the user.

For machines without user namespaces or overlayfs, asked for by name (`--sandbox copy`) and never chosen for anyone:
commands can read and write whatever the user can, and reach the network. A fork costs a copy of the tree, a seal a
scan of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends import AgentBackend
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.wire import Start
from ramify.sandboxes.worlds import DEFAULT_PATH, AgentWorld, Ground, ShellState, tier_of


class CopyBackend(AgentBackend):
    """Worlds in folders of their own. `WorldSpec.mount_at` and `visible` mean nothing here."""

    name = "copy"

    def _world(self, ground: Ground, snapshot: Snapshot, spec: WorldSpec) -> AgentWorld:
        return CopyWorld(ground, snapshot, spec)


class CopyWorld(AgentWorld):
    @property
    def path(self) -> Path:
        self._living()
        return self._folder / "tree"

    def _tree_inside(self) -> str:
        return str(self._folder / "tree")

    def _default_env(self) -> dict[str, str]:
        return {"PATH": DEFAULT_PATH, "HOME": str(self._folder / "home"), "TMPDIR": str(self._folder / "tmp")}

    async def _make(self, snapshot: Snapshot) -> Start:
        await asyncio.to_thread(self._make_folders, snapshot)
        return Start(
            tree=self._tree_inside(),
            private=str(self._folder),
            bash=self._ground.bash,
            env=self._shell_env(snapshot),
            cwd=snapshot.cwd,
            max_output=self._spec.max_output,
        )

    def _make_folders(self, snapshot: Snapshot) -> None:
        for name in ("home", "tmp"):
            (self._folder / name).mkdir(parents=True)
        self._ground.store.materialise(snapshot, self._folder / "tree")

    async def _seal_files(self, state: ShellState, others: int) -> Snapshot:
        def work() -> Snapshot:
            return self._ground.store.seal_tree(
                self._folder / "tree",
                self._snapshot,
                env=state.env,
                env_unset=state.unset,
                cwd=state.cwd,
                tier=tier_of(others),
            )

        return await (self._frozen(work) if others else asyncio.to_thread(work))
