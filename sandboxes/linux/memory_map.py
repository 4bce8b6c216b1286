"""A stopped process's memory: what is mapped where, and how it is kept. Stdlib only; x86_64.

A page that the process never wrote to is not kept: it comes from its file again. What it wrote lies at the same place
of a sparse file, area by area, from which another process maps it privately: shared until it writes, at the price of
the mapping alone. keeping.py writes such files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PAGE = 4096
FEW = 1 << 16  # bytes of an area that are rather written into the new process than mapped
BLOCK = 1 << 18
LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f:]+) (\d+) *(.*)")
OWN = ("[heap]", "[stack]")
KERNELS = ("[vdso]", "[vvar]", "[vvar_vclock]")
LEFT = "[vsyscall]"

READ, WRITE, EXECUTE = 1, 2, 4
SHARED, PRIVATE, FIXED, ANONYMOUS, GROWS_DOWN, NO_RESERVE = 1, 2, 0x10, 0x20, 0x100, 0x4000


FileId = tuple[str, int]
"""A mapped file, as /proc/PID/maps has it: device and inode."""


class CannotDump(Exception):
    """Something of the process lies where no image can take it. The text says what."""


@dataclass(frozen=True, slots=True)
class Area:
    """One mapping, as /proc/PID/maps has it."""

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
        """Whether what is written here is written to a file."""
        return self.inode != 0 and "s" in self.modes and "w" in self.modes

    @property
    def protection(self) -> int:
        return sum(bit for letter, bit in zip("rwx", (READ, WRITE, EXECUTE), strict=True) if letter in self.modes)

    @property
    def flags(self) -> int:
        """What `mmap` is to be told."""
        if "s" in self.modes:
            return SHARED | FIXED
        kind = GROWS_DOWN if self.name == "[stack]" else 0 if self.protection else NO_RESERVE
        return PRIVATE | FIXED | kind | (0 if self.file else ANONYMOUS)

    @property
    def file(self) -> str:
        """Where its pages come from; "" where they are its own alone."""
        return self.name if self.inode else ""

    @property
    def plain(self) -> bool:
        """Memory of its own alone, which may lie over any file."""
        return not self.file and self.name != "[stack]"


Run = tuple[int, int]
"""Bytes of an area: where they begin in it, and how many."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An area or a part of one, and which of its bytes lie in the image."""

    area: Area
    at: int = 0  # in the image
    runs: tuple[Run, ...] = ()
    below: int = -1  # where it lies in the ground, which the runs go over; -1 where it stands on none

    @property
    def mapped(self) -> bool:
        """From the image, whole; else its runs are written."""
        return self.below < 0 and self.area.plain and self._bytes > FEW

    @property
    def _bytes(self) -> int:
        return sum(length for _, length in self.runs)

    @property
    def room(self) -> int:
        """Bytes of the image: as large as itself where it is mapped from there, else its runs alone."""
        return self.area.size if self.mapped else self._bytes

    def placed(self) -> Iterator[tuple[int, int, int]]:
        """For each run: where it lies in the image, where in the area, how long it is."""
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
        raise OSError(f"/proc/PID/maps holds a line that is none: {line!r}")
    start, end, modes, offset, device, inode, name = match.groups()
    return Area(int(start, 16), int(end, 16), modes, int(offset, 16), device, int(inode), name)


def write(memory: int, image: int, kept: Kept) -> None:
    """Put its runs in their places."""
    for place, offset, length in kept.placed():
        done = 0
        while done < length:
            data = os.pread(image, min(length - done, BLOCK), place + done)
            done += os.pwrite(memory, data, kept.area.start + offset + done)


def gap(taken: Sequence[Area], size: int, lowest: int = 0x1000_0000) -> int:
    """An address with `size` free bytes among all of these."""
    at = lowest
    for area in sorted(taken, key=lambda area: area.start):
        if area.end <= at:
            continue
        if area.start >= at + size:
            break
        at = area.end
    return at
