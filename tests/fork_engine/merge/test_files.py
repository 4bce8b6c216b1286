"""Three-way merge of files: compatible changes and their results. Conflicts and strategies: test_conflicts.py."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine import snapshots
from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.merge import files
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ConflictKind, MergeStrategy

OURS, THEIRS, UNION = MergeStrategy.OURS, MergeStrategy.THEIRS, MergeStrategy.UNION
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


def test_caches_never_conflict(bench: Any) -> None:
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


def timed(tree: Path) -> None:
    for path in (*tree.iterdir(), tree):
        os.utime(path, ns=(5, 5))


def test_a_merge_into_an_existing_state_names_both_parents(bench: Any) -> None:
    base = bench.base({"a": "1"})
    one = bench.after(base, {"b": "1"}, do=timed)
    two, more = bench.after(base, {"c": "1"}, do=timed), bench.after(base, {"b": "1", "c": "1"}, do=timed)
    first, again = bench.store.merge(base, one, two), bench.store.merge(base, one, more)
    assert first.id == again.id
    assert (first.parents, again.parents) == ((one.id, two.id), (one.id, more.id))
    for _ in range(2):  # the record has each pair once
        kept = bench.store.get(first.id)
        assert (kept.parents, kept.merges) == ((one.id, two.id), ((one.id, more.id),))
        assert bench.store.merge(base, one, more).id == first.id
    assert bench.store.merge(base, more, two).parents == more.parents  # it had everything: nothing was merged
    assert bench.store.get(bench.after(kept, {"d": "1"}).id).merges == ()
    assert bench.store.fsck().problems == ()


def test_a_merge_added_to_an_existing_record_is_durable(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new record's bytes are flushed before it takes the name, and the name after that."""
    base = bench.base({"a": "1"})
    one = bench.after(base, {"b": "1"}, do=timed)
    two, more = bench.after(base, {"c": "1"}, do=timed), bench.after(base, {"b": "1", "c": "1"}, do=timed)
    record = bench.store.merge(base, one, two).id
    flushed: list[tuple[str, Any]] = []

    def fsync(fd: int) -> None:
        flushed.append((Path(f"/proc/self/fd/{fd}").readlink().name, bench.store.get(record).merges))

    monkeypatch.setattr(os, "fsync", fsync)
    bench.store.merge(base, one, more)
    assert flushed == [("made", ()), ("snapshots", ((one.id, more.id),))]


def test_concurrent_merges_with_one_result_are_all_recorded(bench: Any) -> None:
    base = bench.base({})
    ours = bench.after(base, {f"b{n}": "1" for n in range(8)}, do=timed)
    theirs = [bench.after(base, {"c": "1", f"b{n}": "1"}, do=timed) for n in range(8)]
    stores = [SnapshotStore(bench.store.root) for _ in theirs]  # as each process has its own
    with ThreadPoolExecutor(len(theirs)) as pool:
        made = list(pool.map(lambda store, one: store.merge(base, ours, one), stores, theirs))
    (id,) = {merged.id for merged in made}
    kept = bench.store.get(id)
    assert sorted((kept.parents, *kept.merges)) == sorted((ours.id, one.id) for one in theirs)


def test_a_record_names_a_limited_number_of_merges(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of 10,000 merges with the same result would rewrite all earlier ones."""
    monkeypatch.setattr(snapshots, "MERGES", 3)
    base = bench.base({})
    ours = bench.after(base, {f"b{n}": "1" for n in range(6)}, do=timed)
    theirs = [bench.after(base, {"c": "1", f"b{n}": "1"}, do=timed) for n in range(6)]
    made = [bench.store.merge(base, ours, one) for one in theirs]
    # each merge returns its own parents
    assert [one.parents for one in made] == [(ours.id, one.id) for one in theirs]
    (id,) = {one.id for one in made}
    kept = bench.store.get(id)
    assert (kept.parents, *kept.merges) == tuple((ours.id, one.id) for one in theirs[:4])
    assert bench.store.fsck().problems == ()


def test_files_outside_the_workspace_are_merged(bench: Any) -> None:
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


@pytest.mark.parametrize("within", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_only_newlines_end_lines(bench: Any, within: str) -> None:
    """Characters that str.splitlines takes for line ends and no editor does."""
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


def test_a_merge_that_adds_nothing_is_ours(bench: Any) -> None:
    base = bench.base({"a": "1", "b": "1"})
    ours = bench.after(base, {"a": "2", "b": "2"})
    theirs = bench.after(base, {"a": "2"}, do=lambda tree: os.utime(tree / "a", ns=(1, 1)))
    merged = bench.store.merge(base, ours, theirs, strategy=MergeStrategy.OURS)
    assert merged.id == ours.id
    assert bench.store.get(ours.id).parents == merged.parents == (base.id,)


def test_names_that_differ_only_in_case_are_distinct(bench: Any) -> None:
    """A name whose case changes is a removal and an addition, like any other."""

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


@pytest.mark.parametrize("strategy", [MergeStrategy.FAIL, UNION])
def test_merged_texts_that_would_fill_the_memory_are_merged_again(
    bench: Any, monkeypatch: pytest.MonkeyPatch, strategy: MergeStrategy
) -> None:
    monkeypatch.setattr(files, "MOST_HELD", len(LINES) + 10)
    base = bench.base({f"{at}": LINES for at in range(3)})
    theirs = "nine\n" if strategy is MergeStrategy.FAIL else "one\n"
    one = bench.after(base, {f"{at}": LINES.replace("1\n", "eins\n", 1) for at in range(3)})
    two = bench.after(
        base, {f"{at}": LINES.replace("1\n" if theirs == "one\n" else "9\n", theirs, 1) for at in range(3)}
    )
    merged = bench.texts(bench.store.merge(base, one, two, strategy=strategy))
    assert len(set(merged.values())) == 1
    assert ("eins\n" in merged["0"], theirs in merged["0"], set(merged)) == (True, True, {"0", "1", "2"})


def test_a_resolver_is_given_no_huge_file(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_SHOWN", 1000)
    base = bench.base({"f": "1"})
    one, two = bench.after(base, {"f": "2" * 1001}), bench.after(base, {"f": "3"})
    given: list[tuple[bytes | None, ...]] = []

    def resolve(conflict: object, *sides: bytes | None) -> MergeStrategy:
        given.append(sides)
        return THEIRS

    assert bench.texts(bench.store.merge(base, one, two, strategy=resolve)) == {"f": "3"}
    assert given == [(b"1", None, b"3")]
