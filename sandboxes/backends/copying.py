"""Worlds without isolation, on any machine: the tree is a copy, and commands are ordinary processes of the user.

For machines without user namespaces or overlayfs. It has to be asked for by name (`--sandbox copy`) and is never
chosen automatically: commands can read and write whatever the user can, and reach the network. A fork copies the
tree, a seal scans it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.messages import Start
from ramify.sandboxes.backends.agent_backend import AgentBackend
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.host.agent_world import AgentWorld
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.sandboxes.host.world_lifecycle import DEFAULT_PATH, ShellState, WorldResources


class CopyBackend(AgentBackend):
    """Worlds in folders of their own. `WorldSpec.mount_at` and `visible` have no effect."""

    name = "copy"

    @classmethod
    def missing(cls) -> dict[Feature, str]:
        return {
            Feature.FILE_ISOLATION: "commands run as you, on your files: use namespaces or docker",
            Feature.NETWORK_ISOLATION: "commands use the host's network: use namespaces or docker",
            Feature.EGRESS: "commands use the host's network, which no list can narrow: use namespaces",
            Feature.MOUNT_AT: "the tree is a plain folder in the scratch folder, and nothing is mounted",
            Feature.IMAGES: "commands see the host's root: use namespaces or docker",
            Feature.FORK_BY_MOUNT: "a fork copies the tree, a seal scans it: use namespaces",
            Feature.OUTSIDE: "a world's home and tmp are scratch, and the rest is the host's",
            Feature.REPL: "a session is forked inside its world, not from world to world",
            Feature.CRIU: "restored processes would need pids that are in use: use namespaces",
            Feature.PROCESS_LIMIT: "without a pid namespace a fork bomb outruns the watchdog: use namespaces",
            Feature.DISK_LIMIT: "the tree is a copy, and what a world adds is not counted separately: use namespaces",
        }

    def _world(self, resources: WorldResources, snapshot: Snapshot, spec: WorldSpec) -> AgentWorld:
        return CopyWorld(resources, snapshot, spec)


class CopyWorld(AgentWorld):
    """A world in a plain folder, with ordinary processes of the user."""

    @property
    def path(self) -> Path:
        self._require_link()
        return self._folder / "tree"

    def _tree_inside(self) -> str:
        return str(self._folder / "tree")

    def _default_env(self) -> dict[str, str]:
        return {"PATH": DEFAULT_PATH, "HOME": str(self._folder / "home"), "TMPDIR": str(self._folder / "tmp")}

    def _private_inside(self) -> str:
        return str(self._folder)

    async def _make(self, snapshot: Snapshot) -> Start:
        await finish_before_cancelling(asyncio.to_thread(self._make_folders, snapshot))
        return Start(
            tree=self._tree_inside(),
            private=self._private_inside(),
            bash=self._resources.bash,
            env=self._shell_env(snapshot),
            cwd=snapshot.cwd,
            max_output=self._spec.max_output,
        )

    def _make_folders(self, snapshot: Snapshot) -> None:
        for name in ("home", "tmp"):
            (self._folder / name).mkdir(parents=True)
        self._resources.store.materialise(snapshot, self._folder / "tree")

    async def _seal_files(self, state: ShellState, others: int) -> Snapshot:
        def work() -> Snapshot:
            return self._seal_tree(state)

        return await (self._frozen(work) if others else asyncio.to_thread(work))

    def _seal_tree(self, state: ShellState) -> Snapshot:
        return self._resources.store.seal_tree(
            self._folder / "tree",
            self._snapshot,
            env=state.env,
            env_unset=state.unset,
            cwd=state.cwd,
            processes=state.processes,
            flush=self._flush and not self._stopped,
        )
