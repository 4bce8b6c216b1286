"""Seals of overlay uppers, built by hand as a mount would leave them, and of plain trees."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import EntryKind


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def copied_up(bench: Any, parent: Any, upper: Path, path: str) -> Path:
    """Make a folder or file as overlayfs copies it up: with mode, times and overlayfs's own attribute."""
    place, lower = upper, bench.tree(parent)
    for part in Path(path).parts:
        lower, place = lower / part, place / part
        if lower.is_dir():
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(lower.read_bytes())
        shutil.copystat(lower, place)
        os.setxattr(place, "user.overlay.origin", b"\x00\xfb")
    for above in reversed(Path(path).parents):
        if above != Path():
            times = bench.store.entries(parent)[os.fspath(above)].mtime_ns
            os.utime(upper / above, ns=(times, times))
    top = bench.store.lower_dirs(parent)[-1].stat().st_mtime_ns
    os.utime(upper, ns=(top, top))
    return place


@pytest.mark.parametrize("move", [True, False])
def test_whiteouts_and_opaque_folders(bench: Any, move: bool) -> None:
    base = bench.base({"gone": "1", "d/old": "2", "d/s/older": "3", "e/f/deep": "4", "e/kept": "5"})
    upper = bench.upper(base)
    whiteout(upper / "gone")
    (upper / "d").mkdir()
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    (upper / "d/new").write_text("n")
    (upper / "e").mkdir()
    whiteout(upper / "e/f")

    sealed = bench.store.seal_upper(upper, base, **bench.seal, move=move)

    assert bench.texts(sealed) == {"d/new": "n", "e/kept": "5"}
    assert upper.exists() is not move
    top = bench.store.lower_dirs(sealed)[-1]
    assert stat.S_ISCHR((top / "gone").lstat().st_mode) and (top / "gone").lstat().st_rdev == 0
    assert os.getxattr(top / "d", "user.overlay.opaque") == b"y"
    again = bench.after(sealed, {"d/old": "back"})  # and what hides can be restored
    assert bench.texts(again) == {"d/old": "back", "d/new": "n", "e/kept": "5"}


def test_moved_and_copied_uppers_make_the_same_layer(bench: Any, describe: Any) -> None:
    base = bench.base({"d/a": "1", "b": "2"})
    upper = bench.upper(base)
    (upper / "d").mkdir()
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    os.setxattr(upper, "user.overlay.impure", b"y")
    (upper / "d/x").write_text("x")
    os.setxattr(upper / "d/x", "user.overlay.origin", b"1")
    os.setxattr(upper / "d/x", "user.mine", b"kept")
    os.link(upper / "d/x", upper / "y")
    whiteout(upper / "b")
    copied = bench.store.seal_upper(upper, base, **bench.seal, move=False)
    on_disk = describe(bench.store.lower_dirs(copied)[-1])
    on_disk["b"] = on_disk["b"][:3]  # a whiteout has no meaningful time
    bench.store.delete_unreachable([base.id])
    moved = bench.store.seal_upper(upper, base, **bench.seal, move=True)
    assert moved == copied
    now = describe(bench.store.lower_dirs(moved)[-1])
    now["b"] = now["b"][:3]
    assert now == on_disk
    assert os.listxattr(bench.store.lower_dirs(moved)[-1]) == []
    assert on_disk["d/x"][2] == (("user.mine", b"kept"),)


@pytest.mark.skipif(os.geteuid() != 0, reason="trusted.* attributes are root's")
def test_trusted_overlay_attributes_are_normalised(bench: Any) -> None:
    base = bench.base({"d/a": "1"})
    upper = bench.upper(base)
    (upper / "d").mkdir()
    os.setxattr(upper / "d", "trusted.overlay.opaque", b"y")
    sealed = bench.store.seal_upper(upper, base, **bench.seal, move=True)
    assert "d/a" not in bench.store.entries(sealed)
    assert os.listxattr(bench.store.lower_dirs(sealed)[-1] / "d") == ["user.overlay.opaque"]


