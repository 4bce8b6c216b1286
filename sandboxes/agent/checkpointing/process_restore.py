"""Restore a Python session from its image in another world: checkpoint tier (b). Stdlib only; agent side.

The agent forks a child that is confined like any command, executes the same interpreter and stops before its first
instruction. The agent then makes the child rebuild its memory by its own system calls (linux/ptrace.py), under its
own filter, and maps its pages from the image. All sessions restored from one image share its pages until they write.

So no process leaves its namespaces, and memory that the world's code wrote gains no rights. See
docs/decisions/038-python-sessions-are-copied-into-forks.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.byte_ranges import FileReader
from ramify.sandboxes.agent.checkpointing.memory_image import copy_base_into_memory, read_into_memory
from ramify.sandboxes.agent.checkpointing.process_dump import (
    ALL_SIGNALS,
    CLOCKS,
    MADVISE,
    MMAP,
    MUNMAP,
    OPTIONS,
    PR_SET_DUMPABLE,
    PRCTL,
    RT_SIGACTION,
    SIGALTSTACK,
    identity,
)
from ramify.sandboxes.agent.checkpointing.process_image import BASE_PAGES, PAGES, Image, OpenFile
from ramify.sandboxes.agent.checkpointing.reopening import enter_removed_folder
from ramify.sandboxes.linux import kernel, process_memory, resource_limits
from ramify.sandboxes.linux.process_memory import DROPPED, NOT_FORKED, WIPED, Area
from ramify.sandboxes.linux.ptrace import CODE, ENTRY, EXIT_KILL, TRACE_EXEC, Call, Tracee

CLOSE, MREMAP, FCNTL, SET_TID_ADDRESS, OPENAT, SET_ROBUST_LIST, RSEQ = 3, 25, 72, 218, 257, 273, 334
MAY_MOVE_FIXED = 3
AT_FDCWD = -100
DO_NOT_FORK, WIPE_ON_FORK = 10, 18  # for madvise
EXECUTED = 2  # dumpable by root alone: its program may be executed and not read, so it is so again
PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 15, 35, 14
EVERYTHING = process_memory.READ | process_memory.WRITE | process_memory.EXECUTE
FLOCK = struct.Struct("=hh4xqqi4x")  # struct flock
STACK = struct.Struct("=QI4xQ")  # stack_t
MM_MAP = struct.Struct("=11QQII")
NO_AUXV, NO_FILE = 0, 0xFFFF_FFFF
STACK_DISABLED, STACK_IN_USE = 2, 1
TOP = 0x7FFF_FFFF_F000  # the end of a process's user addresses
ALIGNED = 16  # the alignment of a value that a call takes by pointer


class CannotRestore(Exception):
    """An image that cannot be restored here. The text says why."""


def check_compatible(image: Image) -> None:
    """Raise `CannotRestore` if the kernel or the interpreter differs from when the image was taken."""
    if image.program.kernel != os.uname().release:
        raise CannotRestore(f"it was dumped under kernel {image.program.kernel}, but this is {os.uname().release}")
    try:
        same = identity(image.program.path) == image.program.identity
    except OSError as error:
        raise CannotRestore(f"its interpreter cannot be found: {error}") from None
    if not same:
        raise CannotRestore(f"its interpreter has changed: {image.program.path}")


def continue_clocks(image: Image) -> None:
    """If the clocks since the machine's boot were ahead of those of today, let them go on from there in the processes
    that are forked from now on. Otherwise a program that waits for a time would wait for as long as another boot, or
    another machine, had lasted. Raises `CannotRestore`."""
    now = [int(time.clock_gettime(clock)) for clock in CLOCKS]
    ahead = [was + 1 - here if was > here else 0 for was, here in zip(image.thread.clocks, now, strict=False)]
    if not any(ahead):
        return
    try:
        kernel.move_clocks_of_children(*ahead)
    except OSError as error:
        raise CannotRestore(f"its clocks, from another boot of the machine, cannot go on: {error}") from None


def restore(
    image: Image, folder: Path, pipes: Mapping[str, int], confine: Callable[[], None], open_files: int | None
) -> int:
    """Restore the image in a new child process, which runs on from where the image was taken; return its pid.

    `pipes`: the session's own pipe ends, by name. `confine` is called in the child, and restricts it for good to what
    a command may do, except in the number of open files: to rebuild a process takes more of them than it has itself.
    `open_files`: the most that it may have then. Raises `CannotRestore`, or `OSError`.
    """
    check_compatible(image)
    continue_clocks(image)
    pages = os.open(folder / PAGES, os.O_RDONLY | os.O_CLOEXEC)
    stands = any(kept.below >= 0 for kept in image.areas)
    base = os.open(folder / BASE_PAGES, os.O_RDONLY | os.O_CLOEXEC) if stands else os.dup(pages)
    go, go_in = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            become_program(image, (base, pages), pipes, confine, go)
        try:
            with Tracee.seize(pid, TRACE_EXEC | EXIT_KILL) as tracee:
                try:
                    os.write(go_in, b".")
                    tracee.await_exec()
                    rebuild(tracee, image, (base, pages))
                    resource_limits.limit_restored(pid, image.program.limits, open_files)
                except BaseException:
                    os.kill(pid, signal.SIGKILL)  # before it is released: it must not run half restored
                    raise
        except BaseException as error:
            _end(pid)
            if isinstance(error, OSError):
                raise CannotRestore(f"it could not be restored: {error}") from error
            raise
        return pid
    finally:
        for descriptor in (pages, base, go, go_in):
            os.close(descriptor)


def _end(pid: int) -> None:
    """Kill and reap a child that may have ended or been reaped already."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def become_program(
    image: Image, memory: Sequence[int], pipes: Mapping[str, int], confine: Callable[[], None], go: int
) -> None:
    """In the child: when `go` is written to, open the image's files and execute its program. Does not return.

    By then the agent traces it. Later it could not: the child closes itself to that when it is confined.
    """
    program = image.program
    try:
        os.read(go, 1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        resource_limits.raise_open_files()
        lowest = _first_own_descriptor(image.files)
        above = [fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, lowest) for source in memory]
        held = {name: fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, lowest) for name, pipe in pipes.items()}
        program.scheduling.apply()
        confine()
        kernel.close_all_but((0, 1, 2, *above, *held.values()))  # before any path is followed
        if program.cwd_removed:
            enter_removed_folder(Path(program.cwd))
        else:
            os.chdir(program.cwd)
        os.umask(program.umask)
        opened: dict[int, int] = {}
        for file in image.files:
            opened[file.number] = opened[file.same_as] if file.same_as >= 0 else _open(file, held, lowest)
        for target, source in opened.items():
            os.dup2(source, target)
        for target, source in zip((lowest - 2, lowest - 1), above, strict=True):
            os.dup2(source, target)
        kernel.close_all_but((*opened, lowest - 2, lowest - 1))
        os.execve(program.path, [program.path], {})
    except OSError as error:
        os.write(2, f"{program.name} could not be restored: {error}\n".encode())
    finally:
        os._exit(127)


