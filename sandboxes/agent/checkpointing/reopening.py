"""What a restored process has to open again: by which path, and whether it may. Stdlib only; agent side.

A process keeps an open file whose mode was changed later. A restored one opens it again, with no more rights than the
process has: what that forbids is found before anything is dumped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.memory_image import CannotDump, StoredArea
from ramify.sandboxes.agent.checkpointing.process_image import OpenFile, Program
from ramify.sandboxes.linux import kernel, process_memory
from ramify.sandboxes.linux.process_memory import PAGE
from ramify.sandboxes.linux.ptrace import CODE, ENTRY, Tracee

MMAP, MUNMAP, FACCESSAT = 9, 11, 269  # x86_64
AT_FDCWD = -100
REMOVED = " (deleted)"  # what the kernel adds to the path of a removed file or folder
IN_TURN = 128  # paths that are asked for at once
LONGEST_PATH = 4096


def with_openable_paths(kept: Sequence[StoredArea], points: Sequence[str]) -> list[StoredArea]:
    """Add the paths at which the mapped files can be opened. Raises `CannotDump`.

    If a home is itself an overlay below the world's overlay, the kernel reports the path within the lower one.
    """
    names = {(one.area.name, one.area.inode): "" for one in kept if one.area.file and not one.mapped}
    for name, inode in names:
        within = [path for point in points if _inode(path := point.rstrip("/") + name) == inode]
        if not within and _inode(name) < 0:
            raise CannotDump(f"it has mapped a file that is not found at its path: {name}")
        names[name, inode] = within[0] if within else name
    return [
        replace(one, area=replace(one.area, name=names.get((one.area.name, one.area.inode), one.area.name)))
        for one in kept
    ]


def _inode(path: str) -> int:
    """The inode number of a file, -1 if there is none."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116  (hundreds of libraries)
    except OSError:
        return -1


def refuse_what_cannot_be_opened(
    tracee: Tracee, program: Program, files: Sequence[OpenFile], kept: Sequence[StoredArea]
) -> None:
    """Raise `CannotDump` if this process may not open by its path what a restored one opens: it is asked itself."""
    wanted = dict[str, int]()
    for path, mode in _wanted(program, files, kept):
        wanted[path] = wanted.get(path, 0) | mode
    paths = sorted(wanted)
    for first in range(0, len(paths), IN_TURN):
        _ask(tracee, {path: wanted[path] for path in paths[first : first + IN_TURN]})


def _wanted(program: Program, files: Sequence[OpenFile], kept: Sequence[StoredArea]) -> Iterator[tuple[str, int]]:
    yield program.path, os.X_OK
    if not program.cwd_removed:
        yield program.cwd, os.X_OK
    for file in files:
        if file.path.startswith("/") and not file.flags & os.O_PATH:
            kind = file.flags & os.O_ACCMODE
            yield file.path, {os.O_RDONLY: os.R_OK, os.O_WRONLY: os.W_OK}.get(kind, os.R_OK | os.W_OK)
    for area in (one.area for one in kept if one.area.file and not one.mapped):
        yield area.file, os.R_OK | os.W_OK if area.shared_file else os.R_OK


def _ask(tracee: Tracee, wanted: Mapping[str, int]) -> None:
    texts = [os.fsencode(path) + b"\0" for path in wanted]
    paths = -(-(CODE + len(wanted) * ENTRY.size) // PAGE) * PAGE
    size = paths + len(wanted) * LONGEST_PATH
    modes = process_memory.READ | process_memory.WRITE | process_memory.EXECUTE
    room = tracee.call(MMAP, 0, size, modes, process_memory.PRIVATE | process_memory.ANONYMOUS, -1, 0)
    try:
        begins = [room + paths + sum(map(len, texts[:number])) for number in range(len(texts))]
        os.pwrite(tracee.memory, b"".join(texts), room + paths)
        calls = [(FACCESSAT, AT_FDCWD, begin, mode) for begin, mode in zip(begins, wanted.values(), strict=True)]
        results = tracee.try_all(calls, room)
    finally:
        tracee.call(MUNMAP, room, size)
    for path, result in zip(wanted, results, strict=True):
        if result < 0:
            raise CannotDump(f"it could not open {path} again: {os.strerror(-result)}")


def enter_removed_folder(path: Path) -> None:
    """Enter a folder that is gone from `path`. As in the dumped process, `..` leads to where it was."""
    try:
        _make_enter_and_remove(path)
    except OSError:  # nobody may make it there
        _make_enter_and_remove(Path("/dev/shm/removed"))


def _make_enter_and_remove(path: Path) -> None:
    """Leave the folder above as it was: a seal must not find a change in it."""
    above = next(folder for folder in path.parents if folder.is_dir())
    place, *below = path.relative_to(above).parts
    place = f".removed-{os.getpid()}"
    made = [str(Path(place, *below[:count])) for count in range(len(below) + 1)]
    with contextlib.ExitStack() as held:
        held.callback(os.close, folder := kernel.open_folder(str(above)))
        before = os.fstat(folder)
        for name in made:
            os.mkdir(name, dir_fd=folder)
        held.callback(os.close, inner := os.open(made[-1], os.O_PATH | os.O_DIRECTORY, dir_fd=folder))
        os.fchdir(inner)
        for name in reversed(made):
            os.rmdir(name, dir_fd=folder)
        with contextlib.suppress(PermissionError):
            os.utime(".", ns=(before.st_atime_ns, before.st_mtime_ns), dir_fd=folder)
