"""Create a tree on disk from entries: layers, plain copies, checkouts into an empty folder."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.filesystem.file_content import copy_bytes, digest_fd, write_all
from ramify.fork_engine.filesystem.openat import OpenatWalker, file, open_folder, proc_path
from ramify.fork_engine.filesystem.scan import OPAQUE
from ramify.fork_engine.types import Entry, EntryKind

Place = Callable[[str, Entry, int, str], None]
"""Creates one complete file: (its path, its entry, the open folder that will hold it, its name there)."""


def write_tree(root: Path, entries: Mapping[str, Entry], top: Entry, place: Place) -> None:
    """Fill the empty folder `root`; `top` is its own entry. Folders stay writable until the end, then get their modes
    and times."""
    paths = sorted(entries)
    with OpenatWalker(root, grant=0o700) as to, OpenatWalker(root, grant=0o700) as linked:
        for path in paths:
            entry = entries[path]
            parent, name = to.parent(path)
            if entry.kind is EntryKind.DIR:
                os.mkdir(name, 0o700, dir_fd=parent)
            elif entry.link:
                first, first_name = linked.parent(entry.link)
                os.link(first_name, name, src_dir_fd=first, dst_dir_fd=parent, follow_symlinks=False)
            elif entry.kind is EntryKind.FILE:
                place(path, entry, parent, name)
            else:
                make_special(entry, parent, name)
        for path in reversed(paths):
            if entries[path].kind is EntryKind.DIR:
                parent, name = to.parent(path)
                finish_folder(entries[path], parent, name)
        finish_folder(top, to.root, ".")


def make_special(entry: Entry, parent: int, name: str) -> None:
    """Create a link, a FIFO or a whiteout."""
    if entry.kind is EntryKind.WHITEOUT:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
        return
    if entry.kind is EntryKind.SYMLINK:
        os.symlink(entry.target, name, dir_fd=parent)
    else:
        os.mkfifo(name, 0o600, dir_fd=parent)
        pinned = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            Path(proc_path(pinned)).chmod(entry.mode)
        finally:
            os.close(pinned)
    os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)


def finish_folder(entry: Entry, parent: int, name: str, *, times: bool = True) -> None:
    opened = open_folder(name, parent, grant=0o700)
    try:
        opened.restore = None  # keep the entry's mode
        if entry.opaque:
            os.setxattr(opened.fd, OPAQUE, b"y")
        finish(entry, opened.fd, times=times)
    finally:
        opened.close()


def finish(entry: Entry, fd: int, *, times: bool = True) -> None:
    """Set the attributes, the mode and, last, the times of an open file or folder."""
    for name, value in entry.xattrs:
        os.setxattr(fd, name, bytes.fromhex(value))
    os.fchmod(fd, entry.mode)
    if times:
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))


def create_file(entry: Entry, parent: int, name: str, fill: Callable[[int], None]) -> None:
    """Create a file with the entry's mode, times and attributes. `fill` writes its bytes."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        fill(fd)
        finish(entry, fd)
    finally:
        os.close(fd)


def place_bytes(data: bytes, entry: Entry, parent: int, name: str) -> None:
    create_file(entry, parent, name, lambda fd: write_all(fd, data))


def place_copy(source: OpenatWalker, at: str, entry: Entry, parent: int, name: str, *, verify: bool) -> None:
    """Copy the file at `at`. With `verify`, raise if the copy does not match `entry`."""

    def fill(dest: int) -> None:
        from_fd, from_name = source.parent(at)
        with file(from_name, from_fd) as fd:
            copy_bytes(fd, dest)
        if verify and digest_fd(dest) != entry.digest:
            raise ForkEngineError(f"{at}: changed while it was being sealed. Stop what writes to it, then seal again")

    create_file(entry, parent, name, fill)


def place_link(source: OpenatWalker, at: str, entry: Entry, parent: int, name: str) -> None:
    """Hard-link the file at `at`, which is immutable as everything in a layer. Copies it if the file system's link
    limit is reached."""
    from_fd, from_name = source.parent(at)
    try:
        os.link(from_name, name, src_dir_fd=from_fd, dst_dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EMLINK, errno.EXDEV, errno.EPERM):
            raise
        place_copy(source, at, entry, parent, name, verify=False)
