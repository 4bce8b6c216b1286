"""Larger damage than a changed byte: things swapped, and things that the store never makes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import SnapshotNotFound, StoreUnusable
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.filesystem.scan import ACL
from ramify.fork_engine.fsck.check import Damage
from ramify.fork_engine.layers import Layers
from ramify.fork_engine.manifest import Manifest, canonical_json
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot


def stocked(bench: Any) -> tuple[Snapshot, Snapshot, Snapshot]:
    def linked(tree: Path) -> None:
        os.link(tree / "a", tree / "b")

    base = bench.base({"a": "A" * 50, "d/gone": "G" * 50})
    one = bench.after(base, {"one": "1" * 50}, remove=("d/gone",), do=linked)
    two = bench.after(one, {"two": "2" * 50}, env={"NAME": "value"}, cwd="d")
    return base, one, two


def layer(root: Path, name: str) -> Path:
    return next(fs.parent for fs in (root / "layers").glob("*/fs") if (fs / name).exists())


def record(root: Path) -> Path:
    return max((root / "snapshots").iterdir(), key=lambda path: b"NAME" in path.read_bytes())


def swap(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "within").write_text("x")


def moved_and_linked(path: Path, to: Path) -> None:
    path.rename(to)
    path.symlink_to(to)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # a socket's path must be short
        made.bind(path.name)


def opened_to_somebody(path: Path) -> None:
    """Add an ACL entry for a named user, in addition to owner, group and others."""
    nobody = 0xFFFFFFFF
    entries = ((1, 6, nobody), (2, 7, 1234), (4, 4, nobody), (0x10, 7, nobody), (0x20, 4, nobody))
    os.setxattr(path, ACL, struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries))


def said_again(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a record with a valid checksum and different content."""
    raw = json.loads(path.read_bytes())
    del raw["check"]
    change(raw)
    path.write_bytes(canonical_json({**raw, "check": digest_bytes(canonical_json(raw))}))