def _first_own_descriptor(files: Sequence[OpenFile]) -> int:
    """Our own descriptors start here; the two below are the image's base pages and its own pages."""
    return max((file.number for file in files), default=2) + 3


def _open(file: OpenFile, held: Mapping[str, int], lowest: int) -> int:
    kind, _, name = file.path.partition(":")
    if kind == "pipe":
        return held[name]
    descriptor = os.open(file.path, file.flags & ~os.O_CREAT | os.O_CLOEXEC)
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(descriptor)
    if file.position and not file.flags & os.O_PATH:
        os.lseek(moved, file.position, os.SEEK_SET)
    return moved


def written_files(image: Image) -> set[str]:
    """The paths of files that the process may write to."""
    opened = {file.path for file in image.files if file.flags & os.O_ACCMODE != os.O_RDONLY}
    return opened | {kept.area.file for kept in image.areas if kept.area.shared_file}


def rebuild(
    tracee: Tracee,
    image: Image,
    memory: tuple[int, int],
    *,
    shares: bool = True,
    written: Collection[str] = (),
) -> None:
    """Rebuild the process, from the first instruction of a new program to the instruction where the image stopped.

    `memory`: descriptors of its base's pages and of its own. `shares`: map them, so that all that are restored from
    the image share them; else copy them. `written`: files that other processes write to. What this one has mapped of
    them is opened for writing, too: memory mapped from a lower layer would not show what is written later.
    """
    tracee.blocked = ALL_SIGNALS
    mine = process_memory.areas(tracee.pid)
    kernels = {area.name: area for area in mine if area.name in process_memory.KERNELS}
    wanted = {area.name: area for area in image.kernels}
    if {name: area.size for name, area in kernels.items()} != {name: area.size for name, area in wanted.items()}:
        raise CannotRestore("its vDSO has a different size here")
    tracee.step_from(kernels["[vdso]"])
    seen = {kept.area.file for kept in image.areas if "s" in kept.area.modes}
    written = {kept.area.file for kept in image.areas if kept.area.shared_file} | seen.intersection(written)
    paths = sorted({kept.area.file for kept in image.areas if kept.area.file and not kept.mapped})
    pointer_calls = _pointer_calls(image)
    values = [*(os.fsencode(path) + b"\0" for path in paths), *(data for data, _ in pointer_calls)]
    begin = 2 * len(kernels) + 2 + len(paths)
    maps = sum(1 for _ in _map_calls(image, dict.fromkeys(paths, -1), shares=shares))
    then = maps + len(pointer_calls) + sum(1 for _ in _value_calls(image))
    scratch = _ScratchMemory(max(begin, then), values)
    taken = [*mine, *image.kernels, *(kept.area for kept in image.areas)]
    scratch.at = process_memory.gap(taken, scratch.size + sum(area.size for area in kernels.values()))
    tracee.call(
        MMAP,
        scratch.at,
        scratch.size,
        EVERYTHING,
        process_memory.PRIVATE | process_memory.ANONYMOUS | process_memory.FIXED,
        -1,
        0,
    )
    os.pwrite(tracee.memory, scratch.values, scratch.address(0))
    opened = tracee.run(
        [
            *_unmap_calls(kernels, wanted, scratch),
            *(
                (OPENAT, AT_FDCWD, scratch.address(n), os.O_CLOEXEC | (os.O_RDWR if path in written else 0), 0)
                for n, path in enumerate(paths)
            ),
        ],
        scratch.at,
    )
    files = dict(zip(paths, opened[len(opened) - len(paths) :], strict=True))
    tracee.run(
        [
            *_map_calls(image, files, shares=shares),
            *(call(scratch.address(n)) for n, (_, call) in enumerate(pointer_calls, len(paths))),
            *_value_calls(image),
        ],
        scratch.at,
    )
    base, pages = memory[0], FileReader(memory[1])
    for kept in image.areas:
        if kept.below >= 0 and not shares:
            copy_base_into_memory(tracee.memory, base, kept)
        if not kept.mapped or not shares:
            read_into_memory(tracee.memory, pages, kept)
    tracee.step_from(wanted["[vdso]"])
    _fix_identity(tracee, image)
    tracee.call(MUNMAP, scratch.at, scratch.size)
    tracee.floats = bytes.fromhex(image.thread.floats)
    tracee.registers = image.thread.registers
    tracee.blocked = image.thread.blocked


