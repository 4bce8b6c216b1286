"""Seeded damage: a check finds every piece, and a repair fixes what other copies allow and names what is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import ForkEngineError, SnapshotCorrupt, SnapshotNotFound, StoreUnusable
from ramify.fork_engine.fsck.check import Damage
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.store_folder import boot_id
from ramify.fork_engine.store_parts import Part
from ramify.fork_engine.types import Processes, ProcessTier, Snapshot
from tests.samples import sample


def stocked(bench: Any) -> list[Snapshot]:
    """A store with one of everything: a base, seals, hard links, attributes, a squash, a merge, a blob, images."""

    def odd(tree: Path) -> None:
        os.link(tree / "d/linked", tree / "z")
        (tree / "link").symlink_to("d/linked")
        os.mkfifo(tree / "fifo", 0o600)
        os.setxattr(tree / "a", "user.mine", b"value")
        (tree / "d").chmod(0o710)

    store = bench.store
    base = bench.base({"a": "A" * 50, "d/linked": "L" * 50, "d/gone": "G" * 50, "e/f": "F" * 50, "empty": ""})
    one = bench.after(base, {"new": "N" * 50}, remove=("d/gone",), do=odd)
    two = bench.after(base, {"e/f": "changed", "copy": "N" * 50})
    merged = store.merge(base, one, two)
    (bench.folder / "dump").mkdir()
    (bench.folder / "dump/core").write_bytes(b"core" * 20)
    ran = Processes(
        ProcessTier.CRIU, store.put_blob(b"shell state"), store.adopt_process_image(bench.folder / "dump")
    )
    (bench.folder / "outside").mkdir()
    (bench.folder / "outside/tmp").write_bytes(b"outside")
    upper = bench.upper(merged)
    (upper / "last").write_text("last")
    last = store.seal_upper(
        upper, merged, **{**bench.seal, "env": {"A": "1"}}, processes=ran, outside=bench.folder / "outside", move=True
    )
    return [base, one, two, merged, last]


def files(root: Path) -> list[Path]:
    return sorted(
        path for path in root.rglob("*") if not path.is_dir() and "tmp" not in path.relative_to(root).parts[:1]
    )


def flip(path: Path, where: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[where.randrange(len(data))] ^= 1 << where.randrange(8)
    times = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # like a failing disk: no timestamp changes


def test_an_intact_store_has_no_problems(bench: Any) -> None:
    stocked(bench)
    report = bench.store.fsck()  # the merge made the layer that `two` has
    assert report.problems == () and report.lost == () and report.status == 0
    assert report.checked == {Part.LAYERS: 5, Part.IMAGES: 1, Part.BLOBS: 1, Part.SNAPSHOTS: 5}
    assert bench.store.fsck(repair=True).problems == ()


def of_layer(bench: Any) -> Callable[[str], Path]:
    def find(path: str) -> Path:
        (found,) = [fs / path for fs in (bench.store.root / "layers").glob("*/fs") if os.path.lexists(fs / path)][:1]
        return Path(found)

    return find


def replaced(path: Path, data: bytes | None) -> None:
    """Replace the path by a file of `data`, or (None) by a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)


def retarget(link: Path) -> None:
    link.unlink()
    link.symlink_to("elsewhere")


def joined(path: Path, other: Path) -> None:
    path.unlink()
    os.link(other, path)


