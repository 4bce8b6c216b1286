"""A process's memory map, from /proc/PID/maps. Stdlib only; the constants of `mmap` are those of x86_64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PAGE = 4096
LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f:]+) (\d+) *(.*)")
OWN = ("[heap]", "[stack]")
KERNELS = ("[vdso]", "[vvar]", "[vvar_vclock]")
LEFT = "[vsyscall]"

READ, WRITE, EXECUTE = 1, 2, 4
SHARED, PRIVATE, FIXED, ANONYMOUS, GROWS_DOWN, NO_RESERVE = 1, 2, 0x10, 0x20, 0x100, 0x4000


FileId = tuple[str, int]
"""A mapped file's device and inode, as in /proc/PID/maps."""


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


def writes_by_mapping(pid: int) -> bool:
    """Whether a process can write to a file by a mapping; not once it has ended. Assumed of a process whose map is
    closed to us, as before it executes its program."""
    try:
        return any(area.shared_file for area in areas(pid))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return True
