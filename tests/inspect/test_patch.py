"""Diffs are what git makes of them: applied to the one side they give the other."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Change, ChangeKind, Entry, EntryKind, Snapshot
from ramify.inspect.patch import LARGEST, FilePatch, file_patch, patches, stat_lines
from tests.samples import sample

FILE, PROGRAM, LINK = (Entry(EntryKind.FILE, 0o644), Entry(EntryKind.FILE, 0o755), Entry(EntryKind.SYMLINK, 0o777))


def patch(path: str, before: tuple[Entry, bytes] | None, after: tuple[Entry, bytes] | None) -> FilePatch:
    change = Change(path, ChangeKind.MODIFIED, before[0] if before else None, after[0] if after else None)
    return file_patch(change, before[1] if before else b"", after[1] if after else b"")


def put(path: Path, side: tuple[Entry, bytes] | None) -> None:
    if side is None:
        return
    entry, data = side
    if entry.kind is EntryKind.SYMLINK:
        path.symlink_to(os.fsdecode(data))
    else:
        path.write_bytes(data)
        path.chmod(entry.mode)


def look(path: Path) -> tuple[bool, bool, bytes] | None:
    """(is a link, may be executed, contents)"""
    if path.is_symlink():
        return True, False, os.fsencode(path.readlink())
    if not path.exists():
        return None
    return False, bool(path.stat().st_mode & stat.S_IXUSR), path.read_bytes()


def check(name: str, before: tuple[Entry, bytes] | None, after: tuple[Entry, bytes] | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected, path = Path(folder, "expected"), Path(folder, name)
        put(path, before)
        put(expected, after)
        text = patch(name, before, after).text
        if before != after:
            git = ["git", "-c", "core.fileMode=true", "apply", "--whitespace=nowarn", "-"]
            done = subprocess.run(git, cwd=folder, input=text, capture_output=True, check=False)
            assert done.returncode == 0, (done.stderr, text)
        assert look(path) == look(expected)


LINES = st.lists(st.sampled_from([b"a", b"b", b"  c\t", b"", b"\r", b"\xff\xfe", b"+", b"-- a"]), max_size=12)
TEXT = st.builds(lambda lines, end: b"\n".join(lines) + end, LINES, st.sampled_from([b"", b"\n"]))
SIDE = st.tuples(st.sampled_from([FILE, PROGRAM]), TEXT)


@settings(max_examples=sample(20, 60), deadline=None)
@given(SIDE, SIDE)
def test_git_applies_what_changed_in_a_file(before: tuple[Entry, bytes], after: tuple[Entry, bytes]) -> None:
    check("file.txt", before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, (FILE, b"new\n")),
        (None, (PROGRAM, b"")),
        ((FILE, b"old"), None),
        ((LINK, b"there"), (LINK, b"elsewhere")),
        ((FILE, b"text\n"), (LINK, b"target")),
        ((LINK, b"target"), (PROGRAM, b"#!/bin/sh\n")),
    ],
)
def test_git_applies_added_removed_and_retyped_files(
    before: tuple[Entry, bytes] | None, after: tuple[Entry, bytes] | None
) -> None:
    check("thing", before, after)


@pytest.mark.parametrize("name", ["with space", 'quo"te', "back\\slash", "caf\udce9", "new\nline", "tab\there", "é"])
def test_git_applies_patches_of_unusual_names(name: str) -> None:
    check(name, (FILE, b"one\ntwo\n"), (FILE, b"one\n2\n"))


def test_binary_files_are_only_named() -> None:
    for before, after in ((b"\0\1", b"\0\2"), (b"x" * (LARGEST + 1), b"y")):
        made = patch("blob", (FILE, before), (FILE, after))
        assert made.text.endswith(b"Binary files a/blob and b/blob differ\n")
        assert (made.added, made.removed) == (None, None)


def test_large_files_are_not_read(tmp_path: Path) -> None:
    class Counted(SnapshotStore):
        def read(self, snapshot: Snapshot, path: str) -> bytes:
            read.append(path)
            return super().read(snapshot, path)

    read: list[str] = []
    store, tree = Counted(tmp_path / "store"), tmp_path / "tree"
    tree.mkdir()
    states = []
    for text in ("1", "2"):
        (tree / "large").write_text(text * (LARGEST + 1))
        (tree / "small").write_text(text)
        states.append(store.import_tree(tree).snapshot)
    made = list(patches(store, store.changes(*states), *states))
    assert [(one.path, one.added) for one in made] == [("large", None), ("small", 1)]
    assert set(read) == {"small"}


def test_stat() -> None:
    made = [
        patch("a.py", (FILE, b"1\n2\n"), (FILE, b"1\n3\n4\n")),
        patch("long/name.py", None, (FILE, b"x\n" * 78)),
        patch("blob", (FILE, b"\0"), (FILE, b"\0\0")),
    ]
    assert list(stat_lines(made)) == [
        b" a.py         | 3 +-\n",
        b" long/name.py | 78 " + b"+" * 40 + b"\n",
        b" blob         | binary or large\n",
        b" 3 files changed, 80 added, 1 removed lines\n",
    ]


def test_a_very_long_name_widens_no_other_line() -> None:
    long = FilePatch("x" * 4000, b"", 1, 1)
    lines = list(stat_lines([FilePatch(f"{at}", b"", 1, 0) for at in range(1000)] + [long]))
    assert sum(map(len, lines)) < 60_000
    assert lines[-2].startswith(b" xxxx")
