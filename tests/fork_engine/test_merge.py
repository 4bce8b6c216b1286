"""Three-way merge: what fits together, and each kind of conflict under each strategy."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import ForkEngineError, MergeConflict
from ramify.fork_engine.manifest import canonical_json
from ramify.fork_engine.shells import NAMED
from ramify.fork_engine.types import Conflict, ConflictKind, MergeStrategy, Processes, ProcessTier, Snapshot

OURS, THEIRS, UNION, FAIL = MergeStrategy.OURS, MergeStrategy.THEIRS, MergeStrategy.UNION, MergeStrategy.FAIL
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


@pytest.mark.parametrize("ends", ["\r\n", "\n", "\r"])
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
    two = bench.after(base, env={"A": "1", "B": "1", "C": "1", "D": "4"}, processes=Processes(ProcessTier.DROPPED))
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


def test_both_parents_are_named(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = bench.after(base, {"b": "2"}), bench.after(base, {"c": "3"})
    merged = bench.store.merge(base, one, two)
    assert merged.parents == (one.id, two.id) and one.parents == (base.id,) and base.parents == ()
    assert bench.store.get(merged.id).parents == merged.parents


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


def test_what_no_union_settles_is_left(bench: Any) -> None:
    base = bench.base({"bin": b"\0", "d/x": "x"})
    one = bench.after(base, {"bin": b"\0one"}, env={"A": "1"}, cwd="d")
    two = bench.after(base, {"bin": b"\0two"}, env={"A": "2"})
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, two, strategy=UNION)
    assert [conflict.path for conflict in raised.value.conflicts] == ["bin", "A"]


def test_a_function_settles(bench: Any) -> None:
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


def test_what_tools_leave_behind_is_no_conflict(bench: Any) -> None:
    base = bench.base({"m.py": "1", "p/m.py": "1"})
    one = bench.after(base, {"__pycache__/m.pyc": b"\0one", "p/__pycache__/m.pyc": b"\0"})
    two = bench.after(base, {"__pycache__/m.pyc": b"\0two"}, remove=("p",))
    assert bench.texts(bench.store.merge(base, one, two)) == {"m.py": "1", "__pycache__/m.pyc": "\0one"}
    assert bench.texts(bench.store.merge(base, two, one)) == {"m.py": "1", "__pycache__/m.pyc": "\0two"}
    theirs = bench.store.merge(base, one, two, strategy=THEIRS)
    assert bench.texts(theirs)["__pycache__/m.pyc"] == "\0two"


def test_huge_texts_are_not_merged_by_line(bench: Any) -> None:
    text = "line\n" * (1 << 20)
    base = bench.base({"a": text})
    one, two = bench.after(base, {"a": "first\n" + text}), bench.after(base, {"a": text + "last\n"})
    with pytest.raises(MergeConflict):
        bench.store.merge(base, one, two)


def dumped(bench: Any) -> Processes:
    folder = bench.place()
    folder.mkdir()
    (folder / "core").write_bytes(b"core")
    return Processes(ProcessTier.CRIU, image=bench.store.adopt_image(folder))


COMMANDS = Processes(ProcessTier.COMMANDS, commands=("serve",))


def test_processes_of_one_side_go_on(bench: Any) -> None:
    base = bench.base({"a": "1"})
    quiet = bench.after(base, {"b": "1"})
    for ran in (dumped(bench), COMMANDS, Processes(ProcessTier.REPL)):
        live = bench.after(base, {"c": "1"}, processes=ran)
        assert bench.store.merge(base, quiet, live).processes == ran
        assert bench.store.merge(base, live, quiet).processes == ran
        later = bench.after(live, {"d": "1"}, processes=ran)
        ended = bench.after(live, {"e": "1"})
        assert bench.store.merge(live, later, ended).processes == Processes()


def test_processes_of_both_sides_are_a_conflict(bench: Any) -> None:
    base = bench.base({"a": "1"})
    live = dumped(bench)
    one = bench.after(base, {"b": "1"}, processes=live)
    two = bench.after(base, {"c": "1"}, processes=COMMANDS)
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, two)
    assert [(c.path, c.kind) for c in raised.value.conflicts] == [("processes", ConflictKind.PROCESSES)]
    assert bench.store.merge(base, one, two, strategy=OURS).processes == live
    assert bench.store.merge(base, one, two, strategy=THEIRS).processes == COMMANDS
    assert bench.store.merge(base, one, two, strategy=lambda *_: THEIRS).processes == COMMANDS
    with pytest.raises(MergeConflict):
        bench.store.merge(base, one, two, strategy=UNION)
    more = bench.after(base, {"b": "1"}, processes=Processes(ProcessTier.COMMANDS, commands=("watch", "serve")))
    assert bench.store.merge(base, two, more, strategy=UNION).processes.commands == ("serve", "watch")


def shell(bench: Any, **items: Any) -> Processes:
    """What a shell knows, as `ramify.sandboxes.shellstate.Kept` writes it."""
    empty: dict[str, Any] = {kind: {} for kind in (*NAMED, "attributes")}
    empty |= {"format": 2, "args": [], "dirs": [], "oldpwd": ""}
    return Processes(shell=bench.store.put_blob(canonical_json(empty | items)))


def known(bench: Any, snapshot: Snapshot) -> Any:
    return json.loads(bench.store.blob(snapshot.processes.shell))


def test_a_shell_that_one_side_changed_is_kept(bench: Any) -> None:
    mine = shell(bench, functions={"f": "f () {\n:\n}\n"})
    base = bench.base({"a": "1"})
    one = bench.after(base, {"b": "1"}, env={"A": "1"}, processes=mine)
    other = bench.after(base, {"c": "1"}, env={"B": "1"})
    for merged in (bench.store.merge(base, other, one), bench.store.merge(base, one, other)):
        assert (merged.processes, dict(merged.env)) == (mine, {"A": "1", "B": "1"})


def test_two_shells_are_merged_item_by_item(bench: Any) -> None:
    began = shell(bench, variables={"i": "1", "gone": "1"}, functions={"f": "f"}, args=["x"])
    base = bench.after(bench.base({"a": "1"}), {"b": "1"}, processes=began)
    ours = shell(
        bench,
        variables={"i": "2", "mine": "1"},
        functions={"f": "f", "g": "g"},
        args=["x"],
        options={"set errexit": "-e"},
    )
    theirs = shell(
        bench,
        variables={"i": "3", "gone": "1"},
        functions={},
        aliases={"ll": "ls"},
        args=["y"],
        limits={"NOFILE": [1, 2]},
    )
    one, two = bench.after(base, {"c": "1"}, processes=ours), bench.after(base, {"d": "1"}, processes=theirs)
    merged = bench.store.merge(base, one, two)
    assert {kind: items for kind, items in known(bench, merged).items() if items} == {
        "format": 2,
        "variables": {"i": "2", "mine": "1"},
        "functions": {"g": "g"},
        "aliases": {"ll": "ls"},
        "options": {"set errexit": "-e"},
        "args": ["y"],
        "limits": {"NOFILE": [1, 2]},
    }
    assert merged.processes.reason == "both shells changed variable i: ours stands"
    back = bench.after(base, {"e": "1"})  # a fresh shell again: all of base's is gone there
    assert "f" not in known(bench, bench.store.merge(base, one, back))["functions"]


def test_what_one_side_exports_the_other_does_not_keep_to_its_shell(bench: Any) -> None:
    base = bench.base({"a": "1"})
    kept = shell(bench, variables={"MODE": 'declare -- MODE="test"', "R": "declare -rx R", "i": "1"})
    one = bench.after(base, {"b": "1"}, processes=kept)
    two = bench.after(base, {"c": "1"}, env={"MODE": "prod", "R": "1"})
    also = bench.after(base, {"c": "1"}, env={"MODE": "prod"}, processes=shell(bench, functions={"f": "f"}))
    for ours, theirs in ((one, two), (two, one), (one, also), (also, one)):
        merged = bench.store.merge(base, ours, theirs)
        assert merged.env["MODE"] == "prod"
        assert known(bench, merged)["variables"] == {"R": "declare -rx R", "i": "1"}
        assert merged.processes.reason == "of MODE the exported value stands"


def test_a_record_names_some_of_what_gave_way(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = (
        bench.after(base, {at: "1"}, processes=shell(bench, variables={f"v{n:02}": at for n in range(12)}))
        for at in "bc"
    )
    reason = bench.store.merge(base, one, two).processes.reason
    assert reason.endswith("variable v09, and 2 more: ours stands")


def test_what_two_shells_changed_differently_is_a_conflict(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one = bench.after(base, {"b": "1"}, processes=shell(bench, functions={"f": "one"}, options={"umask": "umask 1"}))
    two = bench.after(base, {"c": "1"}, processes=shell(bench, functions={"f": "two"}, options={"umask": "umask 2"}))
    for strategy in (MergeStrategy.FAIL, UNION):
        with pytest.raises(MergeConflict) as raised:
            bench.store.merge(base, one, two, strategy=strategy)
        assert [(c.path, c.kind) for c in raised.value.conflicts] == [
            ("function f", ConflictKind.PROCESSES),
            ("option umask", ConflictKind.PROCESSES),
        ]
    assert known(bench, bench.store.merge(base, one, two, strategy=OURS))["functions"] == {"f": "one"}
    assert known(bench, bench.store.merge(base, one, two, strategy=THEIRS))["functions"] == {"f": "two"}

    def asked(conflict: Conflict, *sides: bytes | None) -> bytes | MergeStrategy:
        return b"".join(side or b"-" for side in sides) if conflict.path == "function f" else THEIRS

    settled = known(bench, bench.store.merge(base, one, two, strategy=asked))
    assert (settled["functions"], settled["options"]) == ({"f": "-onetwo"}, {"umask": "umask 2"})


def test_shells_of_a_format_that_is_not_merged_give_a_fresh_one(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = (
        bench.after(base, {name: "1"}, processes=Processes(shell=bench.store.put_blob(name.encode())))
        for name in "bc"
    )
    fresh = bench.store.merge(base, one, two).processes
    assert fresh.shell == "" and "fresh" in fresh.reason


def test_a_directory_beside_the_workspace_is_merged(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = bench.after(base, {"b": "1"}, cwd="/tmp/x"), bench.after(base, {"c": "1"})
    assert bench.store.merge(base, one, two).cwd == bench.store.merge(base, two, one).cwd == "/tmp/x"
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, bench.after(base, {"c": "1"}, cwd="/"))
    assert [(c.path, c.kind) for c in raised.value.conflicts] == [("cwd", ConflictKind.ENV)]

    def without_x(parent: Snapshot) -> Any:
        outside = bench.place()
        (outside / "tmp").mkdir(parents=True)
        os.mknod(outside / "tmp/x", stat.S_IFCHR, os.makedev(0, 0))
        return bench.store.seal_upper(bench.upper(parent), parent, **bench.seal, outside=outside, move=True)

    with pytest.raises(MergeConflict, match="cwd"):
        bench.store.merge(base, one, without_x(base))


def test_a_directory_that_its_own_side_removed_is_no_conflict(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one, two = bench.after(base, {"b": "1"}, cwd="gone"), bench.after(base, {"c": "1"})
    assert bench.store.merge(base, one, two).cwd == bench.store.merge(base, two, one).cwd == ""


def test_a_merge_names_both_parents_also_of_a_state_that_was_there(bench: Any) -> None:
    def timed(tree: Path) -> None:
        for path in (*tree.iterdir(), tree):
            os.utime(path, ns=(5, 5))

    base = bench.base({"a": "1"})
    one = bench.after(base, {"b": "1"}, do=timed)
    two, more = bench.after(base, {"c": "1"}, do=timed), bench.after(base, {"b": "1", "c": "1"}, do=timed)
    first, again = bench.store.merge(base, one, two), bench.store.merge(base, one, more)
    assert first.id == again.id
    assert (first.parents, again.parents) == ((one.id, two.id), (one.id, more.id))
    assert bench.store.get(first.id).parents == (one.id, two.id)
    assert bench.store.merge(base, more, two).parents == more.parents  # it had all of it: nothing was merged


def test_what_lies_beside_the_workspace_is_merged_too(bench: Any) -> None:
    def beside(parent: Any, files: dict[str, str], *, remove: tuple[str, ...] = ()) -> Any:
        outside = bench.place()
        for path, text in files.items():
            (outside / path).parent.mkdir(parents=True, exist_ok=True)
            (outside / path).write_text(text)
        for path in remove:
            (outside / path).parent.mkdir(parents=True, exist_ok=True)
            os.mknod(outside / path, 0o020000, 0)
        return bench.store.seal_upper(bench.upper(parent), parent, **bench.seal, outside=outside, move=True)

    def shown(snapshot: Any) -> dict[str, str]:
        view = bench.store.outside(snapshot)
        return {p: e.kind.value for p, e in view.items() if e.kind.value != "dir"}

    base = beside(bench.base({"a": "1"}), {"home/u/x": "1", "home/u/y": "1"})
    one = beside(base, {"home/u/x": "2", "tmp/t": "1"})
    two = beside(base, {"home/u/n": "1", "tmp/t": "2"}, remove=("home/u/y", "home/u/hosts"))
    merged = bench.store.merge(base, one, two)
    assert shown(merged) == {
        "home/u/x": "file", "home/u/n": "file", "tmp/t": "file", "home/u/y": "whiteout", "home/u/hosts": "whiteout",
    }  # fmt: skip
    assert (bench.store.outside_dirs(merged)[-1] / "home/u/n").read_text() == "1"
    clash = beside(base, {"home/u/new": "1"}, remove=("home/u/x",))
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, one, clash)
    assert [(c.path, c.kind) for c in raised.value.conflicts] == [("/home/u/x", ConflictKind.CHANGED_REMOVED)]
    assert shown(bench.store.merge(base, one, clash, strategy=THEIRS))["home/u/x"] == "whiteout"
    assert shown(bench.store.merge(base, one, clash, strategy=OURS))["home/u/x"] == "file"
    assert shown(bench.store.merge(base, clash, one, strategy=UNION))["home/u/x"] == "file"


@pytest.mark.parametrize("answer", [None, 7, "mine", b"".join])
def test_a_function_that_gives_no_answer_is_refused(bench: Any, answer: Any) -> None:
    base = bench.base({"a": "1\n"})
    ours, theirs = bench.after(base, {"a": "2\n"}), bench.after(base, {"a": "3\n"})
    with pytest.raises(ForkEngineError, match="a: asked how to settle"):
        bench.store.merge(base, ours, theirs, strategy=lambda *_: answer)


def test_a_function_may_name_a_strategy(bench: Any) -> None:
    base = bench.base({"a": "1\n"})
    ours, theirs = bench.after(base, {"a": "2\n"}), bench.after(base, {"a": "3\n"})
    assert bench.texts(bench.store.merge(base, ours, theirs, strategy=lambda *_: "theirs")) == {"a": "3\n"}


@pytest.mark.parametrize("within", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_only_line_ends_end_lines(bench: Any, within: str) -> None:
    """What str.splitlines takes for an end, and nobody's editor does."""
    base = bench.base({"a": f"1{within}2{within}3\n"})
    ours = bench.after(base, {"a": f"x{within}2{within}3\n"})
    theirs = bench.after(base, {"a": f"1{within}2{within}y\n"})
    with pytest.raises(MergeConflict):
        bench.store.merge(base, ours, theirs)


