"""Names of worlds and tags on disk: whole or not at all, held by one process."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import pytest

from ramify.fork_engine.close_on_fork import open_lock
from ramify.fork_engine.errors import StoreUnusable
from ramify.fork_engine.types import SnapshotId
from ramify.worlds import references
from ramify.worlds.errors import BadName, NameTaken, WorldError, WorldInUse, WorldNotFound
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Kind, Reference, References
from ramify.worlds.world import World


def reference(name: str, snapshot: str = "a" * 64, at: float = 1.0) -> Reference:
    return Reference(name, SnapshotId(snapshot), at, at, backend="copy", mount_at="/tmp/workspace")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    kept = References(tmp_path / "references")
    assert kept.all(Kind.WORLD) == [] and kept.snapshots() == set()
    kept.put(Kind.WORLD, reference("one"), new=True)
    kept.put(Kind.TAG, reference("one", "b" * 64, 2.0), new=True)
    with pytest.raises(NameTaken):
        kept.put(Kind.WORLD, reference("one"), new=True)
    kept.put(Kind.WORLD, reference("one", "c" * 64))
    assert kept.get(Kind.WORLD, "one").snapshot == "c" * 64
    assert kept.snapshots() == {"b" * 64, "c" * 64}
    kept.delete(Kind.WORLD, "one")
    with pytest.raises(WorldNotFound):
        kept.delete(Kind.WORLD, "one")
    assert [one.name for one in kept.all(Kind.TAG)] == ["one"]


def test_a_damaged_file_is_named_and_leftovers_are_not_read(tmp_path: Path) -> None:
    kept = References(tmp_path / "references")
    kept.put(Kind.TAG, reference("good"))
    folder = tmp_path / "references" / "tags"
    (folder / ".leftover.tmp").write_text("{")
    (folder / "note").write_text("nothing of ours")
    assert [one.name for one in kept.all(Kind.TAG)] == ["good"]
    (folder / "bad.json").write_text('{"name": "bad"')
    with pytest.raises(WorldError, match=r"bad\.json is damaged"):
        kept.snapshots()  # a collection must not delete what it cannot read


@pytest.mark.parametrize(
    "change",
    [
        {"created_at": "x"}, {"updated_at": None}, {"created_at": float("inf")}, {"snapshot": 5}, {"name": None},
        {"egress": [5]}, {"egress": {}}, {"credentials": 7}, {"env": []}, {"env": {"A": 5}}, {"command_env": None},
        {"network": "no"}, {"source": [[]]},
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_damage(tmp_path: Path, change: dict[str, object]) -> None:
    """The home may come from somebody else."""
    kept = References(tmp_path / "references")
    kept.put(Kind.WORLD, reference("one"))
    (file,) = (tmp_path / "references/worlds").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(WorldError, match=r"one\.json is damaged"):
        kept.all(Kind.WORLD)


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"\xff", b"5", b"9" * 5000])
def test_a_file_that_is_no_object_is_damage(tmp_path: Path, raw: bytes) -> None:
    kept = References(tmp_path / "references")
    kept.put(Kind.WORLD, reference("one"))
    (tmp_path / "references/worlds/one.json").write_bytes(raw)
    with pytest.raises(WorldError, match=r"one\.json is damaged"):
        kept.get(Kind.WORLD, "one")


def test_a_name_is_held_once(tmp_path: Path) -> None:
    kept = References(tmp_path / "references")
    kept.put(Kind.WORLD, reference("one"))
    other = References(tmp_path / "references")
    with kept.held("one"), pytest.raises(WorldInUse, match="open elsewhere"), other.held("one"):
        pass
    with kept.held("one"):
        pass


def test_a_lock_that_was_deleted_while_it_was_opened_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes held a world: one by the lock of an earlier world of its name."""
    kept = References(tmp_path / "references")
    kept.put(Kind.WORLD, reference("one"))
    opened = []

    def open_late(path: Path, flags: int) -> int:
        opened.append(path)
        descriptor = open_lock(path, flags)
        if len(opened) == 1:  # another process deletes the world now
            kept.delete(Kind.WORLD, "one")
        return descriptor

    monkeypatch.setattr(references, "open_lock", open_late)
    with kept.held("one"), pytest.raises(WorldInUse), References(tmp_path / "references").held("one"):
        pass


def test_a_reference_that_is_deleted_while_all_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = References(tmp_path / "references")
    for name in ("one", "two"):
        kept.put(Kind.TAG, reference(name))
    files = list(kept._files(Kind.TAG))
    kept.delete(Kind.TAG, "one")
    monkeypatch.setattr(kept, "_files", lambda kind: files)
    assert [one.name for one in kept.all(Kind.TAG)] == ["two"]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = References(tmp_path / "references")
    monkeypatch.setattr(references, "write_durably", full)
    with pytest.raises(StoreUnusable, match="Free some space"):
        kept.put(Kind.TAG, reference("one"))


async def test_names_are_listed_and_deleted_without_a_world(home: WorldHome) -> None:
    async with World.create(home=home, name="open") as world, World.create(home=home, name="two") as two:
        first = await world.snapshot("first")
        await world.snapshot("second")
        await two.close()
        assert {one.name for one in home.worlds()} == {"open", "two"}
        with pytest.raises(WorldNotFound, match="third"):
            home.delete_tags("first", "third")
        with pytest.raises(WorldInUse, match="open"):
            home.delete_worlds("two", "open")
        assert {one.name for one in home.tags()} == {"first", "second"} and len(home.worlds()) == 2
        await world.delete_tag("first")
        with pytest.raises(WorldNotFound):
            home.resolve("first")
        assert (await world.snapshot("first")).id == first.id
        home.delete_tags("first", "second", "first")
        home.delete_worlds("two")
        assert not home.tags() and [one.name for one in home.worlds()] == ["open"]


@pytest.mark.parametrize("name", ["a" * 300, "", "é" * 100, "a\n", ".", "../a"])
async def test_a_name_that_no_file_can_have_is_refused(home: WorldHome, name: str) -> None:
    async with World.create(home=home) as world:
        for act in (
            lambda: World.create(home=home, name=name),
            lambda: world.snapshot(name),
            lambda: world.fork(names=[name]),
            lambda: World.open(name, home=home),
            lambda: world.delete_tag(name),
            lambda: asyncio.to_thread(home.delete_worlds, name),
        ):
            with pytest.raises(BadName, match="100 letters"):
                await act()
        for find in (lambda: World.create(home=home, snapshot=name), lambda: world.restore(name)):
            with pytest.raises(WorldNotFound):
                await find()
        assert (await world.exec("true")).ok
    assert not home.worlds() and not home.tags()
