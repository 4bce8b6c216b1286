"""What `ramify gc` keeps for a process that lives: the snapshots that it has given out, without a tag."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify import paths
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import Snapshot
from ramify.runtime.worlds.garbage_collection import EvictionMarks, collect
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.errors import WorldClosed, WorldNotFound
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Kind
from ramify.worlds.world import World


@pytest.fixture
def sandbox() -> str:
    return "copy"


async def collect_old(home: WorldHome) -> None:
    """Collect as another process would, when every snapshot is older than the time of grace."""
    pins, marks = Pins(paths.locks(home.place)), EvictionMarks(paths.evicted(home.place))
    await collect(None, home.store, pins, marks, grace_s=0.0, named=home.references.snapshots)


async def changed(world: World, text: str) -> None:
    await world.write("file", text)


async def test_a_world_keeps_what_it_gave_out(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        start = world.state.id
        await changed(world, "one")
        one = (await world.snapshot()).id
        await changed(world, "two")
        two = (await (await world.begin_snapshot())).id
        await changed(world, "three")
        (fork,) = await world.fork()
        fork_point = fork.state.id
        await changed(fork, "of the fork")
        of_fork = (await fork.snapshot()).id
        await changed(world, "one more")
        await collect_old(home)
        assert {change.path for change in await fork.diff()} == {"file"}, "since it was made"
        await fork.close()
        for id in (start, one, two, fork_point):
            await world.restore(id)
        await collect_old(home)
        assert of_fork not in home.store.present(), "the fork is closed, and nobody has its snapshot"
    await collect_old(home)
    assert home.store.present() == []


async def test_a_snapshot_is_kept_as_long_as_it_is_referred_to(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        await changed(world, "kept")
        kept: Snapshot | None = await world.snapshot()
        assert kept is not None
        id = kept.id
    await collect_old(home)
    async with World.create(snapshot=kept, home=home) as again:
        assert await again.read("file") == b"kept"
    kept = None
    await collect_old(home)
    with pytest.raises(WorldNotFound, match="names no state"):
        home.resolve(id)


async def test_forks_have_a_base_for_their_merge_after_a_collection(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        first, second = await world.fork(2)
        await first.write("first", "1")
        await second.write("second", "2")
        await first.snapshot()
        await second.snapshot()
        await changed(world, "3")
        await world.snapshot()
        await collect_old(home)
        await world.merge(first)
        await collect_old(home)
        merged = await world.merge(second)
        await world.write("later", "")
        await world.snapshot()
        await collect_old(home)
        await world.restore(merged)
        found = sorted(path.name for path in world.path.iterdir())
        assert found == ["README", "file", "first", "second", "src"]
        await first.close()
        await second.close()


async def test_a_state_that_was_restored_by_its_id_can_be_restored_again(home: WorldHome, repo: Path) -> None:
    async with World.create(repo, home=home) as world:
        await changed(world, "tagged")
        id = (await world.snapshot("tag")).id
    async with World.create(home=home) as other:
        await other.restore(id)
        home.references.delete(Kind.TAG, "tag")
        await other.write("more", "")
        await other.snapshot()
        await collect_old(home)
        await other.restore(id)
        assert await other.read("file") == b"tagged"
    with pytest.raises(SnapshotNotFound):
        await collect_old(home)
        home.store.get(id)


async def test_a_deleted_world_leaves_its_tags_and_forks(home: WorldHome, repo: Path) -> None:
    world = await World.create(repo, home=home, name="one")
    await changed(world, "tagged")
    await world.snapshot("tag")
    (fork,) = await world.fork()
    await changed(world, "lost")
    begun = await world.begin_snapshot()
    await world.delete()
    assert begun.done() and not world.is_open
    with pytest.raises(WorldClosed):
        await world.delete()
    with pytest.raises(WorldNotFound):
        await World.open("one", home=home)
    await collect_old(home)
    assert await fork.read("file") == b"tagged"
    async with World.create(snapshot="tag", name="one", home=home) as again:  # the name is free
        assert await again.read("file") == b"tagged"
        home.references.delete(Kind.WORLD, "one")  # by somebody else
        await again.delete()
    await fork.delete()


def test_a_world_is_deleted_without_an_event_loop(tmp_path: Path) -> None:
    place = tmp_path / "home"
    world = SyncWorld.create(home=place, sandbox="copy", name="one")
    world.delete()
    world.close()
    with pytest.raises(WorldNotFound):
        SyncWorld.open("one", home=place, sandbox="copy")
