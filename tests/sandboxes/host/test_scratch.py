from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.sandboxes.host.scratch import ScratchSession, remove_tree


def test_sessions_live_beside_each_other_and_tidy_up(tmp_path: Path) -> None:
    scratch = tmp_path / "worlds"
    first, second = ScratchSession(scratch), ScratchSession(scratch)
    first.open()
    (first.folder / "kept").touch()
    second.open()
    assert first.folder != second.folder
    assert (first.folder / "kept").exists()
    first.close()
    first.close()
    assert not first.folder.exists()
    assert second.folder.exists()
    second.close()
    assert list(scratch.iterdir()) == []


def test_sessions_left_by_a_crash_are_removed_by_the_next(tmp_path: Path) -> None:
    crash = (
        "import os, sys; from pathlib import Path; from ramify.sandboxes.host.scratch import ScratchSession\n"
        "session = ScratchSession(Path(sys.argv[1])); session.open(); (session.folder / 'left').touch()\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", crash, str(tmp_path)]).returncode == -9
    assert len(list(tmp_path.rglob("left"))) == 1
    session = ScratchSession(tmp_path)
    session.open()
    assert list(tmp_path.rglob("left")) == []
    assert {path.name for path in tmp_path.iterdir()} == {session.folder.name, f"{session.folder.name}.lock"}
    session.close()


def test_only_folders_of_sessions_are_removed(tmp_path: Path) -> None:
    """In the home of somebody else, a link can lead to a folder of the user's."""
    project = tmp_path / "project"
    (project / "uv").mkdir(parents=True)
    (project / "uv.lock").touch()
    (tmp_path / "worlds").symlink_to(project)
    session = ScratchSession(tmp_path / "worlds")
    session.open()
    session.close()
    assert {path.name for path in project.iterdir()} == {"uv", "uv.lock"}


def test_an_opening_that_fails_removes_no_other_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "worlds"
    other = ScratchSession(scratch)
    other.open()
    (other.folder / "kept").touch()
    failing = ScratchSession(scratch)
    lock = fcntl.flock

    def no_locks(file: int, how: int) -> None:
        if how == fcntl.LOCK_EX:
            raise OSError(errno.ENOLCK, "No locks available")
        lock(file, how)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks)
        with pytest.raises(OSError, match="No locks"):
            failing.open()
        failing.close()
    assert (other.folder / "kept").exists()
    other.close()
    assert list(scratch.iterdir()) == []


def test_folders_of_any_mode_are_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").touch()
    (tree / "a" / "link").symlink_to("/")
    os.mkfifo(tree / "a" / "fifo")
    for path in (tree / "a" / "b", tree / "a", tree):
        path.chmod(0)
    remove_tree(tree)
    assert not tree.exists()
    remove_tree(tree)


DEPTH = 2500  # a path of it has 5,000 characters, and the longest has 4,096


def nest(folder: Path, depth: int) -> None:
    """Nested folders, deeper than any path can name."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        deeper = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(os.open("file", os.O_CREAT, dir_fd=at))
    os.close(at)


def test_deeply_nested_folders_are_removed_and_block_no_session(tmp_path: Path) -> None:
    session = ScratchSession(tmp_path)
    session.open()
    nest(session.folder, DEPTH)
    os.close(session._lock)  # as if it were killed
    session = ScratchSession(tmp_path)
    session.open()
    nest(session.folder, DEPTH)
    session.close()
    assert list(tmp_path.iterdir()) == []


def test_worlds_inherit_no_acl(tmp_path: Path) -> None:
    """From a folder with an inherited ACL: it would be in every layer that a world is sealed into."""
    nobody = 2**32 - 1
    entries = [(0x01, 7, nobody), (0x02, 7, 65534), (0x04, 5, nobody), (0x10, 7, nobody), (0x20, 0, nobody)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", acl)
    except OSError as error:
        pytest.skip(f"no ACLs here: {error.strerror}")
    session = ScratchSession(tmp_path / "worlds")
    session.open()
    try:
        assert os.listxattr(session.folder.parent), "passed on to the place of all sessions"
        (session.folder / "world" / "upper").mkdir(parents=True)
        (session.folder / "world" / "upper" / "file").touch()
        assert [os.listxattr(path) for path in (session.folder / "world").rglob("*")] == [[], []]
    finally:
        session.close()
