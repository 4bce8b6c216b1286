"""Import of a user's folder: what is refused, what is kept, and that a second import reads little."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine import importer
from ramify.fork_engine.errors import WorkspaceError
from ramify.fork_engine.store import SnapshotStore


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "d").mkdir()
    (folder / "d/b.txt").write_text("b")
    return folder


def test_an_import_counts_files_and_lists_skipped_ones(bench: Any, user: Path, describe: Any) -> None:
    (user / "dangling").symlink_to("/no/such/place")
    os.link(user / "a.txt", user / "linked")
    os.mkfifo(user / "fifo")
    (user / "\udcff.bin").write_bytes(b"\xff" * 10)
    kept = describe(user)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(user / "d/sock"))
    imported = bench.store.import_tree(user)
    assert [(skipped.path, "socket" in skipped.reason) for skipped in imported.skipped] == [("d/sock", True)]
    assert (imported.files, imported.bytes) == (4, 12)
    got = describe(bench.tree(imported.snapshot))
    (user / "d/sock").unlink()
    assert {path: found for path, found in got.items() if path not in ("d", ".")} == {
        path: found for path, found in kept.items() if path not in ("d", ".")
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_devices_are_left_out_even_one_that_looks_like_a_whiteout(bench: Any, user: Path) -> None:
    os.mknod(user / "null", 0o020666, os.makedev(1, 3))
    os.mknod(user / "zero", 0o020666, os.makedev(0, 0))
    imported = bench.store.import_tree(user)
    assert [skipped.path for skipped in imported.skipped] == ["null", "zero"]
    assert set(bench.store.entries(imported.snapshot)) == {"a.txt", "d", "d/b.txt"}


def test_a_missing_workspace_or_one_that_is_not_a_folder_is_refused(bench: Any, user: Path, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for folder, reason in (
        (tmp_path / "nowhere", "No such file"),
        (user / "a.txt", "not a folder"),
        (user / "a.txt/x", "Not a directory"),
        (loop, "loop|symbolic links"),
    ):
        with pytest.raises(WorkspaceError, match=reason) as raised:
            bench.store.import_tree(folder)
        assert str(folder) in str(raised.value)
    (tmp_path / "link").symlink_to(user)
    assert bench.store.import_tree(tmp_path / "link").files == 2


def test_a_workspace_that_holds_the_store_is_refused(user: Path) -> None:
    store = SnapshotStore(user / ".store")
    for folder in (user, user / ".store"):
        with pytest.raises(WorkspaceError, match=r"\.store"):
            store.import_tree(folder)
    assert store.import_tree(user / "d").files == 1


def test_the_first_unreadable_path_is_reported(ordinary: Path, new_bench: Any) -> None:
    bench = new_bench(ordinary)
    user = bench.place()
    (user / "b").mkdir(parents=True)
    for path in ("b/shut", "c"):
        (user / path).write_text("x")
        (user / path).chmod(0o200)
    with pytest.raises(WorkspaceError, match="'b/shut' cannot be read"):
        bench.store.import_tree(user)
    assert (user / "b/shut").stat().st_mode & 0o777 == 0o200
    (user / "b").chmod(0o300)
    with pytest.raises(WorkspaceError, match="'b' cannot be read"):
        bench.store.import_tree(user)
    user.chmod(0)
    with pytest.raises(WorkspaceError, match="cannot be read"):
        bench.store.import_tree(user)
    user.chmod(0o700)
    (user / "b").chmod(0o700)
    assert bench.on_disk("layers") == bench.on_disk("tmp") == []


@pytest.mark.parametrize(
    ("named", "act"),
    [
        ("d/b.txt", lambda user: (user / "d/b.txt").write_text("longer")),
        ("d/c.txt", lambda user: (user / "d/c.txt").unlink()),
        ("d", lambda user: (user / "d/new").write_text("n")),
        (".", lambda user: (user / "new").write_text("n")),
        ("d/c.txt", lambda user: ((user / "d/c.txt").unlink(), (user / "d/c.txt").mkdir())),
    ],
)
def test_a_change_while_reading_is_refused(
    bench: Any, user: Path, monkeypatch: pytest.MonkeyPatch, named: str, act: Callable[[Path], object]
) -> None:
    (user / "d/c.txt").write_text("c")
    real = importer.copy_bytes

    def meanwhile(source: int, dest: int) -> None:
        real(source, dest)
        if Path(f"/proc/self/fd/{source}").readlink() == user / "d/b.txt":
            act(user)

    monkeypatch.setattr(importer, "copy_bytes", meanwhile)
    with pytest.raises(WorkspaceError, match="changed while") as raised:
        bench.store.import_tree(user)
    assert f"{named!r} changed" in str(raised.value) or named == "d/c.txt"
    assert bench.on_disk("layers") == []


def opened_by(action: Any) -> set[str]:
    """Return the names of the user's files that were opened meanwhile."""
    opened: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if noting and event == "open" and isinstance(arguments[0], str):
            opened.append(arguments[0])

    noting = True
    sys.addaudithook(note)
    try:
        action()
    finally:
        noting = False
    return {name for name in opened if name.endswith(".txt")}