def test_a_hard_link_of_both_sides_lasts_through_a_merge_by_line(bench: Any) -> None:
    base = bench.after(bench.base({"a": "1\n2\n3\n"}), do=lambda tree: os.link(tree / "a", tree / "b"))
    ours, theirs = bench.after(base, {"b": "0\n2\n3\n"}), bench.after(base, {"a": "1\n2\n4\n"})
    merged = bench.store.merge(base, ours, theirs)
    assert bench.texts(merged) == {"a": "0\n2\n4\n", "b": "0\n2\n4\n"}
    assert bench.store.entries(merged)["b"].link == "a"
    assert (bench.tree(merged) / "a").samefile(bench.folder / f"place{bench.made}" / "b")


def test_a_merge_that_adds_nothing_is_ours_and_not_its_own_parent(bench: Any) -> None:
    base = bench.base({"a": "1", "b": "1"})
    ours = bench.after(base, {"a": "2", "b": "2"})
    theirs = bench.after(base, {"a": "2"}, do=lambda tree: os.utime(tree / "a", ns=(1, 1)))
    merged = bench.store.merge(base, ours, theirs, strategy=MergeStrategy.OURS)
    assert merged.id == ours.id
    assert bench.store.get(ours.id).parents == merged.parents == (base.id,)


def test_names_that_differ_in_case_alone_are_two(bench: Any) -> None:
    """A name whose case is changed is one that goes and one that comes, as any other."""

    def rename(tree: Path) -> None:
        (tree / "Readme").rename(tree / "README")
        (tree / "src").rename(tree / "Src")

    base = bench.base({"Readme": "1\n", "src/a": "a", "other": "o"})
    renamed = bench.after(base, do=rename)
    elsewhere = bench.after(base, {"other": "2"})
    both = {"README": "1\n", "Src/a": "a", "other": "2"}
    for ours, theirs in ((renamed, elsewhere), (elsewhere, renamed)):
        merged = bench.store.merge(base, ours, theirs)
        assert bench.texts(merged) == both
        assert sorted(path.name for path in bench.tree(merged).iterdir()) == ["README", "Src", "other"]
    same = bench.after(base, do=rename)
    assert bench.store.merge(base, renamed, same).content_key == renamed.content_key

    edited = bench.after(base, {"Readme": "2\n", "src/new": "n"})
    with pytest.raises(MergeConflict) as raised:
        bench.store.merge(base, renamed, edited)
    told = [(conflict.path, conflict.kind) for conflict in raised.value.conflicts]
    assert told == [("Readme", ConflictKind.CHANGED_REMOVED), ("src/new", ConflictKind.CHANGED_REMOVED)]
    theirs = bench.store.merge(base, renamed, edited, strategy=THEIRS)
    assert bench.texts(theirs) == {"README": "1\n", "Readme": "2\n", "Src/a": "a", "src/new": "n", "other": "o"}

    louder = bench.after(base, do=lambda tree: (tree / "Readme").rename(tree / "ReadMe"))
    assert bench.texts(bench.store.merge(base, renamed, louder)).keys() >= {"README", "ReadMe"}
