"""Ranges of bytes are joined without loss, and copied from memory to where they belong in a file."""

from __future__ import annotations

import ctypes
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.sandboxes.agent.checkpointing.byte_ranges import AHEAD, BLOCK, FileReader, PageCopier, union

PAGE = 4096
runs = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 40))).map(
    lambda found: sorted((offset * PAGE, length * PAGE) for offset, length in found)
)


def pages(found: list[tuple[int, int]]) -> set[int]:
    return {at for offset, length in found for at in range(offset, offset + length, PAGE)}


@given(runs)
def test_joined_runs_hold_the_same_pages_in_order_and_apart(found: list[tuple[int, int]]) -> None:
    joined = list(union(found))
    assert pages(joined) == pages(found)
    assert all(one[0] + one[1] < other[0] for one, other in itertools.pairwise(joined))


@pytest.mark.parametrize(
    "wanted",
    [
        [(0, 0, 3), (10, 3, 5), (100, 8, 1)],  # side by side in the file
        [(0, 0, 3), (10, 70, 5), (100, 20, 1)],  # with holes, and not in order
        [(0, 0, BLOCK), (BLOCK, BLOCK, 2 * BLOCK + 7), (3, 3 * BLOCK + 7, 11)],  # more than is written at once
        [],
    ],
)
def test_memory_is_copied_to_where_it_belongs(tmp_path: Path, wanted: list[tuple[int, int, int]]) -> None:
    data = ctypes.create_string_buffer(os.urandom(4 * BLOCK))
    begin, expected = ctypes.addressof(data), bytearray()
    with Path("/proc/self/mem").open("rb") as memory, (tmp_path / "image").open("w+b") as image:
        copier = PageCopier(memory.fileno(), image.fileno())
        for offset, at, length in wanted:
            copier.copy(begin + offset, at, length)
            expected = expected.ljust(at + length, b"\0")
            expected[at : at + length] = data.raw[offset : offset + length]
        copier.write()
        assert image.read() == expected


def test_ranges_of_a_file_are_read_in_any_order(tmp_path: Path) -> None:
    data = os.urandom(2 * BLOCK + 5)
    (tmp_path / "image").write_bytes(data)
    with (tmp_path / "image").open("rb") as image:
        reader = FileReader(image.fileno())
        for at, length in ((7, 3), (10, AHEAD), (AHEAD - 1, 2 * BLOCK), (0, 1), (len(data) - 2, 2)):
            got = b""
            while len(got) < length and at + len(got) < len(data):
                got += reader.read(at + len(got), length - len(got))
            assert got == data[at : at + length]
        with pytest.raises(OSError, match="no bytes"):
            reader.read(len(data), 1)
