"""Trees prepared for future worlds: a fork that uses one is like any other, and no prepared tree is stale."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ramify.fork_engine.errors import SnapshotCorrupt
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.backends.namespaces.place import TREES
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.host.mount_server_client import MountServerClient

pytestmark = pytest.mark.linux_ns

Out = Callable[[World, str], Awaitable[str]]
CHANGE = "cd package; echo more >> code.py; rm -r inner; touch -d @7 code.py .; umask 27"


async def ready(backend: NamespaceBackend) -> int:
    """The number of prepared trees, once preparing has finished."""
    assert backend._pool._making is not None
    await backend._pool._making
    return len(backend._pool._mounted)


async def mount_nothing(*_: object) -> list[int]:
    raise WorldStartFailed("a mount was asked for")


async def test_only_repeatedly_forked_snapshots_have_prepared_trees(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    worlds = [await namespaces.materialise(base, spec)]
    assert await ready(namespaces) == 0
    worlds.append(await namespaces.materialise(base, spec))
    assert await ready(namespaces) == TREES
    with monkeypatch.context() as patched:
        patched.setattr(MountServerClient, "mount", mount_nothing)
        worlds += await namespaces.fork(base, spec, TREES)
        with pytest.raises(WorldStartFailed, match="was asked for"):
            await namespaces.materialise(base, spec)
    assert len({world.id for world in worlds}) == 2 + TREES
    sealed = []
    for world in worlds:
        assert (world.path / "package" / "inner").is_dir()
        assert await world.seal() == base
        await out(world, CHANGE)
        sealed.append(await world.seal())
    assert len({snapshot.id for snapshot in sealed}) == 1, "a tree that was mounted ahead is no other"
    await worlds[-1].rollback(base)
    assert (worlds[-1].path / "package" / "inner").is_dir()


async def test_prepared_trees_of_another_snapshot_are_unmounted(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, scratch: Path, out: Out
) -> None:
    first, _ = [await namespaces.materialise(base, spec) for _ in range(2)]
    assert await ready(namespaces) == TREES
    trees = {folder.name for folder, _ in namespaces._pool._mounted}
    assert trees <= {path.name for path in first.path.parent.iterdir()}
    await out(first, CHANGE)
    other = await namespaces.materialise(await first.seal(), spec)
    assert "more" in (other.path / "package" / "code.py").read_text()
    assert await ready(namespaces) == 0
    assert not trees & {path.name for path in (*first.path.parent.iterdir(), *scratch.glob("*/*"))}


async def test_a_layer_that_was_made_anew_is_mounted_anew(
    namespaces: NamespaceBackend, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    for _ in range(2):
        await (await namespaces.materialise(base, spec)).close()
    assert await ready(namespaces) == TREES
    (layer,) = store.lower_dirs(base)
    before = sorted(path.name for path in layer.iterdir())
    await asyncio.to_thread(shutil.copytree, layer, layer.with_name("again"), symlinks=True)
    shutil.rmtree(layer)
    layer.with_name("again").rename(layer)
    world = await namespaces.materialise(base, spec)
    assert sorted(path.name for path in world.path.iterdir()) == before


async def test_no_tree_is_prepared_over_a_changed_layer(
    namespaces: NamespaceBackend, store: SnapshotStore, base: Snapshot, spec: WorldSpec
) -> None:
    for _ in range(2):
        await (await namespaces.materialise(base, spec)).close()
    assert await ready(namespaces) == TREES
    await asyncio.gather(*(world.close() for world in await namespaces.fork(base, spec, TREES)))
    (layer,) = store.lower_dirs(base)
    await asyncio.to_thread(shutil.copytree, layer, layer.with_name("again"), symlinks=True)
    namespaces._pool.take([layer], len(namespaces._pool._mounted))  # none is ready, and more are needed
    shutil.rmtree(layer)
    layer.with_name("again").rename(layer)
    async with asyncio.timeout(60):  # fails if trees are mounted and unmounted without end
        assert await ready(namespaces) == 0


async def test_a_failed_preparation_of_a_tree_is_no_error(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    worlds = [await namespaces.materialise(base, spec) for _ in range(2)]
    assert await ready(namespaces) == TREES
    with monkeypatch.context() as patched:
        patched.setattr(MountServerClient, "mount", mount_nothing)
        worlds += await namespaces.fork(base, spec, TREES)  # which takes all prepared trees
        assert await ready(namespaces) == 0
    worlds.append(await namespaces.materialise(base, spec))
    assert await ready(namespaces) == TREES
    assert await out(worlds[-1], "ls package") == await out(worlds[0], "ls package")


async def test_a_fork_during_a_failing_preparation_still_gets_prepared_trees(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, fails = asyncio.Event(), asyncio.Event()

    async def mount(*_: object) -> list[int]:
        asked.set()
        await fails.wait()
        raise WorldStartFailed("no tree of this one")

    for _ in range(2):
        await (await namespaces.materialise(base, spec)).close()
    assert await ready(namespaces) == TREES
    with monkeypatch.context() as patched:
        patched.setattr(MountServerClient, "mount", mount)  # before prepared trees are taken: others are made at once
        await asyncio.gather(*(world.close() for world in await namespaces.fork(base, spec, TREES)))
        await asked.wait()
    namespaces._pool.take(namespaces._store.lower_dirs(base), 0)
    fails.set()
    assert await ready(namespaces) == TREES


async def test_a_layer_that_disappears_during_a_fork_is_an_error_and_leaves_no_world(
    namespaces: NamespaceBackend,
    store: SnapshotStore,
    base: Snapshot,
    spec: WorldSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(2):
        await (await namespaces.materialise(base, spec)).close()
    assert await ready(namespaces) == TREES
    gone = store.lower_dirs(base)[0].with_name("gone")
    with monkeypatch.context() as patched:
        patched.setattr(store, "lower_dirs", lambda _: (gone,))  # it existed when it was looked up
        with pytest.raises(WorldStartFailed, match="could not be mounted"):
            await namespaces.fork(base, spec, 3)
    asked = 0

    def damaged(_: Snapshot) -> tuple[Path, ...]:
        nonlocal asked
        asked += 1
        if asked == 2:  # the first query is for the folders of all, the second for their mounts
            raise SnapshotCorrupt("it went between two")
        return lowers

    lowers = store.lower_dirs(base)
    with monkeypatch.context() as patched:
        patched.setattr(store, "lower_dirs", damaged)
        with pytest.raises(SnapshotCorrupt, match="between two"):
            await namespaces.fork(base, spec, 3)
    assert not namespaces._worlds
    await (await namespaces.materialise(base, spec)).close()