SEEDS: dict[str, Callable[[Callable[[str], Path], Path], object]] = {
    "a truncated file": lambda at, _: os.truncate(at("new"), 3),
    "a deleted file": lambda at, _: at("new").unlink(),
    "an extra file": lambda at, _: (at("new").parent / "extra").write_text("x"),
    "an extra file beside a tree": lambda at, _: (at("new").parent.parent / "extra").write_text("x"),
    "an extra folder": lambda at, _: (at("new").parent / "extra").mkdir(),
    "a mode": lambda at, _: at("new").chmod(0o600 if stat.S_IMODE(at("new").stat().st_mode) != 0o600 else 0o640),
    "a folder's mode": lambda at, _: at("d").chmod(0o700),
    "the top folder's mode": lambda at, _: at("new").parent.chmod(0o500),
    "a time": lambda at, _: os.utime(at("new"), ns=(1, 1)),
    "a folder's time": lambda at, _: os.utime(at("d"), ns=(1, 1)),
    "a link's time": lambda at, _: os.utime(at("link"), ns=(1, 1), follow_symlinks=False),
    "an attribute": lambda at, _: os.setxattr(at("last"), "user.theirs", b"x"),
    "a mark of overlayfs": lambda at, _: os.setxattr(at("d"), "user.overlay.opaque", b"y"),
    "another mark of overlayfs": lambda at, _: os.setxattr(at("last"), "user.overlay.redirect", b"/elsewhere"),
    "a target": lambda at, _: retarget(at("link")),
    "a link cut": lambda at, _: replaced(at("z"), at("z").read_bytes()),
    "two files made one": lambda at, _: joined(at("new"), at("z")),
    "a kind": lambda at, _: replaced(at("new"), None),
    "a file for a folder": lambda at, _: replaced(at("e"), b"e"),
    "a device": lambda at, _: os.mkfifo(at("new").parent / "pipe"),
    "a missing tree": lambda at, _: shutil.rmtree(at("new").parent),
    "a missing manifest": lambda at, _: (at("new").parent.parent / "manifest.json").unlink(),
    "a missing layer": lambda at, _: shutil.rmtree(at("new").parent.parent),
    "a layer that is a file": lambda at, _: replaced(at("new").parent.parent, b"x"),
    "a missing process image": lambda _, root: shutil.rmtree(next((root / "images").iterdir())),
    "a missing blob": lambda _, root: next((root / "blobs").iterdir()).unlink(),
    "a truncated record": lambda _, root: os.truncate(next((root / "snapshots").iterdir()), 20),
    "an extra record": lambda _, root: (root / "snapshots/notes.txt").write_text("x"),
    "a record of another": lambda _, root: shutil.copy(
        next((root / "snapshots").iterdir()), root / "snapshots" / f"{'0' * 64}.json"
    ),
    "an extra file at the top": lambda _, root: (root / "core").write_text("x"),
    "an extra note": lambda _, root: (root / "unflushed/notes.txt").write_text("x"),
    "an extra layer": lambda _, root: (root / "layers/mine").mkdir(),
    "a leftover": lambda _, root: (root / "tmp/left").mkdir(),
    "a leftover file": lambda _, root: (root / "tmp/left").write_text("x"),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_kind_of_damage_is_found_and_repaired(bench: Any, seed: str) -> None:
    snapshots = stocked(bench)
    whole = {snapshot.id: bench.texts(snapshot) for snapshot in snapshots}
    SEEDS[seed](of_layer(bench), bench.store.root)
    found = SnapshotStore(bench.store.root).fsck()
    assert found.problems and found.left == found.problems
    assert (found.status == 0) is (seed in ("a leftover", "a leftover file"))
    repaired = SnapshotStore(bench.store.root).fsck(repair=True)
    assert repaired.problems == found.problems
    after = SnapshotStore(bench.store.root)
    assert after.fsck().problems == ()
    for snapshot in snapshots:
        if snapshot.id in repaired.lost:
            with pytest.raises(SnapshotNotFound):
                after.get(snapshot.id)
        else:
            assert bench.texts(after.get(snapshot.id)) == whole[snapshot.id]


def cut(path: Path, where: random.Random) -> None:
    os.truncate(path, where.randrange(path.stat().st_size))


def grow(path: Path, where: random.Random) -> None:
    with path.open("ab") as file:
        file.write(where.randbytes(1))


def delete(path: Path, _: random.Random) -> None:
    path.unlink()


def remode(path: Path, where: random.Random) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) ^ where.choice([0o1, 0o10, 0o20, 0o200, 0o4000, 0o100]))


def touch(path: Path, where: random.Random) -> None:
    os.utime(path, ns=(1, path.stat().st_mtime_ns + where.choice([-1, 1, 10**9])))


