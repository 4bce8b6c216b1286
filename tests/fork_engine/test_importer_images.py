"""Import of root file systems from folders and tars, including hostile ones, and of process images."""

from __future__ import annotations

import gc
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import ForkEngineError, ImageError, SnapshotCorrupt, StoreUnusable
from ramify.fork_engine.filesystem.untar import unpack
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import EntryKind


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **fields: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mtime = kind, len(data), 1_700_000_000
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


@pytest.fixture
def tar(tmp_path: Path) -> Callable[..., Path]:
    def make(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
        path = tmp_path / "root.tar"
        with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as made:  # type: ignore[call-overload]
            for info, data in members:
                made.addfile(info, io.BytesIO(data))
        return path

    return make


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_and_its_folder_are_the_same_image(bench: Any, tar: Any, tmp_path: Path, mode: str) -> None:
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/tool").write_bytes(b"#!/bin/sh\n")
    (root / "usr/bin/tool").chmod(0o4755)
    os.link(root / "usr/bin/tool", root / "usr/bin/again")
    (root / "bin").symlink_to("usr/bin")
    (root / "abs").symlink_to("/usr/bin/tool")
    os.mkfifo(root / "pipe", 0o620)
    (root / "empty").mkdir(mode=0o1777)
    (root / os.fsdecode(b"odd\xff\nname")).write_bytes(b"")
    (root / "closed").mkdir()
    (root / "closed/in").write_bytes(b"in")
    (root / "closed").chmod(0o500)
    for path in (root / "usr/bin/tool", root / "usr"):
        os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)
    path = tmp_path / "root.tar"
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as made:  # type: ignore[call-overload]
        made.add(root, ".")
        exact = made.getmember("./usr/bin/tool")
        assert exact.mtime
    from_folder, from_tar = bench.store.import_image(root), bench.store.import_image(path)
    one, other = (bench.store._layers.manifest(layer) for layer in (from_folder, from_tar))
    assert one.entries.keys() == other.entries.keys()
    for at in one.entries:  # tarfile writes the time as a float, and so loses its last digits
        mine, theirs = one.entries[at], other.entries[at]
        assert mine.content == theirs.content and mine.link == theirs.link and mine.target == theirs.target
        assert abs(mine.mtime_ns - theirs.mtime_ns) < 1000
    assert other.entries["usr/bin/tool"].mode == 0o4755
    assert bench.store.import_image(path) == from_tar