def spaced(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def links_cut(root: Path) -> None:
    (path,) = [fs / "b" for fs in (root / "layers").glob("*/fs") if (fs / "b").exists()]
    data, times = path.read_bytes(), path.stat()
    path.unlink()
    path.write_bytes(data)
    path.chmod(times.st_mode & 0o7777)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


MENDED: dict[str, Callable[[Path], object]] = {
    "two layers swapped": lambda root: swap(layer(root, "one"), layer(root, "two")),
    "two trees swapped": lambda root: swap(layer(root, "one") / "fs", layer(root, "two") / "fs"),
    "two manifests swapped": lambda root: swap(
        layer(root, "one") / "manifest.json", layer(root, "two") / "manifest.json"
    ),
    "two records swapped": lambda root: swap(*sorted((root / "snapshots").iterdir())[:2]),
    "every manifest cut": lambda root: [
        os.truncate(path, path.stat().st_size // 2) for path in (root / "layers").glob("*/manifest.json")
    ],
    "links cut": links_cut,
    "a layer that is a link": lambda root: moved_and_linked(layer(root, "one"), root.parent / "elsewhere"),
    "a manifest that is a link": lambda root: moved_and_linked(
        layer(root, "one") / "manifest.json", root.parent / "elsewhere"
    ),
    "a manifest that is a pipe": lambda root: piped(layer(root, "one") / "manifest.json"),
    "a manifest that is a folder": lambda root: foldered(layer(root, "one") / "manifest.json"),
    "a manifest of brackets": lambda root: (layer(root, "one") / "manifest.json").write_bytes(b"[" * 100_000),
    "a record of another format": lambda root: said_again(record(root), lambda raw: raw.pop("format")),
    "another content key": lambda root: said_again(record(root), lambda raw: raw.update(content_key="0" * 64)),
    "another content key over a damaged layer": lambda root: (
        layer(root, "one").chmod(0),
        said_again(record(root), lambda raw: raw.update(content_key="0" * 64)),
    ),
    "no content key": lambda root: said_again(record(root), lambda raw: raw.update(content_key="")),
    "an index that is a folder": lambda root: (root / "index" / f"{'0' * 64}.json").mkdir(),
    "a space after a record": lambda root: spaced(record(root)),
    "a space after an index": lambda root: spaced(next((root / "index").iterdir())),
    "an index of brackets": lambda root: next((root / "index").iterdir()).write_bytes(b"[" * 100_000),
    "a file for the indexes": lambda root: (shutil.rmtree(root / "index"), (root / "index").write_text("x")),
    "a pipe under tmp": lambda root: os.mkfifo(root / "tmp/pipe"),
    "a link under tmp": lambda root: (root / "tmp/link").symlink_to("/etc"),
    "a closed folder under tmp": lambda root: (
        (root / "tmp/shut/in").mkdir(parents=True),
        (root / "tmp/shut").chmod(0),
    ),
    "an ACL": lambda root: opened_to_somebody(layer(root, "one") / "fs/one"),
    "an ACL of linked files": lambda root: opened_to_somebody(layer(root, "one") / "fs/a"),
    "a closed tree": lambda root: (layer(root, "one") / "fs").chmod(0),
    "a closed layer": lambda root: layer(root, "one").chmod(0),
}


@pytest.mark.parametrize("seed", MENDED)
def test_damage_with_another_copy_is_repaired(bench: Any, describe: Any, seed: str) -> None:
    snapshots = stocked(bench)
    trees = [describe(bench.tree(snapshot)) for snapshot in snapshots]
    MENDED[seed](bench.store.root)
    found = SnapshotStore(bench.store.root).fsck()
    assert found.problems
    report = SnapshotStore(bench.store.root).fsck(repair=True, expected=[one.id for one in snapshots])
    assert report.lost == () and report.left == ()
    bench.store = SnapshotStore(bench.store.root)
    assert bench.store.fsck().problems == ()
    assert [bench.store.get(snapshot.id) for snapshot in snapshots] == list(snapshots)
    assert [describe(bench.tree(snapshot)) for snapshot in snapshots] == trees


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "a pipe": piped,
    "a folder": foldered,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "without a field of its id": lambda path: said_again(path, lambda raw: raw.pop("tier")),
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_a_snapshot_whose_record_cannot_be_read_is_lost_alone(bench: Any, how: str) -> None:
    base, one, two = stocked(bench)
    UNREADABLE[how](bench.store.root / "snapshots" / f"{one.id}.json")
    assert [p.damage for p in SnapshotStore(bench.store.root).fsck().problems] == [Damage.RECORD]
    assert SnapshotStore(bench.store.root).fsck(repair=True).lost == (one.id,)
    store = SnapshotStore(bench.store.root)
    assert store.fsck().problems == ()
    with pytest.raises(SnapshotNotFound):
        store.get(one.id)
    assert [store.get(snapshot.id) for snapshot in (base, two)] == [base, two]


def test_a_snapshot_of_another_store_is_lost_alone(bench: Any, new_bench: Any, tmp_path: Path) -> None:
    snapshots = stocked(bench)
    (tmp_path / "other").mkdir()
    other = new_bench(tmp_path / "other")
    strange = other.base({"strange": "s"})
    shutil.copy(other.store.root / "snapshots" / f"{strange.id}.json", bench.store.root / "snapshots")
    found = SnapshotStore(bench.store.root).fsck()
    assert [p.damage for p in found.problems] == [Damage.MISSING] and found.lost == (strange.id,)
    assert SnapshotStore(bench.store.root).fsck(repair=True).lost == (strange.id,)
    assert SnapshotStore(bench.store.root).fsck().problems == ()
    assert all(bench.store.get(snapshot.id) == snapshot for snapshot in snapshots)


@pytest.mark.parametrize("how", [os.mkfifo, lambda path: path.symlink_to("/dev/null"), bound])
def test_a_lock_that_is_not_a_file_is_reported(bench: Any, how: Callable[[Path], object]) -> None:
    (bench.store.root / "lock").unlink(missing_ok=True)
    how(bench.store.root / "lock")
    with pytest.raises(StoreUnusable, match="lock: something else"):
        SnapshotStore(bench.store.root).fsck()


def test_a_link_in_place_of_a_store_folder_is_reported_and_left(bench: Any, tmp_path: Path) -> None:
    snapshots = stocked(bench)
    moved_and_linked(bench.store.root / "layers", tmp_path / "elsewhere")
    report = SnapshotStore(bench.store.root).fsck(repair=True)
    assert [(p.name, p.damage) for p in report.left] == [("layers", Damage.MODE)]
    (bench.store.root / "layers").unlink()
    (tmp_path / "elsewhere").rename(bench.store.root / "layers")
    assert SnapshotStore(bench.store.root).fsck().problems == ()
    assert [bench.store.get(snapshot.id) for snapshot in snapshots] == list(snapshots)


@pytest.mark.parametrize("name", ["layers", "tmp", "lock", "snapshots", "blobs"])
def test_a_file_with_the_name_of_a_store_folder_is_reported(bench: Any, name: str) -> None:
    stocked(bench)
    place = bench.store.root / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.mkdir() if name == "lock" else place.write_text("x")
    with pytest.raises(StoreUnusable, match=f"{name}: something else"):
        SnapshotStore(bench.store.root).fsck()


def test_a_check_needs_no_right_to_write(bench: Any, ordinary: Path, new_bench: Any) -> None:
    theirs = new_bench(ordinary)
    stocked(theirs)
    lock = theirs.store.root / "lock"
    lock.chmod(0o400)
    assert theirs.store.fsck().problems == ()
    with pytest.raises(StoreUnusable, match="lock"):
        theirs.store.fsck(repair=True)


def test_an_interrupted_repair_loses_nothing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two trees has the other's name: the second is repaired from what was at the first one's place."""
    snapshots = stocked(bench)
    root = bench.store.root
    swap(layer(root, "one"), layer(root, "two"))
    place, placed = Layers.place, list[Path]()

    def once(self: Layers, manifest: Manifest, made: Path) -> None:
        if placed:
            raise OSError(errno.ENOSPC, "No space left on device")
        placed.append(made)
        place(self, manifest, made)

    monkeypatch.setattr(Layers, "place", once)
    with pytest.raises(StoreUnusable, match="No space left"):
        SnapshotStore(root).fsck(repair=True)
    monkeypatch.undo()
    kept = {path.name for tree in ("layers", "damaged") for path in (root / tree).glob("*/fs/*")}
    assert kept >= {"a", "b", "d", "one", "two"}
    assert bench.store.get(snapshots[0].id) == snapshots[0]


def test_a_record_that_is_a_dangling_link_is_moved_aside(bench: Any) -> None:
    _, _, two = stocked(bench)
    place = bench.store.root / "snapshots" / f"{two.id}.json"
    place.unlink()
    place.symlink_to("/nowhere")
    report = SnapshotStore(bench.store.root).fsck(repair=True)
    assert report.lost == (two.id,) and bench.on_disk("damaged") == list(report.aside)
    assert SnapshotStore(bench.store.root).fsck().problems == ()