def test_a_second_import_reads_what_changed(bench: Any, user: Path, describe: Any) -> None:
    settle(user)
    first = bench.store.import_tree(user).snapshot
    assert opened_by(lambda: bench.store.import_tree(user)) == set()
    assert bench.store.import_tree(user).snapshot == first

    (user / "d/c.txt").write_text("c")
    assert opened_by(lambda: bench.store.import_tree(user)) == {"c.txt"}
    second = bench.store.import_tree(user).snapshot
    assert describe(bench.tree(second)) == describe(user)
    one, two = (bench.store.lower_dirs(snapshot)[0] / "a.txt" for snapshot in (first, second))
    assert one.stat().st_ino == two.stat().st_ino  # linked, not copied

    bench.store.delete_unreachable([])  # an index without its layer is ignored
    assert describe(bench.tree(bench.store.import_tree(user).snapshot)) == describe(user)
    (index,) = (bench.store.root / "index").iterdir()
    index.write_text("not json")
    assert bench.store.import_tree(user).snapshot == second


def settle(user: Path) -> None:
    """Wait until the file system's clock has passed the newest file's timestamp."""
    tick = user.parent / "tick"
    newest = max(path.stat().st_ctime_ns for path in user.rglob("*"))
    while not tick.exists() or tick.stat().st_ctime_ns <= newest:
        tick.write_text("")


def test_files_that_are_no_longer_linked_are_separate(bench: Any, user: Path, describe: Any) -> None:
    os.link(user / "a.txt", user / "z.txt")
    bench.store.import_tree(user)
    (user / "z.txt").unlink()
    shutil.copy2(user / "a.txt", user / "z.txt")
    second = bench.store.import_tree(user).snapshot
    assert describe(bench.tree(second)) == describe(user)


def test_equal_folders_have_equal_keys_whenever_imported(bench: Any, user: Path) -> None:
    first = bench.store.import_tree(user).snapshot
    os.utime(user / "a.txt", ns=(1, 1))
    (user / "d/__pycache__").mkdir()
    second = bench.store.import_tree(user).snapshot
    assert first.content_key == second.content_key and first.id != second.id
    (user / "a.txt").chmod(0o600)
    assert bench.store.import_tree(user).snapshot.content_key != first.content_key


def test_a_large_file_of_holes(bench: Any, user: Path) -> None:
    with (user / "big").open("wb") as file:
        file.truncate(256 << 20)
    imported = bench.store.import_tree(user)
    copy = bench.store.lower_dirs(imported.snapshot)[0] / "big"
    assert imported.bytes > 256 << 20 and copy.stat().st_size == 256 << 20 and copy.stat().st_blocks < 1000


def test_a_workspace_is_never_written(bench: Any, user: Path, describe: Any) -> None:
    def stamps() -> list[tuple[str, int, int]]:
        return sorted((os.fspath(p), p.lstat().st_ctime_ns, p.lstat().st_mtime_ns) for p in user.rglob("*"))

    before = stamps()
    base = bench.store.import_tree(user).snapshot
    bench.after(base, {"a.txt": "other"})
    assert stamps() == before


def test_folders_nested_too_deep(bench: Any, user: Path) -> None:
    at = os.open(user, os.O_RDONLY)
    for _ in range(420):
        os.mkdir("n", dir_fd=at)
        deeper = os.open("n", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(at)
    with pytest.raises(WorkspaceError, match="more than 400 deep"):
        bench.store.import_tree(user)