def test_devices_are_left_out_and_owners_dropped(bench: Any, tar: Any) -> None:
    image = bench.store.import_image(
        tar(
            member("dev", tarfile.DIRTYPE, mode=0o755, uid=12345),
            member("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3),
            member("dev/sda", tarfile.BLKTYPE, devmajor=8, devminor=0),
            member("/etc/passwd", data=b"root", uid=4242, gid=4242, mode=0o640),
        )
    )
    fs = bench.store._layers.fs(image)
    assert sorted(os.fspath(path.relative_to(fs)) for path in fs.rglob("*")) == ["dev", "etc", "etc/passwd"]
    assert (fs / "etc/passwd").stat().st_uid == os.geteuid()
    assert stat.S_IMODE((fs / "etc/passwd").stat().st_mode) == 0o640


OUT = member("x", tarfile.SYMTYPE, linkname="/tmp")
HOSTILE = {
    "up": ([member("../escaped", data=b"!")], "leads out"),
    "up in the middle": ([member("a/../../escaped", data=b"!")], "leads out"),
    "through an absolute link": ([OUT, member("x/escaped", data=b"!")], "replaced the folder by a link"),
    "through a relative link": (
        [member("x", tarfile.SYMTYPE, linkname="../.."), member("x/escaped", data=b"!")],
        "replaced the folder by a link",
    ),
    "through a link of a link": (
        [member("y", tarfile.SYMTYPE, linkname="x"), OUT, member("y/d/escaped", data=b"!")],
        "replaced the folder by a link",
    ),
    "hard link out": ([member("x", tarfile.LNKTYPE, linkname="../../etc/passwd")], "leads out"),
    "hard link to the host": ([member("x", tarfile.LNKTYPE, linkname="/etc/passwd")], "not in the tar"),
    "hard link to a link": ([OUT, member("h", tarfile.LNKTYPE, linkname="x")], "not a file"),
    "hard link through a link": ([OUT, member("h", tarfile.LNKTYPE, linkname="x/passwd")], "not in the tar"),
    "the root as a file": ([member("./", data=b"!", type=tarfile.REGTYPE)], "root itself"),
    "a file as a folder": (
        [member("f", data=b"1"), member("f/g", data=b"2")],
        "replaced the folder by a link or a file",
    ),
    "nested without end": ([member("/".join(["d"] * 500), data=b"")], "deep"),
    "an unknown type": ([member("odd", b"Z")], "unknown"),
    "a name too long": ([member("n" * 300, data=b"")], "no file system can hold"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_members_are_refused(bench: Any, tar: Any, tmp_path: Path, case: str) -> None:
    members, why = HOSTILE[case]
    before = bench.on_disk("layers")
    with pytest.raises(ImageError, match=why):
        bench.store.import_image(tar(*members))
    assert bench.on_disk("layers") == before and bench.on_disk("tmp") == []
    assert not list(tmp_path.rglob("escaped")) and not Path("/tmp/escaped").exists()


def test_a_later_member_replaces_an_earlier_one_and_never_follows_it(bench: Any, tar: Any, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    image = bench.store.import_image(
        tar(
            member("x", tarfile.SYMTYPE, linkname=os.fspath(victim)),
            member("x", data=b"theirs"),
            member("d", tarfile.DIRTYPE, mode=0o700),
            member("d/e", data=b"1"),
            member("d", data=b"a file now"),
        )
    )
    fs = bench.store._layers.fs(image)
    assert (fs / "x").read_bytes() == b"theirs" and (fs / "d").read_bytes() == b"a file now"
    assert victim.read_text() == "mine"


def huge_sparse(path: Path, size: int) -> Path:
    """A few bytes that claim to be a file of `size` bytes, all holes (GNU.sparse 0.1)."""
    info = tarfile.TarInfo("huge")
    info.pax_headers = {"GNU.sparse.size": str(size), "GNU.sparse.map": f"0,0,{size},0", "GNU.sparse.name": "huge"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as made:
        made.addfile(info, io.BytesIO())
    return path


def test_huge_claims_are_refused(bench: Any, tar: Any, tmp_path: Path) -> None:
    for size in (1 << 50, 1 << 62):
        with pytest.raises(StoreUnusable, match="room"):
            bench.store.import_image(huge_sparse(tmp_path / "sparse.tar", size))
    with pytest.raises(StoreUnusable, match="room"):
        (tmp_path / "into").mkdir()
        unpack(tar(member("a", data=b"12345"), member("b", data=b"123456")), tmp_path / "into", room=10)


def test_sparse_members_keep_their_holes(bench: Any, tmp_path: Path) -> None:
    image = bench.store.import_image(huge_sparse(tmp_path / "sparse.tar", 10 << 20))
    status = (bench.store._layers.fs(image) / "huge").stat()
    assert status.st_size == 10 << 20 and status.st_blocks * 512 < 1 << 20


def test_files_that_are_not_tars_are_refused(bench: Any, tar: Any, tmp_path: Path) -> None:
    whole = tar(member("a", data=b"1" * 5000)).read_bytes()
    for name, data in {"cut": whole[:3000], "text": b"hello", "empty": b""}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ImageError, match=name):
            bench.store.import_image(tmp_path / name)
    with pytest.raises(ImageError, match="neither a folder nor a tar"):
        bench.store.import_image(tmp_path / "missing")


def test_an_image_is_kept_by_the_snapshots_on_it(bench: Any, tar: Any) -> None:
    image = bench.store.import_image(tar(member("etc/os", data=b"1")))
    (bench.folder / "w").mkdir()
    on_it = bench.store.import_tree(bench.folder / "w", image=image).snapshot
    host = bench.store.import_tree(bench.folder / "w").snapshot
    assert on_it.id != host.id and on_it.content_key != host.content_key
    assert (
        bench.store.outside_dirs(on_it) == (bench.store._layers.fs(image),) and bench.store.outside_dirs(host) == ()
    )
    assert bench.store.get(on_it.id) == on_it
    bench.store.delete_unreachable([on_it.id])
    assert (bench.store.outside_dirs(on_it)[0] / "etc/os").read_bytes() == b"1"
    bench.store.delete_unreachable([])
    assert bench.on_disk("layers") == []


def test_an_image_is_held_until_its_importer_is_gone(bench: Any, tar: Any) -> None:
    importer = SnapshotStore(bench.store.root)
    image = importer.import_image(tar(member("etc/os", data=b"1")), hold=True)
    assert bench.store.delete_unreachable([]) == (0, 0)
    assert (bench.store._layers.fs(image) / "etc/os").read_bytes() == b"1"
    del importer
    gc.collect()
    assert bench.store.delete_unreachable([])[1] > 0
    assert image not in bench.store._layers


def test_process_images(bench: Any, tmp_path: Path) -> None:
    def dump() -> Path:
        folder = tmp_path / "dump"
        (folder / "sub").mkdir(parents=True)
        for name in ("core.img", "sub/pages.img"):
            (folder / name).write_bytes(name.encode())
            os.utime(folder / name, ns=(5, 5))
        for made in (folder / "sub", folder):
            os.utime(made, ns=(5, 5))
        return folder

    image = bench.store.adopt_process_image(dump())
    assert not (tmp_path / "dump").exists()
    assert (bench.store.image_dir(image) / "sub/pages.img").read_bytes() == b"sub/pages.img"
    assert bench.store.adopt_process_image(dump()) == image and not (tmp_path / "dump").exists()
    bench.store.delete_unreachable([])  # its snapshot may be about to be written
    assert bench.store.image_dir(image).is_dir()
    old = bench.store.image_dir(image).parent
    os.utime(old, (1, 1))
    bench.store.delete_unreachable([])
    with pytest.raises(SnapshotCorrupt, match=image):
        bench.store.image_dir(image)
    (dump() / "link").symlink_to("core.img")
    with pytest.raises(ForkEngineError, match="link"):
        bench.store.adopt_process_image(tmp_path / "dump")


def test_entry_kinds_are_reported(bench: Any, tar: Any) -> None:
    image = bench.store.import_image(tar(member("p", tarfile.FIFOTYPE, mode=0o600)))
    assert bench.store._layers.manifest(image).entries["p"].kind is EntryKind.FIFO
