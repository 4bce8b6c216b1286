"""Checkout into a user's folder: what is refused, what is overwritten, and that no link leads out."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import CheckoutRefused, SnapshotCorrupt
from ramify.fork_engine.types import ChangeKind


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("mine")
    return folder


def untouched(outside: Path) -> bool:
    return [path.name for path in outside.iterdir()] == ["precious"] and (outside / "precious").read_text() == "mine"


def test_a_checkout_into_a_missing_or_empty_folder(bench: Any, tmp_path: Path, describe: Any) -> None:
    made = bench.after(bench.base({"a": "1", "d/b": "2"}), do=lambda tree: (tree / "d").chmod(0o500))
    expected = describe(bench.tree(made))
    for dest in (tmp_path / "x/y/new", tmp_path / "empty"):
        if dest.name == "empty":
            dest.mkdir()
        changes = bench.store.checkout(made, dest)
        assert describe(dest) == expected
        assert [(change.path, change.kind) for change in changes] == [
            (path, ChangeKind.ADDED) for path in ("a", "d", "d/b")
        ]
    assert {path.name for path in (tmp_path / "x/y").iterdir()} == {"new"}


def test_a_failed_checkout_leaves_nothing(bench: Any, tmp_path: Path) -> None:
    base = bench.base({"a": "1", "b": "2"})
    (bench.store.lower_dirs(base)[0] / "b").unlink()
    with pytest.raises(SnapshotCorrupt, match="b is missing"):
        bench.store.checkout(base, tmp_path / "dest")
    assert not list(tmp_path.glob("*dest*"))


def test_refused_checkouts(bench: Any, tmp_path: Path) -> None:
    base = bench.base({"a": "1"})
    full = tmp_path / "full"
    full.mkdir()
    (full / "other").write_text("o")
    refused: list[tuple[Path, str, dict[str, Any]]] = [
        (full, "not empty", {}),
        (full / "other", "not a folder", {"force": True}),
        (bench.store.root / "layers" / "x", "the store itself", {"force": True}),
        (tmp_path / "none", "missing", {"only_changes_from": base}),
    ]
    for dest, reason, how in refused:
        with pytest.raises(CheckoutRefused, match=reason):
            bench.store.checkout(base, dest, **how)
    assert [path.name for path in full.iterdir()] == ["other"]


def test_force_overwrites_what_differs_and_leaves_the_rest(bench: Any, tmp_path: Path) -> None:
    made = bench.after(
        bench.base({"a": "1", "d/b": "2", "same": "s", "f": "file"}), do=lambda t: (t / "l").symlink_to("a")
    )
    dest = tmp_path / "dest"
    bench.store.materialise(made, dest)
    (dest / "a").write_text("changed")
    (dest / "other").write_text("kept")
    (dest / "f").unlink()
    (dest / "f/in/the").mkdir(parents=True)
    (dest / "l").unlink()
    (dest / "d").chmod(0o500)
    inode = (dest / "same").stat().st_ino
    changes = bench.store.checkout(made, dest, force=True)
    assert {change.path: change.kind for change in changes} == {
        "a": ChangeKind.MODIFIED,
        "d": ChangeKind.MODE,
        "f": ChangeKind.TYPE,
        "l": ChangeKind.ADDED,
    }
    assert bench.store.checkout(made, dest, force=True) == []
    assert (dest / "other").read_text() == "kept" and (dest / "same").stat().st_ino == inode


def rename_folder(tree: Path) -> None:
    (tree / "old").rename(tree / "new")


def swap(tree: Path) -> None:
    """A file and a folder swap places."""
    (tree / "a").rename(tree / "t")
    (tree / "d").rename(tree / "a")
    (tree / "t").rename(tree / "d")


def relink(tree: Path) -> None:
    (tree / "l").unlink()
    (tree / "l").symlink_to("other")


EDITS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda tree: None,
    "edit": lambda tree: (tree / "a").write_text("2"),
    "add": lambda tree: ((tree / "n/m").mkdir(parents=True), (tree / "n/m/f").write_text("x")),
    "remove": lambda tree: ((tree / "d/b").unlink(), (tree / "d/c").unlink(), (tree / "d").rmdir()),
    "rename": rename_folder,
    "swap": swap,
    "link": relink,
    "mode": lambda tree: ((tree / "a").chmod(0o755), (tree / "d").chmod(0o500)),
    "fifo": lambda tree: ((tree / "a").unlink(), os.mkfifo(tree / "a", 0o640)),
    "attributes": lambda tree: (os.setxattr(tree / "a", "user.x", b"1"), os.setxattr(tree / "d", "user.x", b"1")),
}


@pytest.fixture
def base(bench: Any) -> Any:
    start = bench.base({"a": "1", "d/b": "2", "d/c": "3", "old/x/y": "4"})
    return bench.after(start, do=lambda tree: (tree / "l").symlink_to("a"))


@pytest.mark.parametrize("name", EDITS)
def test_only_the_changes_are_applied(bench: Any, describe: Any, base: Any, name: str) -> None:
    after = bench.after(base, do=EDITS[name])
    dest = bench.tree(base)
    (dest / "own").write_text("the user's")
    inode = (dest / "old").stat().st_ino
    changes = bench.store.checkout(after, dest, only_changes_from=base)
    assert changes == bench.store.changes(base, after)

    def plain(tree: Path) -> Any:
        return {path: found[:3] for path, found in describe(tree, times=False).items() if path != "own"}

    assert plain(dest) == plain(bench.tree(after))
    assert (dest / "own").read_text() == "the user's"
    if name != "rename":
        assert (dest / "old").stat().st_ino == inode
    assert bench.store.checkout(after, dest, only_changes_from=base) == []  # cost: once is enough


CLASHES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "edited": ("edit", lambda dest: (dest / "a").write_text("mine"), "'a'"),
    "made executable": ("edit", lambda dest: (dest / "a").chmod(0o755), "'a'"),
    "removed": ("edit", lambda dest: (dest / "a").unlink(), "'a'"),
    "in the way": ("add", lambda dest: (dest / "n").write_text("mine"), "'n'"),
    "holds more": ("remove", lambda dest: (dest / "d/mine").write_text("mine"), "'d/mine'"),
    "retyped": ("mode", lambda dest: ((dest / "a").unlink(), (dest / "a").mkdir()), "'a'"),
}


@pytest.mark.parametrize("name", CLASHES)
def test_changes_are_refused_where_the_folder_is_otherwise(bench: Any, describe: Any, base: Any, name: str) -> None:
    edit, act, named = CLASHES[name]
    after = bench.after(base, do=EDITS[edit])
    dest = bench.tree(base)
    act(dest)
    before = describe(dest)
    with pytest.raises(CheckoutRefused, match=named):
        bench.store.checkout(after, dest, only_changes_from=base)
    assert describe(dest) == before

    bench.store.checkout(after, dest, only_changes_from=base, force=True)
    if name == "holds more":
        assert (dest / "d/mine").read_text() == "mine"  # never removed without being asked to
    else:
        now = describe(dest, times=False)
        for change in bench.store.changes(base, after):
            assert (change.path in now) == (change.after is not None)


def test_an_addition_to_a_missing_folder_is_refused(bench: Any, base: Any) -> None:
    after = bench.after(base, {"old/x/new": "n"})
    dest = bench.tree(base)
    (dest / "old").rename(dest / "older")
    with pytest.raises(CheckoutRefused, match="'old/x/new'"):
        bench.store.checkout(after, dest, only_changes_from=base)
    bench.store.checkout(after, dest, only_changes_from=base, force=True)
    assert (dest / "old/x/new").read_text() == "n"


def test_many_clashes_are_counted(bench: Any, base: Any) -> None:
    after = bench.after(base, {f"n{n}": "x" for n in range(8)})
    dest = bench.tree(base)
    for n in range(8):
        (dest / f"n{n}").write_text("mine")
    with pytest.raises(CheckoutRefused, match="'n4' and 3 more"):
        bench.store.checkout(after, dest, only_changes_from=base)


@pytest.mark.parametrize("force", [False, True])
def test_a_link_in_the_users_folder_is_not_followed(bench: Any, base: Any, outside: Path, force: bool) -> None:
    """The user replaced a folder and a file by links that lead out."""
    after = bench.after(base, {"d/b": "new", "d/n": "n", "a": "2", "old/x/y": "5"}, remove=("d/c",))
    dest = bench.tree(base)
    (dest / "d").rename(dest / "was")
    (dest / "d").symlink_to(outside)
    (dest / "a").unlink()
    (dest / "a").symlink_to(outside / "precious")
    (dest / "old/x").rename(dest / "old/was")
    (dest / "old/x").symlink_to("../../outside")
    if not force:
        with pytest.raises(CheckoutRefused, match="'a'"):
            bench.store.checkout(after, dest, only_changes_from=base)
    else:
        bench.store.checkout(after, dest, only_changes_from=base, force=True)
        assert not (dest / "d").is_symlink() and (dest / "d/b").read_text() == "new"
        assert not (dest / "a").is_symlink() and (dest / "a").read_text() == "2"
        bench.store.checkout(after, dest, force=True)
        assert (dest / "old/x/y").read_text() == "5"
    assert untouched(outside)


def test_a_whole_checkout_by_force_follows_no_link(bench: Any, base: Any, outside: Path, describe: Any) -> None:
    dest = bench.place()
    dest.mkdir()
    (dest / "d").symlink_to(outside)
    (dest / "old").symlink_to(outside)
    (dest / "a").symlink_to(outside / "new-file")
    bench.store.checkout(base, dest, force=True)
    assert untouched(outside)
    assert describe(dest, times=False)["d/b"] == describe(bench.tree(base), times=False)["d/b"]


def test_a_link_planted_in_the_snapshot_is_not_followed(bench: Any, base: Any, outside: Path) -> None:
    """A world replaces a folder by a link that leads out, then by a folder again."""
    planted = bench.after(base, remove=("d",), do=lambda tree: (tree / "d").symlink_to(outside))
    back = bench.after(planted, remove=("d",), files={"d/precious": "evil"})
    for before, after in ((base, planted), (base, back), (planted, back)):
        dest = bench.tree(before)
        bench.store.checkout(after, dest, only_changes_from=before)
        assert untouched(outside)
        dest = bench.tree(before)
        bench.store.checkout(after, dest, force=True)
        assert untouched(outside)
    assert (dest / "d/precious").read_text() == "evil" and not (dest / "d").is_symlink()


def test_the_destination_itself_may_be_a_link(bench: Any, base: Any, tmp_path: Path) -> None:
    dest = bench.tree(base)
    (tmp_path / "named").symlink_to(dest)
    bench.store.checkout(bench.after(base, {"a": "2"}), tmp_path / "named", only_changes_from=base)
    assert (dest / "a").read_text() == "2"


def test_folders_that_an_ordinary_user_closed(ordinary: Path, new_bench: Any) -> None:
    bench = new_bench(ordinary)
    base = bench.base({"d/a": "1", "s/b": "2"})
    shut = bench.after(
        base, do=lambda tree: ((tree / "s/b").chmod(0), (tree / "s").chmod(0), (tree / "d").chmod(0o555))
    )
    edited = bench.after(shut, do=lambda tree: ((tree / "d").chmod(0o755), (tree / "d/a").write_text("2")))
    edited = bench.after(edited, do=lambda tree: (tree / "d").chmod(0o500))
    dest = bench.tree(shut)
    bench.store.checkout(edited, dest, only_changes_from=shut)
    assert (dest / "d/a").read_text() == "2"
    assert stat.S_IMODE((dest / "d").stat().st_mode) == 0o500
    assert stat.S_IMODE((dest / "s").stat().st_mode) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of someone else's")
def test_a_checkout_into_another_users_folder_is_refused(bench: Any, base: Any) -> None:
    dest = bench.tree(base)
    edited = bench.after(base, {"a": "2"})
    bench.store.root.chmod(0o755)
    for path in (dest, *dest.parents[:-1]):
        path.chmod(0o755)
    for path in bench.store.root.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(CheckoutRefused, match="Make it writable"):
            bench.store.checkout(edited, dest, only_changes_from=base)
    finally:
        os.seteuid(0)
    assert (dest / "a").read_text() == "1"
