"""What a restored process has to open again: by which path, and whether it may. Stdlib only; agent side.

A process keeps an open file whose mode was changed later. A restored one opens it again, with no more rights than the
process has: what that forbids is found before anything is dumped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ramify.sandboxes.agent.checkpointing.memory_image import CannotDump
from ramify.sandboxes.agent.checkpointing.process_image import OpenFile, Program
from ramify.sandboxes.linux import kernel
from ramify.sandboxes.linux.process_memory import Area, FileId
from ramify.sandboxes.linux.ptrace import Call

FACCESSAT = 269  # x86_64
AT_FDCWD = -100
REMOVED = " (deleted)"  # what the kernel adds to the path of a removed file or folder
NEWLINE = (
    "\\012"  # what the kernel writes for a newline in the path of a mapped file; other bytes it writes as they are
)


def with_openable_paths(
    found: Sequence[Area], restored_from: Collection[FileId], points: Sequence[str]
) -> list[Area]:
    """Give the mapped files the paths at which they can be opened. Raises `CannotDump`.

    If a home is itself an overlay below the world's overlay, the kernel reports the path within the lower one.
    `restored_from`: files of images, which are not opened by a path.
    """
    names = {(area.name, area.inode): "" for area in found if area.inode and area.of not in restored_from}
    for name, inode in names:
        if NEWLINE in name:
            raise CannotDump(f"it has mapped a file whose name may hold a newline: {name}")
        within = [path for point in points if _inode(path := point.rstrip("/") + name) == inode]
        if not within and _inode(name) < 0:
            raise CannotDump(f"it has mapped a file that is not found at its path: {name}")
        names[name, inode] = within[0] if within else name
    return [
        area if (name := names.get((area.name, area.inode), area.name)) == area.name else replace(area, name=name)
        for area in found
    ]


def _inode(path: str) -> int:
    """The inode number of a file, -1 if there is none."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116  (hundreds of libraries)
    except OSError:
        return -1


class Reopening:
    """What a restored process opens again, and how. The dumped one is asked whether it may, by `calls`."""

    def __init__(
        self, program: Program, files: Sequence[OpenFile], found: Sequence[Area], restored_from: Collection[FileId]
    ) -> None:
        self._wanted = dict[str, int]()
        for path, mode in _wanted(program, files, (area for area in found if area.of not in restored_from)):
            self._wanted[path] = self._wanted.get(path, 0) | mode
        self.paths = b"".join(os.fsencode(path) + b"\0" for path in self._wanted)

    def calls(self, at: int) -> list[Call]:
        """The calls that ask, one a path. `at`: the address of `paths` in the process."""
        calls: list[Call] = []
        for path, mode in self._wanted.items():
            calls.append((FACCESSAT, AT_FDCWD, at, mode))
            at += len(os.fsencode(path)) + 1
        return calls

    def refuse(self, results: Sequence[int]) -> None:
        """Raise `CannotDump` for the first path that the process may not open."""
        for path, result in zip(self._wanted, results, strict=True):
            if result < 0:
                raise CannotDump(f"it could not open {path} again: {os.strerror(-result)}")


def _wanted(program: Program, files: Sequence[OpenFile], found: Iterable[Area]) -> Iterator[tuple[str, int]]:
    yield program.path, os.X_OK
    if not program.cwd_removed:
        yield program.cwd, os.X_OK
    for file in files:
        if file.path.startswith("/") and not file.flags & os.O_PATH:
            kind = file.flags & os.O_ACCMODE
            yield file.path, {os.O_RDONLY: os.R_OK, os.O_WRONLY: os.W_OK}.get(kind, os.R_OK | os.W_OK)
    for area in found:
        if area.file:
            yield area.file, os.R_OK | os.W_OK if area.shared_file else os.R_OK


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
