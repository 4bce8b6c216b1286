"""Import of a user's folder: what is refused, what is kept, and that a second import reads little. Import of layers
of OCI images: whiteouts, opaque folders, implied folders, and hostile members."""

from __future__ import annotations

import io
import os
import shutil
import socket
import stat
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine import importer
from ramify.fork_engine.errors import ImageError, MergeConflict, StoreUnusable, WorkspaceError
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import EntryKind
from ramify.fork_engine.view import find_in_stack


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


def member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **fields: Any) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mtime = kind, len(data), 1_700_000_000
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def stream(*members: Any) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return io.BytesIO(made.getvalue())


def imported(bench: Any, *members: Any, below: Any = ()) -> Any:
    return bench.store.import_layer(stream(*members), below, name="a layer")


def folder(name: str, mode: int = 0o755) -> Any:
    return member(name, tarfile.DIRTYPE, mode=mode)


def test_whiteouts_and_opaque_folders_become_overlays_own(bench: Any) -> None:
    low = imported(bench, folder("etc"), member("etc/old", data=b"1"), folder("var"), member("var/log", data=b"2"))
    top = imported(
        bench, folder("etc"), member("etc/.wh.old"), folder("var"), member("var/new"), member("var/.wh..wh..opq"),
        member(".wh..wh.plnk"), below=[low.layer],
    )  # fmt: skip
    entries = bench.store._layers.manifest(top.layer).entries
    assert entries["etc/old"].kind is EntryKind.WHITEOUT and entries["var"].opaque and len(entries) == 4
    image = bench.store.save_image([low.layer, top.layer], {"A": "1"})
    assert list(bench.store.outside(image)) == ["etc", "var", "var/new"]
    dirs = bench.store.outside_dirs(image)
    assert stat.S_ISCHR((dirs[1] / "etc/old").lstat().st_mode)
    assert find_in_stack(dirs, "etc/old") is None and find_in_stack(dirs, "var/log") is None
    assert find_in_stack(dirs, "etc") == dirs[1] / "etc" and image.env == {"A": "1"}
    assert bench.store.fsck().status == 0


def test_a_whiteout_hides_nothing_of_its_own_layer_in_any_order(bench: Any) -> None:
    made = imported(
        bench, member(".wh.a"), member("a", data=b"1"), member("b", data=b"1"), member(".wh.b"),
        folder("d"), member("d/in"), member(".wh.d"), member("f"), member("f/.wh.x"),
    )  # fmt: skip
    entries = bench.store._layers.manifest(made.layer).entries
    assert entries["a"].kind is entries["b"].kind is EntryKind.FILE and entries["d"].opaque
    assert sorted(entries) == ["a", "b", "d", "d/in", "f"]


def test_an_undeclared_folder_keeps_the_mode_below(bench: Any) -> None:
    low = imported(bench, folder(".", 0o555), folder("tmp", 0o1777))
    alone, over = (imported(bench, member("tmp/x"), below=below) for below in ((), (low.layer,)))
    assert alone.implied == over.implied == {"", "tmp"} and not alone.modes
    assert over.modes == {"": 0o555, "tmp": 0o1777}
    assert bench.store._layers.manifest(over.layer).entries["tmp"].mode == 0o1777
    assert imported(bench, member("tmp/x")).layer == alone.layer  # the same tar is the same layer


def test_equal_layers_are_stored_once_and_hard_links_stay(bench: Any) -> None:
    members = (member("a", data=b"abc"), member("b", tarfile.LNKTYPE, linkname="a"), member("a2", data=b"abc"))
    one, two = imported(bench, *members), imported(bench, *members)
    assert one.layer == two.layer and one.bytes == 6 and len(bench.on_disk("layers")) == 1


