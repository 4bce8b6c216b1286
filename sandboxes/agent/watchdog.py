"""Watches what a whole world uses where no limit of a single process helps: memory, processes, disk. Stdlib only.

The agent calls `check` a few times a second while anything runs. It reads /proc and the world's folder, so it needs
no control groups, no root and no daemon. It cannot stop a process between two looks: `resource_limits` and, if there
are any, control groups bound that.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ramify.sandboxes.linux.resource_limits import Bounds

EVERY_S = 0.1
SHARE = 50  # looks may take a fiftieth of a processor
SLICE_S = 0.004  # of one look, spent on the disk
LEAST_CHARGE = 4096  # bytes charged for a file however small: an inode is not free either
PAGE = os.sysconf("SC_PAGE_SIZE")
STEP = 1024  # characters of a path opened at once; a name has at most 255
FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
GROWTH = 1.02  # growth of stored files without writes: file systems place their own records late
SLACK = 1 << 20
NOT_COUNTED = frozenset({"root", "work"})  # in a world's folder: a mount point, and overlayfs's own folder


@dataclass(frozen=True, slots=True)
class Usage:
    pids: tuple[int, ...]
    threads: int
    resident: int  # bytes; a page counts once for each process that maps it


def usage(root: int) -> Usage:
    """The usage of all processes below `root`, without `root`. Reads /proc once."""
    rows: dict[int, tuple[int, int, int]] = {}  # pid: parent, threads, resident pages
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
                rows[int(entry.name)] = _row(entry.name)
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in rows.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), ())
        found.extend(below)
        queue.extend(below)
    return Usage(tuple(found), sum(rows[pid][1] for pid in found), PAGE * sum(rows[pid][2] for pid in found))


def _row(pid: str) -> tuple[int, int, int]:
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        line = os.read(file, 4096)
    finally:
        os.close(file)
    fields = line[line.rindex(b")") + 2 :].split()  # from the third field (the state) on
    return int(fields[1]), int(fields[17]), int(fields[21])


def proportional_memory(pids: Sequence[int]) -> int:
    """Bytes of memory, with shared pages divided among the processes that map them. Exact but slow: it walks the page
    tables."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or ending
            file = os.open(f"/proc/{pid}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = os.read(file, 4096)
            finally:
                os.close(file)
            total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(b"Pss:")) * 1024
    return total


def memory_file_systems() -> tuple[tuple[str, int], ...]:
    """The mount points of writable memory file systems here, and their devices: the world's own. The host's are
    read-only inside."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        device, _, point, options = left.split()[2:6]
        if right.startswith("tmpfs ") and "rw" in options.split(","):
            found.append((point.encode().decode("unicode_escape"), os.makedev(*map(int, device.split(":")))))
    return tuple(found)


def memory_file_usage(places: Sequence[tuple[str, int]]) -> int:
    """Bytes that files on memory file systems hold: they are memory too, whoever wrote them. What covers one, such as
    the tree, is none."""
    total = 0
    for place, device in places:
        with suppress(FileNotFoundError):
            if Path(place).stat().st_dev == device:
                found = os.statvfs(place)
                total += (found.f_blocks - found.f_bfree) * found.f_frsize
    return total


def disk_usage(folder: int) -> Iterator[int]:
    """The bytes on disk below an open folder, as a running total after each folder.

    Follows no links. Counts hard links each time.
    """
    total = 0
    queue = [""]
    while queue:
        path = queue.pop()
        gone = suppress(FileNotFoundError, NotADirectoryError, PermissionError)  # it changes while we walk
        with gone, _opened(folder, path) as inner, os.scandir(inner) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += max(entry.stat(follow_symlinks=False).st_blocks * 512, LEAST_CHARGE)
                if entry.is_dir(follow_symlinks=False) and (path or entry.name not in NOT_COUNTED):
                    queue.append(f"{path}/{entry.name}" if path else entry.name)
        yield total


def unlinked_usage(pids: Sequence[int]) -> int:
    """Bytes on disk of open files without a name: no walk finds them."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        ended = suppress(FileNotFoundError, ProcessLookupError, PermissionError)  # or ending
        with ended, os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    held = entry.stat()
                    if stat.S_ISREG(held.st_mode) and not held.st_nlink:
                        found[held.st_dev, held.st_ino] = held.st_blocks * 512
    return sum(found.values())


