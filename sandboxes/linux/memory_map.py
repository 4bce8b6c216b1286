"""A process's memory map, and how its pages are kept in a file. Stdlib only; x86_64.

Pages that the process never wrote are not kept: they come from their files again. Pages that it wrote are stored in a
sparse file, area by area. Another process maps that file privately, at the cost of the mapping alone, and shares its
pages until it writes. memory_image.py writes such files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PAGE = 4096
FEW = 1 << 16  # bytes: smaller contents of an area are copied into the new process instead of mapped
BLOCK = 1 << 18
LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f:]+) (\d+) *(.*)")
OWN = ("[heap]", "[stack]")
KERNELS = ("[vdso]", "[vvar]", "[vvar_vclock]")
LEFT = "[vsyscall]"

READ, WRITE, EXECUTE = 1, 2, 4
SHARED, PRIVATE, FIXED, ANONYMOUS, GROWS_DOWN, NO_RESERVE = 1, 2, 0x10, 0x20, 0x100, 0x4000


FileId = tuple[str, int]
"""A mapped file's device and inode, as in /proc/PID/maps."""


class CannotDump(Exception):
    """Some state of the process that no image can hold. The text says what."""


@dataclass(frozen=True, slots=True)
class Area:
    """One mapping, as listed in /proc/PID/maps."""

    start: int
    end: int
    modes: str
    offset: int
    device: str
    inode: int
    name: str

    @property
    def of(self) -> FileId:
        return (self.device, self.inode)

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def shared_file(self) -> bool:
        """Whether a write to this memory is a write to a file."""
        return self.inode != 0 and "s" in self.modes and "w" in self.modes

    @property
    def protection(self) -> int:
        return sum(bit for letter, bit in zip("rwx", (READ, WRITE, EXECUTE), strict=True) if letter in self.modes)

    @property
    def flags(self) -> int:
        """The flags for `mmap`."""
        if "s" in self.modes:
            return SHARED | FIXED
        kind = GROWS_DOWN if self.name == "[stack]" else 0 if self.protection else NO_RESERVE
        return PRIVATE | FIXED | kind | (0 if self.file else ANONYMOUS)

    @property
    def file(self) -> str:
        """The file that its pages come from; "" if they are its own only."""
        return self.name if self.inode else ""

    @property
    def plain(self) -> bool:
        """Whether it is private memory without a file, which may be mapped over any file."""
        return not self.file and self.name != "[stack]"


Run = tuple[int, int]
"""A range of an area's bytes: its offset and its length."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An area, or a part of one, and which of its bytes the image holds."""

    area: Area
    at: int = 0  # its position in the image
    runs: tuple[Run, ...] = ()
    below: int = -1  # its position in the ground, which the runs are written over; -1 without a ground

    @property
    def mapped(self) -> bool:
        """Whether it is mapped from the image as a whole; else its runs are copied."""
        return self.below < 0 and self.area.plain and self._bytes > FEW

    @property
    def _bytes(self) -> int:
        return sum(length for _, length in self.runs)

    @property
    def room(self) -> int:
        """The bytes it takes in the image: all of its size if it is mapped from there, else its runs only."""
        return self.area.size if self.mapped else self._bytes

    def placed(self) -> Iterator[tuple[int, int, int]]:
        """For each run: its position in the image, its offset in the area, and its length."""
        at = self.at
        for offset, length in self.runs:
            yield self.at + offset if self.mapped else at, offset, length
            at += length


def areas(pid: int) -> list[Area]:
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as listed:  # noqa: PTH123
        found = [_area(line) for line in listed]
    return [area for area in found if area.name != LEFT]


def _area(line: str) -> Area:
    match = LINE.match(line)
    if match is None:
        raise OSError(f"/proc/PID/maps has an invalid line: {line!r}")
    start, end, modes, offset, device, inode, name = match.groups()
    return Area(int(start, 16), int(end, 16), modes, int(offset, 16), device, int(inode), name)


def write(memory: int, image: int, kept: Kept) -> None:
    """Copy the runs from the image into the memory."""
    for place, offset, length in kept.placed():
        done = 0
        while done < length:
            data = os.pread(image, min(length - done, BLOCK), place + done)
            done += os.pwrite(memory, data, kept.area.start + offset + done)


def gap(taken: Sequence[Area], size: int, lowest: int = 0x1000_0000) -> int:
    """An address with `size` free bytes between these areas."""
    at = lowest
    for area in sorted(taken, key=lambda area: area.start):
        if area.end <= at:
            continue
        if area.start >= at + size:
            break
        at = area.end
    return at
