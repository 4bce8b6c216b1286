"""Headers of hostile tars take bounded memory and time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from ramify.fork_engine.errors import ImageError, StoreUnusable
from ramify.fork_engine.filesystem.untar import MAX_HEADER, unpack, unpack_layer
from ramify.images.local_images import is_archive


def block(name: str, kind: bytes, size: int = 0, data: bytes = b"") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size or len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def pax(**fields: str) -> bytes:
    records = b""
    for key, value in fields.items():
        record = f" {key}={value}\n".encode()
        size = len(record) + 1
        while len(str(size)) + len(record) != size:
            size = len(str(size)) + len(record)
        records += str(size).encode() + record
    return records


def write(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts) + bytes(2 * tarfile.BLOCKSIZE))
    return path


FILE = block("file", tarfile.REGTYPE)


def sparse_chain() -> bytes:
    """An old GNU sparse file whose map of holes goes on for more blocks than a header may have."""
    head = bytearray(block("sparse", tarfile.GNUTYPE_SPARSE))
    head[482] = 1  # isextended
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    more = bytearray(tarfile.BLOCKSIZE)
    more[504] = 1
    return bytes(head) + bytes(more) * (MAX_HEADER // tarfile.BLOCKSIZE + 10) + bytes(tarfile.BLOCKSIZE)


HOSTILE = {
    "a header of a gigabyte": block("x", tarfile.XHDTYPE, 1 << 30),
    "a long name of a gigabyte": block("x", tarfile.GNUTYPE_LONGNAME, 1 << 30),
    "very many headers before one member": block("x", tarfile.XHDTYPE, data=pax(a="1")) * 5000 + FILE,
    "global headers that add up": b"".join(
        block("x", tarfile.XGLTYPE, data=pax(**{f"key{at}": "v" * 60_000})) for at in range(30)
    )
    + FILE,
    "very many global keys": block("x", tarfile.XGLTYPE, data=pax(**{f"key{at}": "v" for at in range(500)})) + FILE,
    "an endless map of holes": sparse_chain(),
}


def unpack_stream(tar: Path, dest: Path) -> None:
    with tar.open("rb") as stream:
        unpack_layer(stream, dest, name="layer")


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_headers_are_refused(attack: str, tmp_path: Path) -> None:
    tar = write(tmp_path / "root.tar", HOSTILE[attack])
    for number, act in enumerate((unpack, unpack_stream)):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ImageError):
            act(tar, tmp_path / str(number))
    assert not is_archive(tar)


def negative(name: str, kind: bytes, size: int) -> bytes:
    """A header whose size is negative, in GNU's binary form."""
    head = bytearray(block(name, kind))
    head[124:136] = (256**12 + size).to_bytes(12, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


NO_NUMBERS = {
    "a file of minus one byte": negative("file", tarfile.REGTYPE, -1),
    "a device of minus 4096 bytes": negative("file", tarfile.CHRTYPE, -4096),
    "a header of minus a kilobyte": negative("x", tarfile.GNUTYPE_LONGNAME, -1024) + FILE,
    "an extended header of minus one byte": negative("x", tarfile.XHDTYPE, -1) + FILE,
    "an extended size of minus one": block("x", tarfile.XHDTYPE, data=pax(size="-1")) + FILE,
    "an extended length of 5000 digits": block("x", tarfile.XHDTYPE, data=b"1" * 5000 + b" a=b\n") + FILE,
    "a real size that is no number": block("x", tarfile.XHDTYPE, data=pax(**{"GNU.sparse.size": "x"})) + FILE,
    "a map of holes that is no number": block(
        "x", tarfile.XHDTYPE, data=pax(**{"GNU.sparse.map": "x,y", "GNU.sparse.size": "1"})
    )
    + FILE,
}


@pytest.mark.parametrize("attack", NO_NUMBERS)
def test_numbers_that_are_none_are_refused(attack: str, tmp_path: Path) -> None:
    """A negative size made `read` take all that follows into memory."""
    tar = write(tmp_path / "root.tar", NO_NUMBERS[attack])
    for number, act in enumerate((unpack, unpack_stream)):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ImageError):
            act(tar, tmp_path / str(number))
    assert not is_archive(tar)


def test_names_that_fill_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of whiteouts, of which the disk holds nothing."""
    monkeypatch.setattr("ramify.fork_engine.filesystem.untar._MOST_TEXT", 10_000)
    names = [f"{at}".rjust(90, "d") for at in range(200)]
    for number, prefix in enumerate(("", ".wh.")):
        tar = write(tmp_path / f"{number}.tar", *(block(prefix + name, tarfile.REGTYPE) for name in names))
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ImageError, match="characters"):
            unpack_stream(tar, tmp_path / str(number))


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damage_of_a_compressed_tar_is_told(kind: str, tmp_path: Path) -> None:
    plain = write(
        tmp_path / "plain.tar", *(block(f"{at}", tarfile.REGTYPE, data=bytes(range(256))) for at in range(99))
    )
    packed = bytearray({"gz": gzip, "bz2": bz2, "xz": lzma}[kind].compress(plain.read_bytes()))
    packed[len(packed) // 2] ^= 0xFF
    packed[-6] ^= 0xFF
    (tmp_path / "damaged").write_bytes(packed)
    (tmp_path / "root").mkdir()
    with pytest.raises(ImageError):
        unpack(tmp_path / "damaged", tmp_path / "root")
    is_archive(tmp_path / "damaged")


def test_headers_of_members_that_were_unpacked_are_not_kept(tmp_path: Path) -> None:
    members = (
        block("x", tarfile.XHDTYPE, data=pax(comment="v" * 900_000)) + block(f"{at}", tarfile.REGTYPE)
        for at in range(60)
    )
    tar = write(tmp_path / "root.tar", *members)
    (tmp_path / "root").mkdir()
    tracemalloc.start()
    try:
        unpack(tar, tmp_path / "root")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(list((tmp_path / "root").iterdir())) == 60
    assert peak < 20 * 900_000


def calls_to_replace(count: int, tmp_path: Path) -> int:
    """Calls of C functions for a tar that makes `count` folders and puts a file in the place of each other one."""
    folders = [block(f"d{at}/", tarfile.DIRTYPE) for at in range(count)]
    files = [block(f"d{at}", tarfile.REGTYPE) for at in range(0, count, 2)]
    tar = write(tmp_path / f"{count}.tar", *folders, *files)
    (tmp_path / f"{count}").mkdir()
    calls = 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        unpack(tar, tmp_path / f"{count}")
    finally:
        sys.setprofile(before)
    return calls


def test_work_is_linear_in_the_number_of_folders(tmp_path: Path) -> None:
    assert calls_to_replace(1200, tmp_path) < 2.5 * calls_to_replace(600, tmp_path)


def test_files_without_bytes_take_room(tmp_path: Path) -> None:
    tar = write(tmp_path / "root.tar", *(block(f"{at}", tarfile.REGTYPE) for at in range(100)))
    (tmp_path / "root").mkdir()
    with pytest.raises(StoreUnusable, match="no room for its member"):
        unpack(tar, tmp_path / "root", room=50 * 4096)


def test_a_folder_that_a_file_replaces_is_gone_with_those_in_it(tmp_path: Path) -> None:
    folders = [block(name, tarfile.DIRTYPE) for name in ("d/", "d/e/", "d/e/f/", "other/")]
    tar = write(tmp_path / "root.tar", *folders, block("d", tarfile.REGTYPE))
    (tmp_path / "root").mkdir()
    unpack(tar, tmp_path / "root")
    assert (tmp_path / "root/d").is_file()
    assert (tmp_path / "root/other").is_dir()