@contextmanager
def _opened(folder: int, path: str) -> Iterator[int]:
    """Open the folder at `path` below `folder` in short steps: commands can nest folders deeper than PATH_MAX."""
    with ExitStack() as held:
        while len(path) > STEP:
            cut = path.rindex("/", 0, STEP)
            folder = os.open(path[:cut], os.O_PATH | FOLDER, dir_fd=folder)
            held.callback(os.close, folder)
            path = path[cut + 1 :]
        last = os.open(path or ".", os.O_RDONLY | FOLDER, dir_fd=folder)
        held.callback(os.close, last)
        yield last


@dataclass
class Watchdog:
    """Watches one world. `folder` opens the world's own folder, if its disk is to be watched."""

    bounds: Bounds
    root: int
    folder: Callable[[], int] | None = None
    _busy: bool = False  # something lives beside the shell, or may
    _due: float = 0.0
    _places: tuple[tuple[str, int], ...] | None = None
    _walk: Iterator[int] | None = field(default=None, repr=False)
    _open: int = -1
    _unlinked: int = 0  # when this walk began
    _tolerated: int = 0  # bytes on disk above the limit that are tolerated since the limit was last met

    def begin(self) -> None:
        """Note that a command starts: the next look comes later, so that short commands are not looked at."""
        self._due = time.monotonic() + EVERY_S
        self._busy = True

    def watch(self) -> None:
        """Note that a process starts beside others: the next look is not put off."""
        if not self._busy:
            self.begin()

    def wait_s(self) -> float | None:
        """Seconds until the next look; None if nothing is to be watched."""
        return max(0.0, self._due - time.monotonic()) if self._busy else None

    def check(self, own: Collection[int]) -> str:
        """The limit that the world exceeds, by its field in `Bounds`; "" if none, or if no look is due. `own`:
        processes that wait for a command."""
        if not self._busy or time.monotonic() < self._due:
            return ""
        began = time.thread_time()  # on a busy machine a look waits, which costs nobody anything
        used = usage(self.root)
        self._busy = any(pid not in own for pid in used.pids)
        over = self._memory_or_processes(used) or ("disk_bytes" if self._disk_over(used) else "")
        self._due = time.monotonic() + max(EVERY_S, SHARE * (time.thread_time() - began))
        return over

    def still_exceeded(self, limit: str) -> bool:
        """Whether the world still exceeds this limit after the command that met it was killed.

        Always true for the disk: files stay, and their writer is unknown. The present size is tolerated from now on,
        so that a next command can remove files.
        """
        if limit != "disk_bytes":
            return self._memory_or_processes(usage(self.root)) == limit
        if self.folder is not None:
            descriptor = self.folder()
            try:
                *_, weight = disk_usage(descriptor)
                self._tolerated = int(weight * GROWTH) + SLACK
            finally:
                os.close(descriptor)
        return True

    def _memory_or_processes(self, used: Usage) -> str:
        """The one of these two limits that the world exceeds; "" for none."""
        bounds = self.bounds
        if bounds.processes is not None and used.threads > bounds.processes:
            return "processes"
        if bounds.memory_bytes is not None:
            if self._places is None:
                self._places = memory_file_systems() if self.folder is not None else ()
            files = memory_file_usage(self._places)
            if (
                used.resident + files > bounds.memory_bytes
                and proportional_memory(used.pids) + files > bounds.memory_bytes
            ):
                return "memory_bytes"
        return ""

    def _disk_over(self, used: Usage) -> bool:
        """Continue the walk for a moment; a big tree takes many looks."""
        if self.folder is None or self.bounds.disk_bytes is None:
            return False
        most = max(self.bounds.disk_bytes, self._tolerated)
        if self._walk is None:
            self._open = self.folder()
            self._walk = disk_usage(self._open)
            self._unlinked = unlinked_usage(used.pids)
        until = time.monotonic() + SLICE_S
        over = False
        for total in self._walk:
            over = total + self._unlinked > most
            if over:
                break
            if time.monotonic() > until:
                return False
        os.close(self._open)
        self._walk, self._open = None, -1
        return over
