"""Dump a Python session's process to an image, for other worlds: checkpoint tier (b). Stdlib only; agent side.

The dump covers one process with one thread: its own pages (linux/process_memory.py), its registers, what the kernel
knows of its signals and its program, and its open files by path and position. `process_restore.py` restores it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.memory_image import (
    BasePages,
    CannotDump,
    StoredArea,
    kept_areas,
    places,
    tracked,
    write_image,
)
from ramify.sandboxes.agent.checkpointing.process_image import (
    BASE_PAGES,
    PAGES,
    Image,
    Lock,
    OpenFile,
    Program,
    Thread,
)
from ramify.sandboxes.agent.checkpointing.reopening import (
    REMOVED,
    Reopening,
    with_openable_paths,
)
from ramify.sandboxes.linux import process_memory, processes, resource_limits
from ramify.sandboxes.linux.process_memory import Area, FileId
from ramify.sandboxes.linux.ptrace import CODE, ENTRY, Call, Tracee, restart_interrupted_call, share_open_file
from ramify.sandboxes.linux.resource_limits import Scheduling

# x86_64, arch/x86/entry/syscalls/syscall_64.tbl
MMAP, MUNMAP, BRK, RT_SIGACTION, MADVISE, GETITIMER, PRCTL = 9, 11, 12, 13, 28, 36, 157
SIGALTSTACK, CLOCK_GETTIME, GET_ROBUST_LIST = 131, 228, 274
PR_GET_PDEATHSIG, PR_GET_CHILD_SUBREAPER, PR_GET_TID_ADDRESS = 2, 37, 40
PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 3, 4, 29, 30
PR_SET_THP_DISABLE, PR_GET_THP_DISABLE = 41, 42
OPTIONS = (
    (PR_GET_TIMERSLACK, PR_SET_TIMERSLACK),
    (PR_GET_THP_DISABLE, PR_SET_THP_DISABLE),
    (PR_GET_DUMPABLE, PR_SET_DUMPABLE),
)
"""Of `prctl`: to ask for a number, and to set it again. Dumpable is the last: others cannot look any more."""
ALL_SIGNALS = (1 << 64) - 1
SIGACTION = 32  # bytes: handler, flags, restorer, mask
CLOCKS = (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)
TIMES = 3072  # where their times are in a page of results
TIMERS = 3  # ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF
PLACES = (26, 27, 45, 46, 47, 28, 48, 49, 50, 51)
"""Fields of /proc/PID/stat: startcode, endcode, start_data, end_data, start_brk, startstack, arg_start, arg_end,
env_start, env_end."""
STATUS_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_PATH | os.O_SYNC | os.O_NOATIME
STATUS_FLAGS |= os.O_DIRECT
MOST_FILES = 256
OF_A_PROCESS = re.compile(r"/proc/[0-9]+/")


@dataclass(frozen=True, slots=True)
class ImageBase:
    """The earlier image that a session's next image may build on, and the files that its pages were mapped from."""

    base: BasePages | None = None
    restored_from: frozenset[FileId] = frozenset()

    def duplicate(self) -> ImageBase:
        """A copy for a session that was forked from this one."""
        return replace(self, base=self.base and self.base.duplicate())

    def close(self) -> None:
        if self.base is not None:
            self.base.close()

    def stop_tracking(self) -> None:
        """Compare all memory of the session at its next dump."""
        if self.base is not None:
            self.base.stop_tracking()


def dump(
    session: str,
    pid: int,
    folder: Path,
    private: str,
    image_base: ImageBase,
    spare: Container[int] = (),
    points: Sequence[str] = (),
) -> BasePages | None:
    """Write a session's image into a new folder; the session then runs on unchanged.

    Returns a new `BasePages` if the image is complete by itself. Returns None if it builds on the base in
    `image_base`: then the caller puts that file at `BASE_PAGES`, where readers expect it.

    `private`: the folder of the session's pipes. `spare`: pids of the world's other sessions, which are dumped by
    themselves even where this session forked them. `points`: where the world's overlays are mounted. Raises
    `CannotDump` with what no image can hold, and `OSError` if the kernel refuses.
    """
    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    if threads != 1:
        raise CannotDump(f"it has {threads} threads")
    if any(p.parent == pid and p.pid not in spare for p in processes.descendants(pid)):
        raise CannotDump("it has living child processes")
    pipes = (f"{session}.in", f"{session}.out", "out", "err")
    return dump_process(session, pid, folder, lambda: open_files(pid, private, pipes), image_base, points)


