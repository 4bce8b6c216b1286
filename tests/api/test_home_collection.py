"""When a collection runs by itself, how much it deletes, and that it waits for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify import paths
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.home_collection import DiskPolicy, Space, collect_if_due
from ramify.runtime.worlds.garbage_collection import Collected, EvictionMarks, collect

GB = 1 << 30
ROOMY, FULL = Space(50 * GB, 100 * GB), Space(4 * GB, 100 * GB)


@pytest.mark.parametrize(
    ("policy", "space", "last", "due"),
    [
        (DiskPolicy(), ROOMY, None, False),
        (DiskPolicy(), FULL, None, True),
        (DiskPolicy(), FULL, 500.0, False),  # less than an hour ago
        (DiskPolicy(), FULL, -3000.0, True),
        (DiskPolicy(), FULL, 5000.0, True),  # the clock was set back
        (DiskPolicy(budget=GB), ROOMY, None, True),
        (DiskPolicy(), Space(2 * GB, 10 * GB), None, False),  # a small disk: a tenth is enough
    ],
)
def test_when_it_is_due(policy: DiskPolicy, space: Space, last: float | None, due: bool) -> None:
    assert policy.is_due(space, last, 1000.0) is due


def test_how_much_may_stay() -> None:
    assert DiskPolicy().target(FULL, held=20 * GB) == 14 * GB
    assert DiskPolicy().target(FULL, held=2 * GB) == 0
    assert DiskPolicy(budget=5 * GB).target(ROOMY, held=20 * GB) == 5 * GB
    assert DiskPolicy(budget=50 * GB).target(FULL, held=20 * GB) == 14 * GB


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one snapshot that nothing names."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("x" * 1000)
    SnapshotStore(paths.snapshots(tmp_path / "home")).import_tree(tmp_path / "tree")
    return tmp_path / "home"


async def act(home: Path, now: float, space: Space = FULL) -> Collected | None:
    pins, marks = Pins(paths.locks(home)), EvictionMarks(paths.evicted(home))
    store = SnapshotStore(paths.snapshots(home))

    async def collected(budget: int | None, dry_run: bool) -> Collected:
        return await collect(None, store, pins, marks, budget=budget, dry_run=dry_run, grace_s=0, wait=False)

    return await collect_if_due(home, DiskPolicy(), collected, clock=lambda: now, space=lambda _: space)


async def test_a_full_disk_is_collected_once_in_an_hour(home: Path) -> None:
    assert await act(home, 10_000.0, ROOMY) is None
    done = await act(home, 10_000.0)
    assert done is not None
    assert done.snapshots == 1
    assert await act(home, 13_000.0) is None
    again = await act(home, 14_000.0)
    assert again is not None
    assert again.snapshots == 0


async def test_it_waits_for_nobody(home: Path) -> None:
    async with Pins(paths.locks(home)).held():
        assert await act(home, 10_000.0) is None
    assert await act(home, 10_000.0) is not None