def note(path: Path, where: random.Random) -> None:
    os.setxattr(path, where.choice(["user.mine", "user.x"]), b"other")


def neighbour(path: Path, _: random.Random) -> None:
    (path.parent / "neighbour").write_bytes(b"")


def shut(path: Path, _: random.Random) -> None:
    path.chmod(0)


def give(path: Path, _: random.Random) -> None:
    os.chown(path, 1234, 1234, follow_symlinks=False)


def fold(path: Path, _: random.Random) -> None:
    replaced(path, None)


def pipe(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


OF_BYTES = [flip, cut, grow, delete, remode, shut, fold, pipe]
OF_OWN = [*OF_BYTES, *([give] if os.geteuid() == 0 else [])]
OF_TREES = [*OF_BYTES, touch, note, neighbour]


@settings(
    max_examples=sample(12, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_any_damage_anywhere_is_found(tmp_path_factory: pytest.TempPathFactory, new_bench: Any, seed: int) -> None:
    where = random.Random(seed)
    bench = new_bench(tmp_path_factory.mktemp("damage"))
    whole = {snapshot.id: bench.texts(snapshot) for snapshot in stocked(bench)}
    root = bench.store.root
    target = where.choice([p for p in files(root) if p.is_file() and not p.is_symlink() and p.stat().st_size])
    harm = where.choice(OF_TREES if "fs" in target.relative_to(root).parts else OF_OWN)
    if harm is delete and target.parent.name == "index":
        harm = flip  # it may be deleted
    harm(target, where)
    report = SnapshotStore(root).fsck(expected=whole)
    assert any(p.name.startswith(target.stem) or p.name in target.parts for p in report.problems), (harm, target)
    repaired = SnapshotStore(root).fsck(repair=True, expected=whole)
    after = SnapshotStore(root)
    assert after.fsck().problems == ()
    for id in whole.keys() - set(repaired.lost):
        assert bench.texts(after.get(id)) == whole[id]


@pytest.mark.parametrize("name", ["layers", "images", "blobs", "snapshots", "index", "tmp", "unflushed", "lock"])
def test_a_store_folder_open_to_others_is_found_and_closed(bench: Any, name: str) -> None:
    snapshots = stocked(bench)
    place = bench.store.root / name
    right = stat.S_IMODE(place.stat().st_mode)
    for wrong in (right | 0o001, right | 0o070, right | 0o4000):
        place.chmod(wrong)
        (problem,) = bench.store.fsck().problems
        assert (problem.part, problem.name, problem.damage) == (Part.STORE, name, Damage.MODE)
        report = bench.store.fsck(repair=True)
        assert (report.left, report.lost) == ((), ())
        assert stat.S_IMODE(place.stat().st_mode) == right
    assert [bench.store.get(snapshot.id) for snapshot in snapshots] == snapshots


def test_modes_do_not_depend_on_the_umask(bench: Any, new_bench: Any, tmp_path: Path) -> None:
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o2775)  # its set-id bit is inherited
    for number, umask in enumerate((0o077, 0, 0o027)):
        before = os.umask(umask)
        try:
            (place / str(number)).mkdir()
            stocked(made := new_bench(place / str(number)))
        finally:
            os.umask(before)
        assert made.store.fsck().problems == ()


def test_objects_that_were_only_unreadable_are_not_lost(bench: Any, ordinary: Path, new_bench: Any) -> None:
    """An ordinary user's store, because modes do not restrict root."""
    made = new_bench(ordinary)
    snapshots = stocked(made)
    root = made.store.root
    shut = [*(root / "blobs").iterdir(), *(root / "snapshots").iterdir(), *root.glob("layers/*/manifest.json")]
    for path in shut:
        path.chmod(0)
    (root / "images").chmod(0o500)
    found = SnapshotStore(root).fsck()
    assert {p.damage for p in found.problems} == {Damage.MODE}
    report = SnapshotStore(root).fsck(repair=True, expected=[snapshot.id for snapshot in snapshots])
    assert (report.left, report.lost, report.aside) == ((), (), ())
    assert SnapshotStore(root).fsck().problems == ()
    assert [SnapshotStore(root).get(snapshot.id) for snapshot in snapshots] == snapshots


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_are_recreated(bench: Any, ordinary: Path, new_bench: Any, describe: Any) -> None:
    """No world could overwrite such a file in the layer of an ordinary user."""
    made = new_bench(ordinary)
    snapshots = stocked(made)
    trees = [describe(made.tree(snapshot)) for snapshot in snapshots]
    root = made.store.root
    given = [
        next(root.glob("layers/*/fs/new")),
        next(root.glob("layers/*/fs/link")),
        next((root / "blobs").iterdir()),
    ]
    given += [max((root / "snapshots").iterdir()), next(root.glob("images/*/manifest.json"))]
    user = os.geteuid()
    os.seteuid(0)
    for path in given:
        os.chown(path, 0, 0, follow_symlinks=False)
    with pytest.raises(StoreUnusable, match=f"belongs to user {user}"):
        SnapshotStore(root).fsck(repair=True)
    os.seteuid(user)
    assert all("owner 0" in p.detail for p in SnapshotStore(root).fsck().problems)
    assert len(SnapshotStore(root).fsck().problems) >= len(given)
    report = SnapshotStore(root).fsck(repair=True)
    assert (report.left, report.lost) == ((), ())
    made.store = SnapshotStore(root)
    assert made.store.fsck().problems == ()
    assert [describe(made.tree(snapshot)) for snapshot in snapshots] == trees


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_that_roots_world_gave_away_are_accepted(bench: Any) -> None:
    stocked(bench)
    os.chown(of_layer(bench)("new"), 1234, 1234)
    assert bench.store.fsck().problems == ()


def test_a_repair_takes_bytes_from_another_copy(bench: Any) -> None:
    """`new` and `copy` are the same bytes in two layers."""
    snapshots = stocked(bench)
    at = of_layer(bench)("copy")
    at.unlink()
    report = SnapshotStore(bench.store.root).fsck(repair=True)
    assert report.lost == () and report.left == () and report.aside == ()
    assert bench.store.read(snapshots[2], "copy") == b"N" * 50


def test_bytes_without_another_copy_are_lost(bench: Any) -> None:
    base, one, two, merged, last = stocked(bench)
    of_layer(bench)("last").write_bytes(b"not it")
    found = bench.store.fsck()
    assert found.lost == (last.id,) and found.status == 1
    report = bench.store.fsck(repair=True)
    assert report.lost == (last.id,) and len(report.aside) == 2
    assert sorted(bench.on_disk("damaged")) == sorted(report.aside)
    assert all(bench.store.get(s.id) == s for s in (base, one, two, merged))


def test_manifests_and_records_are_rebuilt(bench: Any) -> None:
    snapshots = stocked(bench)
    for manifest in (bench.store.root / "layers").glob("*/manifest.json"):
        manifest.write_bytes(b"{}")
    record = bench.store.root / "snapshots" / f"{snapshots[1].id}.json"
    raw = json.loads(record.read_bytes())
    record.write_text(json.dumps({**raw, "content_key": "0" * 64}))
    report = SnapshotStore(bench.store.root).fsck(repair=True)
    assert report.lost == () and report.left == ()
    fresh = SnapshotStore(bench.store.root)
    assert [fresh.get(snapshot.id) for snapshot in snapshots] == snapshots


def test_a_deleted_snapshot_that_is_still_expected_is_reported(bench: Any) -> None:
    base, one, two, merged, last = stocked(bench)
    for gone in (one, last):
        (bench.store.root / "snapshots" / f"{gone.id}.json").unlink()
    named = [snapshot.id for snapshot in (base, one, two, merged, last)]
    assert bench.store.fsck().problems == ()
    found = bench.store.fsck(expected=named)
    assert found.status == 2 and set(found.lost) == {one.id, last.id}
    repaired = bench.store.fsck(repair=True, expected=named)
    assert set(repaired.lost) == {one.id, last.id}
    with pytest.raises(SnapshotNotFound):
        bench.store.get(one.id)


def test_a_lost_import_index_costs_only_time(bench: Any) -> None:
    stocked(bench)
    (index,) = (bench.store.root / "index").iterdir()
    index.write_bytes(index.read_bytes().replace(b"1", b"2", 1))
    report = bench.store.fsck()
    assert [p.damage for p in report.problems] == [Damage.INDEX] and report.status == 0
    bench.store.fsck(repair=True)
    assert bench.on_disk("index") == []


def boot_before(root: Path) -> Path:
    """Simulate that the machine went down since."""
    (root / "unflushed" / boot_id()).rename(root / "unflushed" / "the-boot-before")
    return root


def test_unflushed_objects_are_verified_after_the_machine_went_down(bench: Any) -> None:
    base = bench.base({"a": "1"})
    kept = bench.store.seal_tree(made(bench, base, "kept"), base, **bench.seal, flush=False)
    torn = bench.store.seal_tree(made(bench, base, "torn"), base, **bench.seal, flush=False)
    cut = bench.store.seal_tree(made(bench, base, "cut"), base, **bench.seal, flush=False)
    os.truncate(bench.store.lower_dirs(torn)[-1] / "a", 0)
    os.truncate(bench.store.root / "snapshots" / f"{cut.id}.json", 0)
    fresh = SnapshotStore(boot_before(bench.store.root))
    assert fresh.get(kept.id) == kept
    for gone in (torn, cut):
        with pytest.raises(SnapshotNotFound):
            fresh.get(gone.id)
    assert fresh.fsck().problems == () and not (bench.store.root / "unflushed/the-boot-before").exists()
    again = fresh.seal_tree(made(bench, base, "torn"), base, **bench.seal)  # not mistaken for the torn one
    assert fresh.read(again, "a") == b"torn"


def test_a_note_outlasts_a_flush_before_its_rename(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process flushes between the note and the rename: that flush does not cover the name."""
    base = bench.base({"a": "1"})
    other, seen = SnapshotStore(bench.store.root), list[list[str]]()

    def at(name: str) -> None:
        if name == "noted":
            monkeypatch.setattr(crash_points, "at", None)
            other.flush()
            seen.append(bench.on_disk(f"unflushed/{boot_id()}"))

    monkeypatch.setattr(crash_points, "at", at)
    sealed = bench.store.seal_tree(made(bench, base, "2"), base, **bench.seal, flush=False)
    assert seen == [[f"layers-{sealed.layers[-1]}"]]


def test_what_a_snapshot_names_must_exist_first(bench: Any) -> None:
    base = bench.base({"a": "1"})
    for ran in (Processes(shell="0" * 64), Processes(ProcessTier.CRIU, image="0" * 64)):
        with pytest.raises(SnapshotCorrupt, match="0000"):
            bench.after(base, processes=ran)
    assert bench.on_disk("snapshots") == [f"{base.id}.json"]


def test_flushed_objects_are_trusted_after_a_reboot(bench: Any) -> None:
    base = bench.base({"a": "1"})
    bench.store.seal_tree(made(bench, base, "2"), base, **bench.seal, flush=False)
    assert len(bench.on_disk(f"unflushed/{boot_id()}")) == 2
    bench.store.flush()
    assert bench.on_disk(f"unflushed/{boot_id()}") == []


def made(bench: Any, base: Snapshot, text: str) -> Path:
    tree: Path = bench.tree(base)
    (tree / "a").write_text(text)
    os.utime(tree / "a", ns=(len(text), len(text)))
    return tree


def test_blobs(bench: Any) -> None:
    digest = bench.store.put_blob(b"state")
    assert bench.store.put_blob(b"state") == digest and bench.store.blob(digest) == b"state"
    bench.store.delete_unreachable([])  # its snapshot may be about to be written
    assert bench.store.blob(digest) == b"state"
    os.utime(bench.store.root / "blobs" / digest, (1, 1))
    bench.store.delete_unreachable([])
    with pytest.raises(ForkEngineError, match=digest):
        bench.store.blob(digest)