def dump_process(
    name: str,
    pid: int,
    folder: Path,
    files_of_it: Callable[[], Sequence[OpenFile]],
    image_base: ImageBase,
    points: Sequence[str] = (),
    *,
    shares_files: bool = False,
) -> BasePages | None:
    """As `dump`, for any process with one thread. `files_of_it`: its `open_files`, asked for when it stands still.
    `shares_files`: it may write to files by mappings, and hold locks on them."""
    with Tracee.seize(pid) as tracee:
        tracee.interrupt()
        blocked = tracee.blocked
        registers, floats = tracee.registers, tracee.floats
        tracee.blocked = ALL_SIGNALS  # signals wait until the process runs on
        try:
            files = files_of_it()
            found = process_memory.areas_with_flags(pid)
            kernels = tuple(area for area in found if area.name in process_memory.KERNELS)
            own, base = image_base.restored_from, image_base.base
            found = with_openable_paths(kept_areas(found, own, shares_files=shares_files), own, points)
            status = processes.status_of(pid)
            program = _program(pid, status)
            tracee.step_from(_vdso(kernels))
            later = restart_interrupted_call(registers, tracee.memory)
            known = (later, floats, blocked, _handled_signals(status))
            thread, heap_end = _ask(tracee, *known, Reopening(program, files, found, own))
            folder.mkdir()
            with _new(folder / PAGES) as pages:
                kept = write_image(pid, found, tracee.memory, pages, own, base)
                made = None if any(one.below >= 0 for one in kept) else _base_of(pages, kept)
            places = (*_address_fields(pid), heap_end)
            image = Image(name, pid, program, thread, places, kernels, tuple(kept), tuple(files))
            if made is not None:
                if base is not None:
                    base.stop_tracking()  # the kernel tracks memory once
                made = tracked(tracee, made)
        finally:
            tracee.registers = registers
            tracee.blocked = blocked
    image.write(folder)
    return made


def _vdso(kernels: Sequence[Area]) -> Area:
    """The area by whose instructions it is asked. Raises `CannotDump` if it lacks one of the kernel's areas."""
    if sorted((area.name, area.size) for area in kernels) != _areas_of_kernel():
        raise CannotDump("it has given back or moved a part of its vDSO, which a restored process has whole")
    return next(area for area in kernels if area.name == "[vdso]")


@cache
def _areas_of_kernel() -> list[tuple[str, int]]:
    """Their names and sizes, as this process has them."""
    found = process_memory.areas(os.getpid())
    return sorted((area.name, area.size) for area in found if area.name in process_memory.KERNELS)