@pytest.mark.skipif(os.geteuid() != 0, reason="file capabilities are root's to give")
def test_no_layer_has_a_capability_however_it_is_made(bench: Any) -> None:
    base = bench.base({"a": "1"})
    for move in (False, True):
        upper = bench.upper(base)
        (upper / "able").write_text("x")
        os.utime(upper / "able", ns=(5, 5))
        os.setxattr(upper / "able", "security.capability", bytes.fromhex("0100000200200000" + "00" * 12))
        sealed = bench.store.seal_upper(upper, base, **bench.seal, move=move)
        assert os.listxattr(bench.store.lower_dirs(sealed)[-1] / "able") == []
        assert not bench.store.fsck().problems


def test_files_only_copied_up_are_not_changes(bench: Any) -> None:
    base = bench.base({"d/e/f": "1"})
    upper = bench.upper(base)
    copied_up(bench, base, upper, "d/e/f")
    assert bench.store.seal_upper(upper, base, **bench.seal, move=True) is base
    assert upper.exists()
    whiteout(upper / "d/never-was")
    times = bench.store.entries(base)["d"].mtime_ns
    os.utime(upper / "d", ns=(times, times))
    assert bench.store.seal_upper(upper, base, **bench.seal, move=True) is base
    elsewhere = bench.store.seal_upper(upper, base, env={"A": "1"}, env_unset=(), cwd="d", move=True)
    assert elsewhere.layers == base.layers and elsewhere != base and upper.exists()
    os.utime(upper / "d/e", ns=(1, 1))
    touched = bench.store.seal_upper(upper, base, **bench.seal, move=True)
    assert touched != base and touched.content_key == base.content_key
    assert bench.store.entries(touched)["d/e"].mtime_ns == 1


def test_an_opaque_folder_that_holds_the_same_is_no_change(bench: Any) -> None:
    base = bench.base({"d/f": "1", "d/g": "2"})
    upper = bench.upper(base)
    copied_up(bench, base, upper, "d/f")
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    without = bench.store.seal_upper(upper, base, **bench.seal, move=False)
    assert bench.texts(without) == {"d/f": "1"}
    copied_up(bench, base, upper, "d/g")
    assert bench.store.seal_upper(upper, base, **bench.seal, move=True) is base


def test_the_top_folders_own_mode_is_kept(bench: Any) -> None:
    base = bench.base({"a": "1"})
    upper = bench.upper(base)
    upper.chmod(0o700)
    sealed = bench.store.seal_upper(upper, base, **bench.seal, move=True)
    assert stat.S_IMODE(bench.tree(sealed).stat().st_mode) == 0o700
    assert sealed.content_key != base.content_key
    assert bench.store.changes(base, sealed) == []


def test_sockets_are_left_out_and_do_not_uncover_files(bench: Any) -> None:
    base = bench.base({"a": "1", "d/b": "2"})
    for move in (False, True):
        upper = bench.upper(base)
        (upper / "d").mkdir()
        for name in ("a", "d/new"):
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(os.fspath(upper / name))
        os.utime(upper / "d", ns=(5, 5))
        sealed = bench.store.seal_upper(upper, base, **bench.seal, move=move)
        assert set(bench.store.entries(sealed)) == {"d", "d/b"}
        top = bench.store.lower_dirs(sealed)[-1]
        assert stat.S_ISCHR((top / "a").lstat().st_mode) and (top / "d").stat().st_mtime_ns == 5
        assert [path.name for path in (top / "d").iterdir()] == []


def test_references_of_overlayfs_are_refused(bench: Any) -> None:
    base = bench.base({"d/a": "1"})
    upper = bench.upper(base)
    (upper / "e").mkdir()
    os.setxattr(upper / "e", "user.overlay.redirect", b"d")
    with pytest.raises(ForkEngineError, match=r"e: .*redirect_dir=off"):
        bench.store.seal_upper(upper, base, **bench.seal, move=True)
    assert upper.exists()