def test_devices_are_left_out_and_overlay_attributes_dropped(bench: Any) -> None:
    made = imported(
        bench, member("dev", tarfile.CHRTYPE), member("a", pax_headers={"SCHILY.xattr.user.overlay.redirect": "/etc"})
    )
    assert list(bench.store._layers.manifest(made.layer).entries) == ["a"]
    assert os.listxattr(bench.store._layers.fs(made.layer) / "a") == []


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ((member("a/../../b"),), "leads out"),
        ((member(".wh..."),), "leads out"),
        ((member("a/.wh.."),), "leads out"),
        ((member(".wh."),), "leads out"),
        ((member(".wh..wh..opq"),), "hides every layer"),
        ((member("l", tarfile.SYMTYPE, linkname="/etc"), member("l/passwd", data=b"x")), "replaced the folder"),
        ((member("h", tarfile.LNKTYPE, linkname="../../etc/passwd"),), "leads out"),
        ((member("h", tarfile.LNKTYPE, linkname="nowhere"),), "not in the tar"),
        ((member("x" * 300),), "no file system can hold"),
        ((member("a", pax_headers={"comment": "x" * (2 << 20)}),), "header of"),
    ],
)
def test_hostile_members_are_refused_and_nothing_is_made(bench: Any, members: Any, why: str) -> None:
    with pytest.raises(ImageError, match=why):
        imported(bench, *members)
    assert bench.on_disk("layers") == [] and bench.on_disk("tmp") == []


def test_room_is_bounded(bench: Any) -> None:
    with pytest.raises(StoreUnusable, match="Free some space"):
        bench.store.import_layer(stream(member("a", data=b"x" * 100)), name="bomb", room=99)


def test_a_stream_that_fails_at_its_end_leaves_nothing(bench: Any) -> None:
    class Liar(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            if not data:
                raise ValueError("digest")
            return data

    with pytest.raises(ValueError, match="digest"):
        bench.store.import_layer(Liar(stream(member("a")).getvalue()), name="liar")
    assert bench.on_disk("layers") == []


def test_a_high_image_is_squashed(bench: Any) -> None:
    layers = [imported(bench, member(f"f{n}", data=b"x")).layer for n in range(60)]
    image = bench.store.save_image(layers, {})
    assert len(image.outside) <= 48 and len(bench.store.outside(image)) == 60


def test_a_stack_is_searched_from_the_top(tmp_path: Path) -> None:
    low, top = tmp_path / "low", tmp_path / "top"
    (low / "a/b").mkdir(parents=True)
    (top / "a").mkdir(parents=True)
    (top / "c").write_text("")
    (low / "c").mkdir()
    (low / "c/d").write_text("")
    assert find_in_stack([low, top], "a/b") == low / "a/b"
    assert find_in_stack([low, top], "c/d") is None and find_in_stack([low, top], "") == top


def test_a_state_over_an_image_costs_what_changed_since(bench: Any) -> None:
    low, top = (
        imported(bench, member("a", data=b"1"), member("b", data=b"1")),
        imported(bench, member("b", data=b"2")),
    )
    image = bench.store.save_image([low.layer, top.layer], {})
    assert image.image_stack == (low.layer, top.layer) and bench.store.get(image.id) == image
    shown = bench.store._outside(image)
    assert not shown.delta and shown.locate("a").layer == low.layer and shown.locate("b").layer == top.layer
    upper, beside = bench.upper(image), bench.place()
    beside.mkdir()
    (beside / "c").write_text("3")
    after = bench.store.seal_upper(upper, image, outside=beside, move=True, **bench.seal)
    assert after.image_layers == 1 and list(bench.store._outside(after).delta) == ["c"]
    assert sorted(bench.store.outside(after)) == ["a", "b", "c"] and bench.store.fsck().status == 0


def test_states_over_images_merge_only_over_the_same(bench: Any) -> None:
    low, one, two = (imported(bench, member(name, data=b"1")).layer for name in "abc")
    base = bench.base({"file": "1\n"})
    over = bench.store.over_image(base, bench.store.save_image([low, one], {}))
    ours, theirs = bench.after(over, {"mine": "1"}), bench.after(over, {"theirs": "2"})
    merged = bench.store.merge(base, ours, theirs)  # the base was imported before any world stood over the image
    assert sorted(bench.texts(merged)) == ["file", "mine", "theirs"] and merged.image_stack == (low, one)
    other = bench.store.over_image(base, bench.store.save_image([low, two], {}))
    with pytest.raises(MergeConflict, match=r"/ \(type\)"):
        bench.store.merge(base, ours, bench.after(other, {"x": "1"}))
