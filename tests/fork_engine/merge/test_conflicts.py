"""Three-way merge: each kind of conflict, and its result under each strategy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import ForkEngineError, MergeConflict
from ramify.fork_engine.types import Conflict, ConflictKind, MergeStrategy

OURS, THEIRS, UNION, FAIL = MergeStrategy.OURS, MergeStrategy.THEIRS, MergeStrategy.UNION, MergeStrategy.FAIL
LINES = "".join(f"{n}\n" for n in range(12))


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


# d/f, removed by one side and unchanged by the other, is gone
MIXED: dict[str, dict[MergeStrategy, dict[str, str]]] = {
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
            winner = two  # there is no other directory to be in
        merged = bench.store.merge(base, one, two, strategy=strategy)
        if name in MIXED:
            assert MIXED[name][strategy] == {
                path: text for path, text in bench.texts(merged).items() if path[0] == "d"
            }
            continue
        assert merged.content_key == winner.content_key
        plain = {path: found[:3] for path, found in describe(bench.tree(merged), times=False).items()}
        assert plain == {path: found[:3] for path, found in describe(bench.tree(winner), times=False).items()}


def test_a_strategy_resolves_only_conflicts(bench: Any) -> None:
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


def test_union(bench: Any) -> None:
    base = bench.base({"log": "0\n", "gone": "1", "t": "1", "bin": b"\0", "d/x": "x"})
    one = bench.after(base, {"log": "0\none", "t": "2", "d/y": "y"}, remove=("gone",))
    two = bench.after(base, {"log": "0\ntwo\n", "gone": "2"}, remove=("t", "d"))
    for ours, theirs, lines in ((one, two, "0\none\ntwo\n"), (two, one, "0\ntwo\none")):
        merged = bench.store.merge(base, ours, theirs, strategy=UNION)
        assert bench.texts(merged) == {"log": lines, "gone": "2", "t": "2", "bin": "\0", "d/y": "y"}
    added = [bench.after(base, {"new": side}) for side in ("a\n", "b\n")]
    assert bench.texts(bench.store.merge(base, *added, strategy=UNION))["new"] == "a\nb\n"
    modes = [bench.after(base, do=lambda tree, m=m: (tree / "t").chmod(m)) for m in (0o640, 0o604)]
    assert bench.store.entries(bench.store.merge(base, *modes, strategy=UNION))["t"].mode == 0o644


def test_conflicts_that_a_union_cannot_resolve_remain(bench: Any) -> None:
    base = bench.base({"bin": b"\0", "d/x": "x"})
    one = bench.after(base, {"bin": b"\0one"}, env={"A": "1"}, cwd="d")
    two = bench.after(base, {"bin": b"\0two"}, env={"A": "2"})
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, two, strategy=UNION)
    assert [conflict.path for conflict in raised.value.conflicts] == ["bin", "A"]


def test_a_function_resolves_conflicts(bench: Any) -> None:
    base = bench.after(bench.base({"a": "1", "b": "1", "c": "1", "gone": "1", "l": "1"}), env={"V": "1"})
    one = bench.after(base, {"a": "2", "b": "2", "c": "2", "gone": "2"}, env={"V": "2"}, do=relink("x"))
    two = bench.after(base, {"a": "3", "b": "3", "c": "3"}, env={"V": "3"}, remove=("gone",), do=relink("y"))
    asked: dict[str, tuple[ConflictKind, bytes | None, bytes | None, bytes | None]] = {}

    def settle(
        conflict: Conflict, base: bytes | None, ours: bytes | None, theirs: bytes | None
    ) -> bytes | MergeStrategy:
        asked[conflict.path] = (conflict.kind, base, ours, theirs)
        return {"a": b"both", "b": THEIRS, "c": OURS, "gone": b"kept", "V": b"4", "l": b"a file"}[conflict.path]

    merged = bench.store.merge(base, one, two, strategy=settle)
    assert bench.texts(merged) == {"a": "both", "b": "3", "c": "2", "gone": "kept", "l": "a file"}
    assert merged.env == {"V": "4"}
    assert asked == {
        "a": (ConflictKind.BOTH_CHANGED, b"1", b"2", b"3"),
        "b": (ConflictKind.BOTH_CHANGED, b"1", b"2", b"3"),
        "c": (ConflictKind.BOTH_CHANGED, b"1", b"2", b"3"),
        "gone": (ConflictKind.CHANGED_REMOVED, b"1", b"2", None),
        "l": (ConflictKind.BOTH_CHANGED, b"1", b"x", b"y"),
        "V": (ConflictKind.ENV, b"1", b"2", b"3"),
    }
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, two, strategy=lambda conflict, *_: FAIL if conflict.path == "b" else OURS)
    assert [conflict.path for conflict in raised.value.conflicts] == ["b"]


def test_a_function_may_keep_part_of_a_removed_folder(bench: Any) -> None:
    base = bench.base({"d/old": "0"})
    one = bench.after(base, {"d/a": "1", "d/s/b": "1"})
    two = bench.after(base, remove=("d",))
    for ours, theirs in ((one, two), (two, one)):
        mine = OURS if ours is one else THEIRS
        other = THEIRS if ours is one else OURS
        merged = bench.store.merge(
            base, ours, theirs, strategy=lambda c, *_, m=mine, o=other: m if c.path == "d/s/b" else o
        )
        assert bench.texts(merged) == {"d/s/b": "1"}


@pytest.mark.parametrize("answer", [None, 7, "mine", b"".join])
def test_a_function_that_gives_no_answer_is_refused(bench: Any, answer: Any) -> None:
    base = bench.base({"a": "1\n"})
    ours, theirs = bench.after(base, {"a": "2\n"}), bench.after(base, {"a": "3\n"})
    with pytest.raises(ForkEngineError, match="a: asked how to resolve"):
        bench.store.merge(base, ours, theirs, strategy=lambda *_: answer)


def test_a_function_may_name_a_strategy(bench: Any) -> None:
    base = bench.base({"a": "1\n"})
    ours, theirs = bench.after(base, {"a": "2\n"}), bench.after(base, {"a": "3\n"})
    assert bench.texts(bench.store.merge(base, ours, theirs, strategy=lambda *_: "theirs")) == {"a": "3\n"}
