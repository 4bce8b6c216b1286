"""The memory of processes. Stdlib only; the constants of `mmap` are those of x86_64.

`areas` reads a process's memory map from /proc/PID/maps. `Pages` asks for the state of its pages, by PAGEMAP_SCAN on
its /proc/PID/pagemap (Linux 6.7). `available_bytes` says how much memory this process can still get, and
`fullest_memory` how full its tightest limit is.
"""

from __future__ import annotations

import ctypes
import fcntl
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.sandboxes.linux.processes import contents

PAGE = 4096
LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f:]+) (\d+) *(.*)")
OWN = ("[heap]", "[stack]")
KERNELS = ("[vdso]", "[vvar]", "[vvar_vclock]")
LEFT = "[vsyscall]"

READ, WRITE, EXECUTE = 1, 2, 4
SHARED, PRIVATE, FIXED, ANONYMOUS, GROWS_DOWN, NO_RESERVE = 1, 2, 0x10, 0x20, 0x100, 0x4000
DROPPABLE = 8  # in the place of PRIVATE: the kernel may drop its pages, and a fork gets zeros (Linux 6.11)
MAY_WRITE, NOT_FORKED, WIPED, DROPPED = "mw", "dc", "wf", "dp"
"""Flags of an area that /proc/PID/maps does not show: it may be made writable; a fork gets nothing of it; it gets
zeros; the kernel may drop it."""
TOLD = re.compile(rb"\b(?:mw|dc|wf|dp)\b")
FLAGS = b"\nVmFlags:"  # no name can contain it: the kernel writes a newline in one as \\012


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
    told: str = ""  # of the flags above those that it has, as `areas_with_flags` finds them

    @property
    def of(self) -> FileId:
        return (self.device, self.inode)

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def shared_file(self) -> bool:
        """Whether a write to this memory is, or may become, a write to a file."""
        return self.inode != 0 and "s" in self.modes and ("w" in self.modes or MAY_WRITE in self.told)

    @property
    def forgets(self) -> bool:
        """Whether a forked process finds zeros there, and so does a restored one: such memory says whether a program
        was forked, or holds what no two processes may share, like the state of a random number generator."""
        return WIPED in self.told or DROPPED in self.told

    @property
    def protection(self) -> int:
        return sum(bit for letter, bit in zip("rwx", (READ, WRITE, EXECUTE), strict=True) if letter in self.modes)

    @property
    def flags(self) -> int:
        """The flags for `mmap`."""
        if "s" in self.modes:
            return SHARED | FIXED
        kind = GROWS_DOWN if self.name == "[stack]" else 0 if self.protection else NO_RESERVE
        if DROPPED in self.told:
            return DROPPABLE | FIXED | ANONYMOUS
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
    lines = contents(f"/proc/{pid}/maps").decode(errors="surrogateescape").split("\n")
    found = [_area(line) for line in lines if line]
    return [area for area in found if area.name != LEFT]


def areas_with_flags(pid: int) -> list[Area]:
    """The areas of a stopped process, with the flags that matter to a copy of it. It reads /proc/PID/smaps, for which
    the kernel looks at every page, so it takes longer than `areas`."""
    line, *entries = contents(f"/proc/{pid}/smaps").split(FLAGS)  # an area's flags are the last line of its entry
    found = []
    for entry in entries:
        flags, _, following = entry.partition(b"\n")
        area = _area(line[: line.index(b"\n")].decode(errors="surrogateescape"))
        found.append(replace(area, told=told) if (told := _told(flags, area.modes)) else area)
        line = following
    return [area for area in found if area.name != LEFT]


def _told(flags: bytes, modes: str) -> str:
    """Of an area's flags those that matter to a copy."""
    kept = TOLD.findall(flags)
    if kept == [MAY_WRITE.encode()] and not modes.endswith("s"):
        return ""  # all private memory may be made writable
    return b" ".join(kept).decode()


def _area(line: str) -> Area:
    match = LINE.match(line)
    if match is None:
        raise OSError(f"/proc/PID/maps has an invalid line: {line!r}")
    start, end, modes, offset, device, inode, name = match.groups()
    return Area(int(start, 16), int(end, 16), modes, int(offset, 16), device, int(inode), name)


