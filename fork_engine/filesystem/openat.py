"""Walk a tree by file descriptors (openat), so that no symbolic link and no renamed folder can lead out of it.

Every path component is opened relative to an open folder, with O_NOFOLLOW. If a folder or file that belongs to us has
a mode that keeps us from opening it (000, 0200), its mode is widened while it is open and then restored, because the
mode is part of a snapshot's content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def split_path(path: str) -> tuple[str, str]:
    """Return (folder, name) of a path inside a tree. The root folder is ""."""
    folder, _, name = path.rpartition("/")
    return folder, name


def parent_folders(path: str) -> Iterator[str]:
    """Yield the folders above a path, nearest first, without the root."""
    while path := split_path(path)[0]:
        yield path


def proc_path(fd: int) -> str:
    """Return a path to exactly this open file, for system calls that do not accept an O_PATH descriptor."""
    return f"/proc/self/fd/{fd}"


@dataclass(slots=True)
class OpenFolder:
    """An open folder and, if its mode was widened to open it, the mode to restore."""

    fd: int
    restore: int | None = None

    def close(self) -> None:
        try:
            if self.restore is not None:
                os.fchmod(self.fd, self.restore)
        finally:
            os.close(self.fd)


def open_folder(name: str | Path, dir_fd: int | None = None, *, grant: int = 0o500) -> OpenFolder:
    """Open a folder, but never a link to one. `grant`: permission bits to add to its mode while it is open, if it is
    ours.

    Raises NotADirectoryError for a link or a file (also in place of ELOOP), PermissionError if the folder is not
    accessible.
    """
    try:
        fd = os.open(name, _DIR, dir_fd=dir_fd)
    except PermissionError:
        return _open_closed_folder(name, dir_fd, grant)
    try:
        ours = os.geteuid()
        if ours == 0:  # root: no mode restricts it
            return OpenFolder(fd)
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != ours or mode & grant == grant:
            return OpenFolder(fd)
        os.fchmod(fd, mode | grant)
        return OpenFolder(fd, mode)
    except BaseException:
        os.close(fd)
        raise


def _open_closed_folder(name: str | Path, dir_fd: int | None, grant: int) -> OpenFolder:
    """Open a folder whose mode denies it to us: an O_PATH descriptor, which needs no read permission, widens the
    mode."""
    pinned = os.open(name, _PATH, dir_fd=dir_fd)
    try:
        found = os.fstat(pinned)
        mode = stat.S_IMODE(found.st_mode)
        lent = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and mode & grant != grant
        if lent:
            Path(proc_path(pinned)).chmod(mode | grant)
        return OpenFolder(os.open(".", _DIR, dir_fd=pinned), mode if lent else None)
    finally:
        os.close(pinned)


@contextmanager
def folder(name: str | Path, dir_fd: int | None = None, *, grant: int = 0o500) -> Iterator[int]:
    opened = open_folder(name, dir_fd, grant=grant)
    try:
        yield opened.fd
    finally:
        opened.close()


@contextmanager
def file(name: str, dir_fd: int, *, grant: bool = True) -> Iterator[int]:
    """Open a regular file for reading. With `grant`, also a file of ours whose mode denies reading."""
    try:
        fd = os.open(name, _FILE, dir_fd=dir_fd)
    except PermissionError:
        if not grant:
            raise
        with _widened(name, dir_fd, stat.S_IRUSR) as pinned:
            fd = os.open(proc_path(pinned), _FILE & ~os.O_NOFOLLOW)
            try:
                yield fd
            finally:
                os.close(fd)
        return
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _widened(name: str, dir_fd: int, bits: int) -> Iterator[int]:
    """Yield an O_PATH descriptor of a file whose mode includes `bits` inside this block."""
    pinned = os.open(name, _PATH, dir_fd=dir_fd)
    try:
        mode = stat.S_IMODE(os.fstat(pinned).st_mode)
        Path(proc_path(pinned)).chmod(mode | bits)
        try:
            yield pinned
        finally:
            Path(proc_path(pinned)).chmod(mode)
    finally:
        os.close(pinned)


def set_mode(name: str, dir_fd: int, mode: int) -> None:
    """Set the mode of a file or folder, never of the target of a link."""
    pinned = os.open(name, _PATH, dir_fd=dir_fd)
    try:
        Path(proc_path(pinned)).chmod(mode)
    finally:
        os.close(pinned)


def set_xattrs(name: str, dir_fd: int, *, drop: Callable[[str], bool], add: Mapping[str, bytes]) -> None:
    """Change extended attributes of a file or folder, even if its mode forbids writing."""
    with _widened(name, dir_fd, stat.S_IRUSR | stat.S_IWUSR) as pinned:
        for attribute in os.listxattr(proc_path(pinned)):
            if drop(attribute):
                os.removexattr(proc_path(pinned), attribute)
        for attribute, value in add.items():
            os.setxattr(proc_path(pinned), attribute, value)


class OpenatWalker:
    """The open folders from a root down to the current one. Moving to a neighbour reopens only what differs."""

    def __init__(self, root: Path, *, grant: int = 0o500) -> None:
        self._lend = grant
        self._parts: list[str] = []
        self._open = [open_folder(root.resolve(), grant=grant)]

    def __enter__(self) -> OpenatWalker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def root(self) -> int:
        return self._open[0].fd

    def folder(self, path: str) -> int:
        """Return a descriptor of the folder at `path`, valid until the next call."""
        parts = path.split("/") if path else []
        same = 0
        while same < min(len(parts), len(self._parts)) and parts[same] == self._parts[same]:
            same += 1
        self._pop_to(same)
        for part in parts[same:]:
            self._open.append(open_folder(part, self._open[-1].fd, grant=self._lend))
            self._parts.append(part)
        return self._open[-1].fd

    def parent(self, path: str) -> tuple[int, str]:
        """Return (a descriptor of the folder that holds `path`, its name in that folder)."""
        above, name = split_path(path)
        return self.folder(above), name

    def _pop_to(self, depth: int) -> None:
        while len(self._parts) > depth:
            self._parts.pop()
            self._open.pop().close()

    def close(self) -> None:
        self._pop_to(0)
        if self._open:
            self._open.pop().close()


@dataclass(slots=True)
class _Emptying:
    """A folder that is being emptied: its identity, and the folders that are left in it."""

    inode: tuple[int, int]
    folders: list[str]


def remove_tree(
    name: str | Path, dir_fd: int | None = None, *, seen: Callable[[os.stat_result], None] | None = None
) -> None:
    """Remove a folder and everything below it, whatever the modes and however deep: only one folder is open at a
    time.

    Files are unlinked and never chmodded, because a layer may share their inodes. `seen` gets each file's stat just
    before the file is removed.
    """
    fd = open_folder(name, dir_fd, grant=0o700).fd
    try:
        levels = [_without_files(fd, seen)]
        while True:
            if levels[-1].folders:
                fd = _replace_fd(fd, open_folder(levels[-1].folders[-1], fd, grant=0o700).fd)
                levels.append(_without_files(fd, seen))
                continue
            levels.pop()
            if not levels:
                break
            fd = _replace_fd(fd, os.open("..", _DIR, dir_fd=fd))
            _check_still(fd, levels[-1].inode)
            os.rmdir(levels[-1].folders.pop(), dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=dir_fd)


def _replace_fd(fd: int, other: int) -> int:
    os.close(fd)
    return other


def _without_files(fd: int, seen: Callable[[os.stat_result], None] | None) -> _Emptying:
    found, folders = os.fstat(fd), []
    with os.scandir(fd) as entries:
        children = list(entries)
    for child in children:
        if child.is_dir(follow_symlinks=False):
            folders.append(child.name)
            continue
        if seen is not None:
            seen(os.stat(child.name, dir_fd=fd, follow_symlinks=False))
        os.unlink(child.name, dir_fd=fd)
    return _Emptying((found.st_dev, found.st_ino), folders)


def _check_still(fd: int, inode: tuple[int, int]) -> None:
    """Check that ".." led back to the folder that we came from."""
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != inode:
        raise OSError(errno.EBUSY, "a folder was moved while it was being removed")


def remove_any(name: str, dir_fd: int) -> None:
    """Remove a file or folder of this name, if there is one."""
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        remove_tree(name, dir_fd)