def test_an_upper_on_another_file_system_is_copied(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = bench.base({"a": "1"})
    upper = bench.upper(base)
    (upper / "b").write_text("2")
    real = Path.rename

    def apart(self: Path, target: Path) -> Path:
        if self == upper:
            raise OSError(18, "Invalid cross-device link")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", apart)
    sealed = bench.store.seal_upper(upper, base, **bench.seal, move=True)
    assert bench.texts(sealed) == {"a": "1", "b": "2"} and not upper.exists()


ODD = ["new\nline", "\udcff\udcfe", "ünï", " ", "-rf", 'quo"te', "a\\b", "\u2028", "x" * 255]


def test_odd_names_and_kinds(bench: Any, describe: Any) -> None:
    base = bench.base({})

    def make(tree: Path) -> None:
        for name in ODD:
            (tree / "in" / name).mkdir(parents=True)
            (tree / "in" / name / name).write_text(name.encode("utf-8", "surrogateescape").hex())
            (tree / f"l{name[:200]}").symlink_to(name)
        (tree / "dangling").symlink_to("/nowhere/at/all")
        os.utime(tree / "dangling", ns=(7, 7), follow_symlinks=False)
        os.mkfifo(tree / "fifo", 0o640)
        (tree / "empty").mkdir(mode=0o711)
        (tree / "setuid").write_text("s")
        (tree / "setuid").chmod(0o4755)
        (tree / "far").write_text("f")
        os.utime(tree / "far", ns=(4_000_000_000_123_456_789, 4_000_000_000_123_456_789))

    tree = bench.tree(base)
    make(tree)
    sealed = bench.store.seal_tree(tree, base, **bench.seal)
    assert describe(bench.tree(sealed)) == describe(tree)
    assert bench.store.get(sealed.id) == sealed
    assert bench.store.entries(sealed)["fifo"].kind is EntryKind.FIFO
    again = bench.upper(base)
    make(again)
    moved = bench.store.seal_upper(again, base, **bench.seal, move=True)
    assert moved.content_key == sealed.content_key


def test_holes_are_kept(bench: Any) -> None:
    base = bench.base({})
    tree = bench.tree(base)
    with (tree / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"middle")
    sealed = bench.store.seal_tree(tree, base, **bench.seal)
    place = bench.tree(sealed)
    for copy in (bench.store.lower_dirs(sealed)[-1] / "sparse", place / "sparse"):
        assert copy.stat().st_size == 64 << 20
        assert copy.stat().st_blocks * 512 < 1 << 20
        with copy.open("rb") as file:
            file.seek((32 << 20) - 1)
            assert file.read(8) == b"\0middle\0"


def test_a_hard_link_lasts_until_one_of_its_paths_is_replaced(bench: Any, describe: Any) -> None:
    base = bench.base({"x": "0"})

    def link(tree: Path) -> None:
        (tree / "a").write_text("same")
        os.link(tree / "a", tree / "b")
        os.link(tree / "a", tree / "c")

    linked = bench.after(base, do=link)
    assert [bench.store.entries(linked)[path].link for path in "abc"] == ["", "a", "a"]

    upper = bench.upper(linked)
    (upper / "a").write_text("other")  # a copy-up leaves the others linked to each other
    broken = bench.store.seal_upper(upper, linked, **bench.seal, move=True)
    assert [bench.store.entries(broken)[path].link for path in "abc"] == ["", "", "b"]
    tree = bench.tree(broken)
    assert (tree / "b").stat().st_ino == (tree / "c").stat().st_ino != (tree / "a").stat().st_ino

    joined = bench.after(base, do=lambda tree: os.link(tree / "x", tree / "y"))  # one of them is an old file
    tree = bench.tree(joined)
    assert (tree / "x").stat().st_ino == (tree / "y").stat().st_ino


def test_a_file_rewritten_at_once_with_the_same_size_is_seen(bench: Any) -> None:
    base = bench.base({"a": "0000"})
    tree, parent = bench.tree(base), base
    for n in range(20):
        (tree / "a").write_text(f"{n:04}")
        parent = bench.store.seal_tree(tree, parent, **bench.seal)
        assert bench.store.read(parent, "a").decode() == f"{n:04}"


def test_a_file_that_changes_while_sealed_is_refused(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = bench.base({"a": "1"})
    tree = bench.tree(base)
    (tree / "a").write_text("22")
    from ramify.fork_engine.filesystem import write

    def copy_late(source: int, dest: int) -> None:
        (tree / "a").write_text("33")
        os.write(dest, os.pread(source, 100, 0))

    monkeypatch.setattr(write, "copy_bytes", copy_late)
    with pytest.raises(ForkEngineError, match="a: changed while"):
        bench.store.seal_tree(tree, base, **bench.seal)
    assert bench.on_disk("tmp") == []


def test_an_ordinary_user_seals_files_with_unreadable_modes(ordinary: Path, new_bench: Any) -> None:
    bench = new_bench(ordinary)
    base = bench.base({"a": "1", "d/b": "2"})
    for move in (True, False):
        upper = bench.upper(base)
        (upper / "secret").write_text(f"s{move}")
        os.setxattr(upper / "secret", "user.note", b"n")
        os.setxattr(upper / "secret", "user.overlay.origin", b"o")
        (upper / "secret").chmod(0)
        (upper / "writeonly").write_text("w")
        (upper / "writeonly").chmod(0o200)
        (upper / "shut").mkdir()
        (upper / "shut/in").write_text("i")
        os.setxattr(upper / "shut", "user.overlay.opaque", b"y")
        (upper / "shut").chmod(0)
        upper.chmod(0o555)
        sealed = bench.store.seal_upper(upper, base, **bench.seal, move=move)
        entries = bench.store.entries(sealed)
        modes = {path: entries[path].mode for path in ("secret", "writeonly", "shut")}
        assert modes == {"secret": 0, "writeonly": 0o200, "shut": 0}
        assert entries["secret"].xattrs == (("user.note", b"n".hex()),)
        assert bench.store.read(sealed, "shut/in") == b"i"
        top = bench.store.lower_dirs(sealed)[-1]
        assert [stat.S_IMODE((top / name).stat().st_mode) for name in modes] == [0, 0o200, 0]
        assert os.listxattr(top / "secret") == ["user.note"]
        tree = bench.tree(sealed)
        assert stat.S_IMODE((tree / "shut").stat().st_mode) == 0
        assert bench.store.seal_tree(tree, sealed, **bench.seal) is sealed
    assert len(bench.store.delete_unreachable([])) == 2
    assert bench.on_disk("layers") == bench.on_disk("tmp") == []


def test_a_seal_costs_what_changed(bench: Any) -> None:
    base = bench.base({f"d{n % 50}/f{n}": "x" for n in range(3000)})
    calls: list[str] = []
    upper = bench.upper(base)
    (upper / "one").write_text("1")
    import sys

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if counting and event in ("open", "os.scandir", "os.mkdir", "os.link"):
            calls.append(event)

    counting = True
    sys.addaudithook(count)
    try:
        sealed = bench.store.seal_upper(upper, base, **bench.seal, move=True)
        bench.store.merge(base, sealed, bench.store.seal_upper(bench.upper(base), base, **bench.seal, move=True))
    finally:
        counting = False
    assert 0 < len(calls) < 100


def test_leftovers_of_a_crash_are_removed(bench: Any) -> None:
    base = bench.base({"a": "1"})
    left = bench.store.root / "tmp" / "left"
    (left / "layer/fs").mkdir(parents=True)
    (left / "layer/fs/file").write_text("half")
    (left / "layer/fs").chmod(0)
    (bench.store.root / "tmp" / "file").write_text("")
    bench.store.remove_temporary_leftovers()
    assert bench.on_disk("tmp") == []
    assert bench.store.get(base.id) == base