class _ScratchMemory:
    """Our scratch memory in the new process: the table of calls, and behind it the values that they point to."""

    def __init__(self, calls: int, values: Sequence[bytes]) -> None:
        self._values = -(-(CODE + calls * ENTRY.size) // process_memory.PAGE) * process_memory.PAGE
        padded = [value.ljust(-(-len(value) // ALIGNED) * ALIGNED, b"\0") for value in values]
        self._offsets = list(itertools.accumulate(map(len, padded), initial=self._values))
        self.values = b"".join(padded)
        self.size = -(-self._offsets[-1] // process_memory.PAGE) * process_memory.PAGE
        self.at = 0

    def address(self, number: int) -> int:
        """Of a value, by its place among them."""
        return self.at + self._offsets[number]


def _unmap_calls(kernels: Mapping[str, Area], wanted: Mapping[str, Area], scratch: _ScratchMemory) -> Iterator[Call]:
    """Unmap everything but our scratch memory and the kernel's areas; move those to their addresses in the image."""
    aside = at = scratch.at + scratch.size
    for area in kernels.values():
        yield (MREMAP, area.start, area.size, area.size, MAY_MOVE_FIXED, at)
        at += area.size
    yield (MUNMAP, process_memory.PAGE, scratch.at - process_memory.PAGE)
    yield (MUNMAP, at, TOP - at)
    for name, area in kernels.items():
        yield (MREMAP, aside, area.size, area.size, MAY_MOVE_FIXED, wanted[name].start)
        aside += area.size


def _map_calls(image: Image, files: Mapping[str, int], *, shares: bool) -> Iterator[Call]:
    lowest = _first_own_descriptor(image.files)
    base, pages = lowest - 2, lowest - 1
    for kept in image.areas:
        area, source, offset = kept.area, -1, 0
        flags = area.flags
        if kept.below >= 0 and shares:
            flags, source, offset = flags & ~process_memory.ANONYMOUS, base, kept.below
        elif kept.mapped and shares:
            flags, source, offset = flags & ~process_memory.ANONYMOUS, pages, kept.at
        elif area.file:
            source, offset = files[area.file], area.offset
        yield (MMAP, area.start, area.size, area.protection, flags, source, offset)
        if WIPED in area.told and DROPPED not in area.told:
            yield (MADVISE, area.start, area.size, WIPE_ON_FORK)
        if NOT_FORKED in area.told:
            yield (MADVISE, area.start, area.size, DO_NOT_FORK)
    for descriptor in (*files.values(), base, pages):
        yield (CLOSE, descriptor)


def _pointer_calls(image: Image) -> list[tuple[bytes, Callable[[int], Call]]]:
    """What the kernel is told through a pointer: the data, and the call as a function of the data's address."""
    thread = image.thread
    *places, heap_end = image.places
    layout = MM_MAP.pack(*places[:5], heap_end, *places[5:], NO_AUXV, 0, NO_FILE)
    name = os.fsencode(image.program.name) + b"\0"
    pointer_calls: list[tuple[bytes, Callable[[int], Call]]] = [
        (layout, lambda at: (PRCTL, PR_SET_MM, PR_SET_MM_MAP, at, MM_MAP.size, 0)),
        (name, lambda at: (PRCTL, PR_SET_NAME, at, 0, 0, 0)),
    ]
    stack, flags, size = STACK.unpack(bytes.fromhex(thread.stack))
    if not flags & STACK_DISABLED:
        pointer_calls.append((STACK.pack(stack, flags & ~STACK_IN_USE, size), lambda at: (SIGALTSTACK, at, 0)))
    for file in image.files:
        for kind, first, length in file.locks:  # after all that closes files, which would drop them
            lock = FLOCK.pack(fcntl.F_RDLCK if kind == "READ" else fcntl.F_WRLCK, os.SEEK_SET, first, length, 0)
            pointer_calls.append((lock, functools.partial(_lock, file.number)))
    for number, action in thread.actions.items():
        pointer_calls.append((bytes.fromhex(action), functools.partial(_action, int(number))))
    return pointer_calls


def _lock(number: int, at: int) -> Call:
    return (FCNTL, number, fcntl.F_SETLK, at)


def _action(number: int, at: int) -> Call:
    return (RT_SIGACTION, number, at, 0, 8)


def _value_calls(image: Image) -> Iterator[Call]:
    """What the kernel is told by value."""
    thread = image.thread
    if thread.tid_address:
        yield (SET_TID_ADDRESS, thread.tid_address)
    if thread.robust[0]:
        yield (SET_ROBUST_LIST, *thread.robust)
    for file in image.files:
        if not file.kept_on_exec:
            yield (FCNTL, file.number, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    for (_, option), value in zip(OPTIONS, thread.options, strict=False):
        if (option, value) != (PR_SET_DUMPABLE, EXECUTED):
            yield (PRCTL, option, value, 0, 0, 0)


def _fix_identity(tracee: Tracee, image: Image) -> None:
    """Fix what depends on the process's identity: its thread id, and its area for restartable sequences."""
    address = image.thread.tid_address
    if address and os.pread(tracee.memory, 4, address) == struct.pack("=I", image.pid):  # glibc keeps it there
        os.pwrite(tracee.memory, struct.pack("=I", tracee.pid), address)
    address, length, signature = image.thread.restartable
    if address:
        tracee.call(RSEQ, address, length, 0, signature)