def gap(taken: Sequence[Area], size: int) -> int:
    """An address with `size` free bytes between these areas."""
    at = 0x1000_0000  # above what programs are mapped to
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


SCAN = 0xC0606610  # the request PAGEMAP_SCAN
PROTECT = 1 << 0  # PM_SCAN_WP_MATCHING
WP_ALLOWED, WRITTEN, FILE, PRESENT, SWAPPED = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4  # PAGE_IS_…
ARGUMENT = struct.Struct("=12Q")
REGION = struct.Struct("=3Q")
REGIONS = 512  # read at once

Addresses = tuple[int, int]
"""A range of addresses: its beginning and its end."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Which pages are asked for: those of all categories in `having`, of none in `lacking`, and in memory or swapped
    out."""

    having: int = 0
    lacking: int = 0

    def found(self, pagemap: int, start: int, end: int) -> Iterator[Addresses]:
        """Their ranges between two addresses, ascending. Raises `OSError`: the kernel may not have this request."""
        room = ctypes.create_string_buffer(REGION.size * REGIONS)
        while start < end:
            start, count = self._scan(pagemap, 0, start, end, ctypes.addressof(room), REGIONS)
            yield from (REGION.unpack_from(room, at * REGION.size)[:2] for at in range(count))

    def protect(self, pagemap: int, start: int, end: int) -> None:
        """Note writes to these pages from now on. Raises `OSError`."""
        self._scan(pagemap, PROTECT, start, end, 0, 0)

    def _scan(self, pagemap: int, flags: int, start: int, end: int, room: int, regions: int) -> tuple[int, int]:
        """Where the scan ended, and how many ranges it has put into `room`."""
        categories = (self.lacking, self.having | self.lacking, PRESENT | SWAPPED)  # inverted, all of, any of
        told = PRESENT if regions else 0
        asked = bytearray(ARGUMENT.pack(ARGUMENT.size, flags, start, end, 0, room, regions, 0, *categories, told))
        count = fcntl.ioctl(pagemap, SCAN, asked)
        return ARGUMENT.unpack(asked)[4], count


OWN_PAGES = Pages(lacking=FILE)
NOT_WRITTEN = Pages(having=WP_ALLOWED, lacking=WRITTEN)
PROTECTABLE = Pages(having=WP_ALLOWED)


GROUP_FILES = (
    (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
)
"""The limits of a control group (above one of them the kernel ends processes, or slows them down), what it uses, and
which part of that are cached files that the kernel would drop (in memory.stat), by version 2 and by version 1."""


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The least that the machine and the control groups of this process have left."""
    return max(0, min((total - used for used, total in memory_limits(proc, groups)), default=0))


def fullest_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Bytes that are used, and all of them: of the machine, or of a control group of this process if less of that is
    free."""
    return max(memory_limits(proc, groups), key=lambda limit: limit[0] / max(1, limit[1]))


def memory_limits(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> list[tuple[int, int]]:
    """Used bytes and all bytes, of the machine and of each control group of this process that has a limit."""
    lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    total, free = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    limits = [(total - free, total)]
    memberships: list[str] = []
    with suppress(OSError):  # a kernel without control groups
        memberships = (proc / "self/cgroup").read_text().splitlines()
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = groups / "memory" if controllers else groups
        place = root / path.lstrip("/")
        for folder in (place, *place.parents):
            limits += _limit_of(folder)
            if folder == root:
                break
    return limits


def _limit_of(folder: Path) -> list[tuple[int, int]]:
    """None, or one: the lowest."""
    for limits, used, cached in GROUP_FILES:
        totals = [total for name in limits if (total := _number(folder / name)) is not None]
        if totals and (in_use := _number(folder / used)) is not None:
            return [(max(0, in_use - _stated(folder / "memory.stat", cached)), min(totals))]
    return []


def _number(file: Path) -> int | None:
    """None: there is no such group, or it says "max"."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def _stated(stat: Path, name: str) -> int:
    with suppress(OSError):
        for line in stat.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
