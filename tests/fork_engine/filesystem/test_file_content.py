"""Copying bytes: every way of copying gives the same result."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from ramify.fork_engine.filesystem import file_content

HOLE = MIB = 1 << 20


@pytest.mark.parametrize("kind", ["empty", "dense", "hole first", "hole last", "only hole"])
@pytest.mark.parametrize("in_kernel", [True, False])
def test_every_way_of_copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, in_kernel: bool) -> None:
    if not in_kernel:

        def refuse(*_: object) -> int:
            raise OSError(errno.EXDEV, "not across file systems")

        monkeypatch.setattr(os, "copy_file_range", refuse)
    data = {
        "empty": b"",
        "dense": os.urandom(3 * HOLE + 17),
        "hole first": bytes(HOLE) + b"x" * 5000,
        "hole last": b"x" * 5000 + bytes(HOLE),
        "only hole": bytes(HOLE),
    }[kind]
    with (tmp_path / "from").open("wb+") as source, (tmp_path / "to").open("wb+") as dest:
        os.truncate(source.fileno(), len(data))
        start = len(data) - len(data.lstrip(b"\0"))
        os.pwrite(source.fileno(), data.strip(b"\0"), start)
        file_content.copy_bytes(source.fileno(), dest.fileno())
        assert (
            file_content.digest_fd(source.fileno())
            == file_content.digest_fd(dest.fileno())
            == file_content.digest_bytes(data)
        )
        if "hole" in kind:
            assert os.fstat(dest.fileno()).st_blocks * 512 < HOLE


def test_an_error_of_the_disk_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with (tmp_path / "from").open("wb+") as source, (tmp_path / "to").open("wb+") as dest:
        source.write(b"data")
        source.flush()
        with pytest.raises(OSError, match="No space"):
            file_content.copy_bytes(source.fileno(), dest.fileno())


def test_a_flush_that_fails_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        file_content.sync_file_system(-1)


@pytest.mark.parametrize("data", [{}, {0: b"first"}, {100 << 20: b"middle"}, {(200 << 20) - 4: b"last"}])
def test_a_digest_asks_for_large_holes_and_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[int, bytes]
) -> None:
    fd = os.open(tmp_path / "sparse", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, 200 << 20)
    for offset, there in data.items():
        os.pwrite(fd, there, offset)
    by_reading = hashlib.sha256()
    with open(fd, "rb", closefd=False) as stream:
        while chunk := stream.read(1 << 20):
            by_reading.update(chunk)
    read, pread = list[int](), os.pread
    monkeypatch.setattr(os, "pread", lambda *args: (got := pread(*args), read.append(len(got)))[0])
    assert file_content.digest_fd(fd) == by_reading.hexdigest()
    assert sum(read) <= 2 << 20
    os.close(fd)


@pytest.mark.parametrize("zeros", ["holes", "written"])
def test_a_large_files_digest_is_of_what_it_holds_beside_zeros(tmp_path: Path, zeros: str) -> None:
    size = file_content.LARGE + (5 << 20) + 3
    pieces = {0: b"a", (7 << 20) - 1: b"bc", size - 1: b"d"}
    seen = hashlib.blake2b(digest_size=32)
    blocks = {0: b"a", 6: bytes(MIB - 1) + b"b", 7: b"c", size // MIB: bytes(2) + b"d"}
    for number, data in blocks.items():
        whole = min(MIB, size - number * MIB)
        seen.update(number.to_bytes(8, "big") + data.ljust(whole, b"\0"))
    seen.update(size.to_bytes(8, "big"))
    with (tmp_path / "large").open("wb+") as file:
        os.truncate(file.fileno(), size)
        if zeros == "written":
            os.pwrite(file.fileno(), bytes(20 * MIB), 0)
        for offset, data in pieces.items():
            os.pwrite(file.fileno(), data, offset)
        assert file_content.digest_fd(file.fileno()) == seen.hexdigest()
        os.pwrite(file.fileno(), b"x", 300 * MIB)
        assert file_content.digest_fd(file.fileno()) != seen.hexdigest()


def test_a_hole_of_many_terabytes_is_digested_at_once(tmp_path: Path) -> None:
    """If the hole were read, or hashed as zeros, this would not finish."""
    with (tmp_path / "sparse").open("wb+") as file:
        os.truncate(file.fileno(), 8 << 40)
        empty = file_content.digest_fd(file.fileno())
        os.pwrite(file.fileno(), b"x", 4 << 40)
        assert file_content.digest_fd(file.fileno()) != empty
