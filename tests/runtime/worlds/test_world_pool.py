"""Worlds are created late, kept while they are useful, and never closed while they hold unsealed changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.records import BranchPath, CheckpointId
from ramify.runtime.worlds.world_pool import Branch, WorldPool
from ramify.sandboxes.contract import Backend, WorldSpec
from ramify.sandboxes.testing import ScriptedBackend


@dataclass
class Ground:
    pool: WorldPool
    branches: list[Branch]
    opened: int = 0


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    store = SnapshotStore(tmp_path / "store")
    (tmp_path / "tree").mkdir()
    base = store.import_tree(tmp_path / "tree").snapshot
    async with ScriptedBackend(store, tmp_path / "worlds", {}) as backend:

        async def opened() -> Backend:
            made.opened += 1
            return backend

        pool = WorldPool(opened, WorldSpec(mount_at=tmp_path / "tree"), max_idle=2)
        made = Ground(pool, [Branch(BranchPath(f"root/{i}"), base, CheckpointId("c")) for i in range(4)])
        yield made
        await pool.close()


async def test_the_backend_starts_with_the_first_world(ground: Ground) -> None:
    assert ground.opened == 0
    await ground.pool.acquire(ground.branches[0])
    assert ground.opened == 1


async def test_a_live_world_is_reused(ground: Ground) -> None:
    branch = ground.branches[0]
    first, cost = await ground.pool.acquire(branch)
    await ground.pool.rest(branch)
    again, nothing = await ground.pool.acquire(branch)
    assert again is first
    assert cost is not None
    assert nothing is None


async def test_the_world_of_a_branch_that_moved_is_rolled_forward(ground: Ground) -> None:
    branch = ground.branches[0]
    world, _ = await ground.pool.acquire(branch)
    (world.path / "file").touch()
    await ground.pool.rest(branch)
    branch.snapshot, before = await world.seal(), branch.snapshot
    (world.path / "late").touch()
    branch.snapshot = before
    again, _ = await ground.pool.acquire(branch)
    assert list(again.path.iterdir()) == []


async def test_the_longest_idle_world_is_closed_first(ground: Ground) -> None:
    for branch in ground.branches:
        await ground.pool.acquire(branch)
        await ground.pool.rest(branch)
    assert [b.world is None for b in ground.branches] == [True, True, False, False]


async def test_a_world_with_unsealed_changes_is_kept(ground: Ground) -> None:
    held = ground.branches[0]
    await ground.pool.acquire(held)
    held.unsealed = True
    for branch in ground.branches:
        await ground.pool.acquire(branch)
        await ground.pool.rest(branch)
    assert held.world is not None
