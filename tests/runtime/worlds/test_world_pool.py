"""Worlds are created late, kept while they are useful, and never closed while they hold unsealed changes. The
backend is told which states are forked next, and which no later operation goes back to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import behind_app
import pytest

from ramify.compiler.plan import OpKind
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.records import ROOT, WARM, BranchPath, CheckpointId
from ramify.runtime.worlds.world_pool import NOTHING, Branch, WarmStates, WorldPool
from ramify.sandboxes.contract import Backend, KeptReady, WorldSpec
from ramify.sandboxes.testing import ScriptedBackend
from tests.plans import compile_plan


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


PLAN = compile_plan(behind_app.forks_after_the_model)
SPEC = WorldSpec(Path("/tmp/workspace"))
SEAL, OF_CHILD = [op for op in PLAN.ops if op.kind is OpKind.SEAL][:2]
FORK = next(op for op in PLAN.ops if op.kind is OpKind.FORK)


def state(name: str) -> Snapshot:
    made: Any = SimpleNamespace(id=SnapshotId(name))
    return made  # type: ignore[no-any-return]


class Ahead:
    """A backend with room for three."""

    def __init__(self) -> None:
        self.forks: list[tuple[str, int]] = []
        self.forgotten: list[str] = []

    def foresee(self, snapshot: Snapshot, spec: WorldSpec, forks: int) -> KeptReady:
        assert spec is SPEC
        self.forks.append((snapshot.id, forks))
        return KeptReady(min(forks, 3), "" if forks <= 3 else "memory has room for 3")

    def forget(self, snapshots: Collection[SnapshotId]) -> int:
        self.forgotten += snapshots
        return 0


def test_a_fork_that_follows_is_foreseen_in_its_width() -> None:
    ahead, warm = Ahead(), WarmStates(PLAN, SPEC)
    told = warm.made(ahead, SEAL, ROOT, state("a"))[WARM]
    assert told == f"3 for the 4 worlds of {FORK.id}, which follows; memory has room for 3"
    warm.forked(FORK, SnapshotId("a"), 2)  # now the number is known
    assert warm.made(ahead, SEAL, ROOT, state("b"))[WARM] == f"2 for the 2 worlds of {FORK.id}, which follows"
    assert ahead.forks == [("a", 4), ("b", 2)]
    assert warm.made(ahead, OF_CHILD, BranchPath("root/f.0"), state("c")) == {WARM: NOTHING}


def test_states_are_released_when_nothing_goes_back_to_them() -> None:
    ahead, warm = Ahead(), WarmStates(PLAN, SPEC)
    dying = replace(SEAL, attrs={**SEAL.attrs, "dies": [SEAL.id]})
    warm.made(ahead, dying, ROOT, state("a"))
    warm.made(ahead, dying, ROOT, state("b"))
    assert ahead.forgotten == ["a"]
    warm.forked(FORK, SnapshotId("b"), 2)
    warm.made(ahead, OF_CHILD, BranchPath("root/f.0"), state("c"))
    warm.made(ahead, OF_CHILD, BranchPath("root/fo"), state("other"))  # not below it
    warm.made(ahead, dying, ROOT, state("d"))
    assert ahead.forgotten == ["a"], "each branch may go back to the base"
    warm.released(ahead, SnapshotId("b"), [BranchPath("root/f.0"), BranchPath("root/f.1")])
    assert ahead.forgotten == ["a", "c", "b"]
    warm.made(ahead, dying, ROOT, state("e"))
    assert ahead.forgotten == ["a", "c", "b", "d"]


def test_a_backend_that_prepares_nothing_is_told_nothing() -> None:
    assert WarmStates(PLAN, SPEC).made(object(), SEAL, ROOT, state("a")) == {}
    assert WarmStates(PLAN, SPEC).made(None, SEAL, ROOT, state("a")) == {}
