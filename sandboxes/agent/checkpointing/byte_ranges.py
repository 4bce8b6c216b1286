"""Ranges of bytes: their arithmetic, and copying them from a process's memory into a file. Stdlib only."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator

BLOCK = 1 << 18  # bytes that are copied or compared at once
AHEAD = 1 << 16  # bytes that are read at least, if the file has them

ByteRange = tuple[int, int]
"""A range of an area's bytes: its offset and its length."""


def union(runs: Iterable[ByteRange]) -> Iterator[ByteRange]:
    """The union of the runs, ascending."""
    begin = end = 0
    for offset, length in sorted(runs):
        if offset > end:
            if end > begin:
                yield begin, end - begin
            begin, end = offset, offset
        end = max(end, offset + length)
    if end > begin:
        yield begin, end - begin


def without(runs: Iterable[ByteRange], gone: Iterable[ByteRange]) -> Iterator[ByteRange]:
    """What is left of the runs. Both ascend without overlaps."""
    left = deque(gone)
    for offset, length in runs:
        end = offset + length
        while left and sum(left[0]) <= offset:
            left.popleft()
        for start, size in left:
            if start >= end:
                break
            if start > offset:
                yield offset, start - offset
            offset = max(offset, start + size)
        if offset < end:
            yield offset, end - offset


class PageCopier:
    """Copies memory into an image. What comes to lie side by side there is written at once: most areas that are no
    base have a page or two of their own."""

    def __init__(self, memory: int, image: int) -> None:
        self._memory, self._image = memory, image
        self._room = memoryview(bytearray(BLOCK))
        self._at = self._filled = 0

    def copy(self, address: int, at: int, length: int) -> None:
        if at != self._at + self._filled:
            self.write()
            self._at = at
        while length:
            got = os.preadv(self._memory, [self._room[self._filled : self._filled + length]], address)
            if not got:  # the kernel says so of a process that was killed
                raise OSError(f"the memory has no bytes at {address:#x}")
            self._filled += got
            address, length = address + got, length - got
            if self._filled == BLOCK:
                self.write()

    def write(self) -> None:
        """Write what was copied."""
        done = 0
        while done < self._filled:
            done += os.pwrite(self._image, self._room[done : self._filled], self._at + done)
        self._at, self._filled = self._at + done, 0


class FileReader:
    """Reads ranges of a file that mostly follow one another, many at once."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._at, self._held = 0, memoryview(b"")

    def read(self, at: int, most: int) -> memoryview:
        """Some of the bytes from there on. Raises `OSError` if the file has none."""
        if not self._at <= at < self._at + len(self._held):
            size = max(AHEAD, min(most, BLOCK))
            self._at, self._held = at, memoryview(os.pread(self._file, size, at))
            if not self._held:
                raise OSError(f"the file has no bytes at {at}")
        first = at - self._at
        return self._held[first : first + most]


def write_memory(memory: int, data: bytes | memoryview, address: int) -> None:
    """Write all of it into the memory of a process. Raises `OSError` if the process was killed."""
    while data:
        done = os.pwrite(memory, data, address)
        if not done:
            raise OSError(f"the memory takes no bytes at {address:#x}")
        data, address = data[done:], address + done
