"""The work of seals, comparisons, merges and checkouts is linear, whatever tree an agent made: very many hard links
to a file, files in very deep folders. Work is counted in calls of functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.types import MergeStrategy, Snapshot


def calls_of(act: Callable[[], object]) -> int:
    """The calls of functions that it makes."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls


def linked(bench: Any, count: int) -> tuple[Snapshot, Snapshot, Snapshot]:
    """A file with `count` names; the same after its first names are gone, and with other bytes under all names."""

    def link(tree: Path) -> None:
        (tree / "00000").write_text("1")
        for at in range(1, count):
            os.link(tree / "00000", tree / f"{at:05}")

    def unlink(tree: Path) -> None:
        for at in range(count // 2):
            (tree / f"{at:05}").unlink()

    def write(tree: Path) -> None:
        with (tree / "00000").open("a") as file:
            file.write("2")

    base = bench.after(bench.base({}), do=link)
    return base, bench.after(base, do=unlink), bench.after(base, do=write)


def deep(bench: Any, depth: int) -> tuple[Snapshot, Snapshot, Snapshot]:
    """Files in a deep folder; the same with more files, and without the uppermost folder."""
    folder = "/".join(["d"] * depth)
    base = bench.base({f"{folder}/{at}": "1" for at in range(60)})
    return base, bench.after(base, {f"{folder}/new{at}": "2" for at in range(60)}), bench.after(base, remove=("d",))


@pytest.mark.parametrize("made", [linked, deep])
def test_work_is_linear(bench: Any, tmp_path: Path, new_bench: Any, made: Callable[[Any, int], Any]) -> None:
    work: dict[str, list[int]] = {}
    for size in (40, 80) if made is deep else (300, 600):
        (tmp_path / f"{size}").mkdir()
        one = new_bench(tmp_path / f"{size}")
        work.setdefault("seal", []).append(calls_of(lambda size=size, one=one: made(one, size)))
        base, ours, theirs = made(one, size)

        def compare(one: Any = one, states: Any = (base, ours, theirs)) -> None:
            base, ours, theirs = states
            for state in (ours, theirs):
                assert one.store.changes(base, state)
                assert len(dict(one.store.entries(state))) >= 0

        def merge(one: Any = one, states: Any = (base, ours, theirs)) -> None:
            for strategy in (MergeStrategy.OURS, MergeStrategy.THEIRS):
                one.store.merge(*states, strategy=strategy)

        def check_out(one: Any = one, base: Any = base, ours: Any = ours) -> None:
            dest = one.place()
            one.store.checkout(base, dest)
            one.store.checkout(ours, dest, only_changes_from=base)

        for act in (compare, merge, check_out):
            work.setdefault(act.__name__, []).append(calls_of(act))
    assert {name: large / small for name, (small, large) in work.items() if large > 2.6 * small} == {}
