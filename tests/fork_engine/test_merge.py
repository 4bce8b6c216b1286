"""Three-way merge: what fits together, and each kind of conflict under each strategy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.types import ConflictKind, MergeStrategy, ProcessTier

OURS, THEIRS = MergeStrategy.OURS, MergeStrategy.THEIRS
LINES = "".join(f"{n}\n" for n in range(12))


def test_fast_forward(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one = bench.after(base, {"a": "2"})
    assert bench.store.merge(base, base, one) is one
    assert bench.store.merge(base, one, base) is one


def test_one_sided_changes_are_taken(bench: Any) -> None:
    base = bench.base({"a": "1", "b": "1", "c": "1", "d/e/f": "1", "m": "1"})
    one = bench.after(base, {"a": "2", "new/x": "x"}, remove=("d",))
    two = bench.after(base, {"b": "2", "new/y": "y"}, remove=("c",), do=lambda tree: (tree / "m").chmod(0o755))
    merged = bench.store.merge(base, one, two)
    assert bench.texts(merged) == {"a": "2", "b": "2", "new/x": "x", "new/y": "y", "m": "1"}
    assert bench.store.entries(merged)["m"].mode == 0o755
    assert merged.layers[:-1] == one.layers
    assert bench.store.merge(base, two, one).content_key == merged.content_key


def test_equal_changes_are_taken_once(bench: Any) -> None:
    base = bench.base({"a": "1", "b": "1"})
    one = bench.after(base, {"a": "2", "n": "n"}, remove=("b",))
    two = bench.after(base, {"a": "2", "n": "n"}, remove=("b",))
    assert bench.store.merge(base, one, two).content_key == one.content_key == two.content_key


def test_lines_are_merged_and_mode_from_the_other_side(bench: Any) -> None:
    base = bench.base({"f.py": LINES})
    one = bench.after(base, {"f.py": LINES.replace("1\n", "one\n", 1)}, do=lambda tree: (tree / "f.py").chmod(0o755))
    two = bench.after(base, {"f.py": LINES.replace("9\n", "nine\n", 1)})
    for ours, theirs in ((one, two), (two, one)):
        merged = bench.store.merge(base, ours, theirs)
        assert bench.texts(merged)["f.py"] == LINES.replace("1\n", "one\n", 1).replace("9\n", "nine\n", 1)
        assert bench.store.entries(merged)["f.py"].mode == 0o755


def test_mode_of_one_side_and_bytes_of_the_other(bench: Any) -> None:
    base = bench.base({"f": b"\x00one"})
    one = bench.after(base, do=lambda tree: (tree / "f").chmod(0o700))
    two = bench.after(base, {"f": b"\x00two"})
    for ours, theirs in ((one, two), (two, one)):
        merged = bench.store.merge(base, ours, theirs)
        assert bench.store.read(merged, "f") == b"\x00two"
        assert (bench.tree(merged) / "f").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("ends", ["\r\n", "\n", "\u2028"])
def test_line_ends_are_kept(bench: Any, ends: str) -> None:
    text = [f"{n}{ends}" for n in range(9)]
    base = bench.base({"f": "".join(text)})
    one = bench.after(base, {"f": "".join(["first" + ends, *text[1:]])})
    two = bench.after(base, {"f": "".join([*text[:8], "last"])})
    assert bench.texts(bench.store.merge(base, one, two))["f"] == "".join(["first" + ends, *text[1:8], "last"])


def rmdir_write(tree: Path) -> None:
    (tree / "d/f").unlink()
    (tree / "d").rmdir()
    (tree / "d").write_text("file")


def relink(target: str) -> Callable[[Path], None]:
    def do(tree: Path) -> None:
        (tree / "l").unlink()
        (tree / "l").symlink_to(target)

    return do


def xattr(value: bytes) -> Callable[[Path], None]:
    return lambda tree: os.setxattr(tree / "a", "user.x", value)


Changes = dict[str, Any]
CONFLICTS: dict[str, tuple[Changes, Changes, list[tuple[str, ConflictKind]]]] = {
    "same line": ({"files": {"a": "2\n"}}, {"files": {"a": "3\n"}}, [("a", ConflictKind.BOTH_CHANGED)]),
    "not text": ({"files": {"bin": b"\xff1"}}, {"files": {"bin": b"\xff2"}}, [("bin", ConflictKind.BOTH_CHANGED)]),
    "both added": ({"files": {"n": "1"}}, {"files": {"n": "2"}}, [("n", ConflictKind.BOTH_CHANGED)]),
    "links": ({"do": relink("x")}, {"do": relink("y")}, [("l", ConflictKind.BOTH_CHANGED)]),
    "attributes": ({"do": xattr(b"1")}, {"do": xattr(b"2")}, [("a", ConflictKind.BOTH_CHANGED)]),
    "changed, removed": ({"files": {"a": "2\n"}}, {"remove": ("a",)}, [("a", ConflictKind.CHANGED_REMOVED)]),
    "removed, changed": ({"remove": ("a",)}, {"files": {"a": "2\n"}}, [("a", ConflictKind.CHANGED_REMOVED)]),
    "into a removed folder": ({"remove": ("d",)}, {"files": {"d/n": "n"}}, [("d/n", ConflictKind.CHANGED_REMOVED)]),
    "folder removed under it": ({"files": {"d/n": "n"}}, {"remove": ("d",)}, [("d/n", ConflictKind.CHANGED_REMOVED)]),
    "into a replaced folder": ({"do": rmdir_write}, {"files": {"d/n": "n"}}, [("d/n", ConflictKind.TYPE)]),
    "folder replaced under it": ({"files": {"d/n": "n"}}, {"do": rmdir_write}, [("d/n", ConflictKind.TYPE)]),
    "file and folder added": ({"files": {"n": "1"}}, {"files": {"n": None}}, [("n", ConflictKind.TYPE)]),
    "modes": (
        {"do": lambda tree: (tree / "a").chmod(0o600)},
        {"do": lambda tree: (tree / "a").chmod(0o755)},
        [("a", ConflictKind.MODE)],
    ),
    "modes of the top": (
        {"do": lambda tree: tree.chmod(0o700)},
        {"do": lambda tree: tree.chmod(0o711)},
        [(".", ConflictKind.MODE)],
    ),
    "variable": ({"env": {"A": "1"}}, {"env": {"A": "2"}}, [("A", ConflictKind.ENV)]),
    "variable unset": ({"env": {"A": "1"}}, {"env_unset": ("A",)}, [("A", ConflictKind.ENV)]),
    "directory": ({"cwd": "d"}, {"cwd": "e"}, [("cwd", ConflictKind.ENV)]),
    "directory removed": ({"cwd": "e"}, {"remove": ("e",)}, [("cwd", ConflictKind.ENV)]),
}


MIXED: dict[str, dict[MergeStrategy, dict[str, str]]] = {  # d/f, removed by one and left alone by the other, is gone
    "into a removed folder": {OURS: {}, THEIRS: {"d/n": "n"}},
    "folder removed under it": {OURS: {"d/n": "n"}, THEIRS: {}},
    "into a replaced folder": {OURS: {"d": "file"}, THEIRS: {"d/n": "n"}},
    "folder replaced under it": {OURS: {"d/n": "n"}, THEIRS: {"d": "file"}},
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_conflicts(bench: Any, describe: Any, name: str) -> None:
    ours, theirs, expected = CONFLICTS[name]
    base = bench.base({"a": "1\n", "bin": b"\xff0", "d/f": "f", "e": None, "keep": "k"})
    base = bench.after(base, do=lambda tree: (tree / "l").symlink_to("z"))
    one, two = bench.after(base, **ours), bench.after(base, **theirs)
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, two)
    assert [(conflict.path, conflict.kind) for conflict in raised.value.conflicts] == expected
    for path, _ in expected:
        assert path in str(raised.value)

    for strategy, winner in ((OURS, one), (THEIRS, two)):
        if name == "directory removed":
            winner = two  # there is nowhere else to stand
        merged = bench.store.merge(base, one, two, strategy=strategy)
        if name in MIXED:
            assert MIXED[name][strategy] == {
                path: text for path, text in bench.texts(merged).items() if path[0] == "d"
            }
            continue
        assert merged.content_key == winner.content_key
        plain = {path: found[:3] for path, found in describe(bench.tree(merged), times=False).items()}
        assert plain == {path: found[:3] for path, found in describe(bench.tree(winner), times=False).items()}


def test_a_strategy_settles_conflicts_alone(bench: Any) -> None:
    base = bench.base({"a": "1\n", "t": LINES, "c": "1"})
    one = bench.after(base, {"a": "2\n", "t": "new\n" + LINES, "x": "x"})
    two = bench.after(base, {"a": "3\n", "t": LINES + "end\n", "y": "y"}, remove=("c",))
    merged = bench.store.merge(base, one, two, strategy=THEIRS)
    assert bench.texts(merged) == {"a": "3\n", "t": "new\n" + LINES + "end\n", "x": "x", "y": "y"}


def test_many_conflicts_are_all_listed(bench: Any) -> None:
    base = bench.base({})
    one, two = (bench.after(base, {f"f{n}": side for n in range(8)}) for side in "12")
    with pytest.raises(MergeConflict, match=r"8 conflict\(s\).*and 3 more"):
        bench.store.merge(base, one, two)


def test_environments_merge_by_variable(bench: Any) -> None:
    base = bench.after(bench.base({"d/a": "1"}), env={"A": "1", "B": "1", "C": "1"})
    one = bench.after(base, env={"A": "2", "B": "1"}, env_unset=("C",), cwd="d")
    two = bench.after(base, env={"A": "1", "B": "1", "C": "1", "D": "4"}, tier=ProcessTier.DROPPED)
    merged = bench.store.merge(base, one, two)
    assert (merged.env, merged.env_unset, merged.cwd) == ({"A": "2", "B": "1", "D": "4"}, ("C",), "d")
    assert merged.tier is ProcessTier.DROPPED
    assert merged.layers == base.layers


def test_a_merge_costs_no_bytes_for_files_taken_whole(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = bench.after(base, {"b": "2"}), bench.after(base, {"c": "3"})
    merged = bench.store.merge(base, one, two)
    taken, made = (bench.store.lower_dirs(snapshot)[-1] / "c" for snapshot in (merged, two))
    assert taken.stat().st_ino == made.stat().st_ino


def test_a_hard_link_of_theirs_lasts(bench: Any) -> None:
    base = bench.base({"a": "1", "c": "1"})
    one = bench.after(base, {"c": "2"})
    two = bench.after(base, do=lambda tree: os.link(tree / "a", tree / "b"))
    tree = bench.tree(bench.store.merge(base, one, two))
    assert (tree / "a").stat().st_ino == (tree / "b").stat().st_ino


def test_merging_many_branches_squashes(tmp_path: Path, bench: Any) -> None:
    from ramify.fork_engine.store import SnapshotStore

    low = SnapshotStore(bench.store.root, max_layers=3)
    base = bench.base({"a": "1"})
    merged = base
    for n in range(6):
        merged = low.merge(base, merged, bench.after(base, {f"f{n}": str(n)}))
    assert bench.texts(merged) == {"a": "1", **{f"f{n}": str(n) for n in range(6)}}
    assert len(merged.layers) <= 3
    one = bench.after(merged, {"a": "2"})
    two = bench.after(merged, {"g": "2"})
    assert bench.texts(low.merge(merged, one, two))["a"] == "2"


def test_sides_of_different_imports(bench: Any) -> None:
    base = bench.base({"a": "1", "b": "1"})
    other = bench.base({"a": "1", "b": "2"})
    one = bench.after(base, {"a": "2"})
    assert bench.texts(bench.store.merge(base, one, other)) == {"a": "2", "b": "2"}