@contextlib.contextmanager
def _new(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _base_of(pages: int, kept: Sequence[StoredArea]) -> BasePages:
    return BasePages(pages, os.fstat(pages).st_ino, ("", 0), places(kept, whole=True)).duplicate()


def base_of_restored(image: Image, folder: Path, found: Sequence[Area]) -> ImageBase:
    """The base of a session that was restored from an image and has mapped the areas `found`."""
    whole = not any(kept.below >= 0 for kept in image.areas)
    below = {kept.area.start for kept in image.areas if (kept.mapped if whole else kept.below >= 0)}
    restored_from = {kept.area.start for kept in image.areas if kept.mapped or kept.below >= 0}
    found = [area for area in found if area.inode]  # without what was copied
    mapped_as = next((area.of for area in found if area.start in below), ("", 0))
    file = os.open(folder / (PAGES if whole else BASE_PAGES), os.O_RDONLY | os.O_CLOEXEC)
    base = BasePages(file, os.fstat(file).st_ino, mapped_as, places(image.areas, whole=whole))
    return ImageBase(base, frozenset(area.of for area in found if area.start in restored_from))


def _program(pid: int, status: Mapping[str, str]) -> Program:
    path = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    name = os.fsdecode(processes.contents(f"/proc/{pid}/comm")).removesuffix("\n")
    listed = map(str.split, resource_limits.read_rlimits(pid).splitlines())
    limits = {name: (int(soft), int(hard)) for name, soft, hard in listed}
    cwd, removed = working_folder(pid)
    umask, how = int(status["Umask"], 8), scheduling_of(pid)
    return Program(path, name, cwd, umask, limits, identity(path), os.uname().release, removed, how)


def scheduling_of(pid: int) -> Scheduling:
    """Raises `CannotDump` for a policy that a restored process may not have."""
    try:
        return Scheduling.of(pid)
    except ValueError as error:
        raise CannotDump(str(error)) from None


def working_folder(pid: int) -> tuple[str, bool]:
    """The path of a process's working folder, and whether it was removed from there. Raises `CannotDump` if another
    folder is at its path."""
    link = f"/proc/{pid}/cwd"
    path = os.readlink(link)  # noqa: PTH115
    try:
        if os.path.samefile(link, path):  # noqa: PTH121
            return path, False
    except OSError:
        pass
    if path.endswith(REMOVED):
        return path.removesuffix(REMOVED), True
    raise CannotDump(f"its working folder is not found at its path: {path}")


def identity(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116
    return (found.st_size, found.st_mtime_ns)


def _address_fields(pid: int) -> tuple[int, ...]:
    values = processes.stat_of(pid)
    return tuple(int(values[number - 3]) for number in PLACES)


def _ask(
    tracee: Tracee,
    registers: dict[str, int],
    floats: bytes,
    blocked: int,
    signals: Sequence[int],
    reopening: Reopening,
) -> tuple[Thread, int]:
    """The thread's state, and the end of the heap. Raises `CannotDump` also for what it may not open again: all that
    a process is asked for itself it is asked at once, since every time it has to run and to stop. `signals`: those
    that it handles."""
    state = partial(_calls_for_state, signals)
    count = len(state(0)) + len(reopening.calls(0))
    table = -(-(CODE + count * ENTRY.size) // process_memory.PAGE) * process_memory.PAGE
    size = table + process_memory.PAGE + len(reopening.paths)
    flags = process_memory.PRIVATE | process_memory.ANONYMOUS
    modes = process_memory.READ | process_memory.WRITE | process_memory.EXECUTE
    room = tracee.call(MMAP, 0, size, modes, flags, -1, 0)
    results, paths = room + table, room + table + process_memory.PAGE
    try:
        os.pwrite(tracee.memory, reopening.paths, paths)
        calls = state(results)
        told = tracee.try_all([*calls, *reopening.calls(paths)], room)
        tracee.check(calls, told[: len(calls)])
        data = os.pread(tracee.memory, process_memory.PAGE, results)
    finally:
        tracee.call(MUNMAP, room, size)
    reopening.refuse(told[len(calls) :])
    *_, slack, no_huge_pages, dumpable, _, _, heap_end = told[: len(calls)]
    if any(data[: 32 * TIMERS]):
        raise CannotDump("it has a timer set")
    tid_address, head, length = struct.unpack_from("=QQQ", data, 96)
    actions = {number: data[160 + n * SIGACTION :][:SIGACTION].hex() for n, number in enumerate(signals)}
    stack, restartable = data[120:144].hex(), tracee.restartable
    known = (registers, floats.hex(), blocked, restartable, tid_address, (head, length), stack, actions)
    subreaper, death_signal = struct.unpack_from("=II", data, 144)
    seconds = struct.unpack_from("=q8xq", data, TIMES)
    return Thread(*known, subreaper, death_signal, seconds, (slack, no_huge_pages, dumpable)), heap_end


def _calls_for_state(signals: Sequence[int], results: int) -> list[Call]:
    """The calls that tell a thread's state. They write to the page at `results`."""
    return [
        *((GETITIMER, timer, results + 32 * timer) for timer in range(TIMERS)),
        (PRCTL, PR_GET_TID_ADDRESS, results + 96, 0, 0, 0),
        (GET_ROBUST_LIST, 0, results + 104, results + 112),
        (SIGALTSTACK, 0, results + 120),
        (PRCTL, PR_GET_CHILD_SUBREAPER, results + 144, 0, 0, 0),
        (PRCTL, PR_GET_PDEATHSIG, results + 148, 0, 0, 0),
        *((RT_SIGACTION, number, 0, results + 160 + n * SIGACTION, 8) for n, number in enumerate(signals)),
        *((PRCTL, asked, 0, 0, 0, 0) for asked, _ in OPTIONS),
        *((CLOCK_GETTIME, clock, results + TIMES + 16 * n) for n, clock in enumerate(CLOCKS)),
        (BRK, 0),
    ]


def _handled_signals(status: Mapping[str, str]) -> list[int]:
    """The signals that the process catches or ignores."""
    masks = int(status["SigIgn"], 16) | int(status["SigCgt"], 16)
    return [number for number in range(1, 65) if masks >> (number - 1) & 1]


def open_files(pid: int, private: str, pipes: Sequence[str], *, locks: bool = False) -> list[OpenFile]:
    """Its open files. Raises `CannotDump` for one that cannot be opened again, and without `locks` for a locked
    one."""
    if processes.contents(f"/proc/{pid}/timers"):
        raise CannotDump("it has a timer set")
    own = [f"{private}/{name}" for name in pipes]
    files: list[OpenFile] = []
    numbers = sorted(map(int, os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208
    if len(numbers) > MOST_FILES:
        raise CannotDump(f"it has {len(numbers)} files open, more than the maximum of {MOST_FILES}")
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            files.append(_file(pid, number, private, own, files, locks=locks))
    return files


def _file(
    pid: int, number: int, private: str, own: Sequence[str], before: list[OpenFile], *, locks: bool
) -> OpenFile:
    link = f"/proc/{pid}/fd/{number}"
    path, found = os.readlink(link), os.stat(link)  # noqa: PTH115, PTH116
    notes = processes.contents(f"/proc/{pid}/fdinfo/{number}").decode()
    lines = [line.split(":", 1) for line in notes.splitlines()]
    info = dict(lines)
    flags, position = int(info["flags"], 8), int(info["pos"])
    held = [_lock(value, path) for name, value in lines if name == "lock"]
    if held and not locks:
        raise CannotDump(f"it holds a lock on {path}")
    if stat.S_ISFIFO(found.st_mode) and path in own:
        path = f"pipe:{path[len(private) + 1 :]}"
    elif not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or stat.S_ISCHR(found.st_mode)):
        raise CannotDump(f"it holds {path} open")
    else:
        try:
            there = os.stat(path)  # noqa: PTH116
        except OSError:
            raise CannotDump(f"it holds a file open that was removed from its path: {path}") from None
        if (there.st_dev, there.st_ino) != (found.st_dev, found.st_ino):
            raise CannotDump(f"it holds a file open whose path is now another file: {path}")
        if stat.S_ISREG(found.st_mode) and OF_A_PROCESS.match(path):
            raise CannotDump(f"it holds {path} open, which shows the memory or the state of a process")
    same = next(
        (file.number for file in before if file.path == path and share_open_file(pid, file.number, number)), -1
    )
    return OpenFile(number, path, flags & STATUS_FLAGS, position, not flags & os.O_CLOEXEC, same, tuple(held))


def _lock(text: str, path: str) -> Lock:
    """A lock as in /proc/PID/fdinfo: `1: POSIX  ADVISORY  READ 303 00:2f:12 0 EOF`. Raises `CannotDump`."""
    _, owner, _, kind, _, _, first, last = text.split()
    if owner != "POSIX" or kind not in ("READ", "WRITE"):
        raise CannotDump(f"it holds a lock of kind {owner} on {path}")
    return kind, int(first), 0 if last == "EOF" else int(last) - int(first) + 1
