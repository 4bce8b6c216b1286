"""The store's own files and folders: made, read, flushed, removed, and what the disk under them answers."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramify.fork_engine.content import write_all
from ramify.fork_engine.descent import file, remove_tree
from ramify.fork_engine.errors import SnapshotCorrupt, StoreUnusable

FOLDER_MODE, TREE_MODE, FILE_MODE = 0o700, 0o755, 0o644
"""Of the store's own folders, of the folder of one layer or image within them, of its files; whatever the umask."""

_THE_DISKS = {
    errno.ENOSPC: "free some space, or delete snapshots",
    errno.EDQUOT: "free some of the quota, or delete snapshots",
    errno.EROFS: "make it writable, or name another store",
    errno.EIO: "the disk fails: copy the store elsewhere, then `ramify fsck` the copy",
    errno.EACCES: "make it ours to write, or name another store",
    errno.EPERM: "make it ours to write, or name another store",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOLCK: "name a store on a file system that can lock files",
}


def make_folder(path: Path) -> None:
    """One of the store's own, if it is not there. Raises `StoreUnusable` where something else is."""
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise in_the_way(path) from None
    except NotADirectoryError:
        raise in_the_way(path) from None
    else:
        path.chmod(FOLDER_MODE)  # a set-id bit of the folder above is passed on


def inherit_nothing(folder: Path) -> None:
    """What is made in it has no ACL, as no layer has: a default one, of a folder above, is passed on to all below."""
    try:
        os.removexattr(folder, "system.posix_acl_default")
    except OSError as error:
        kept = (errno.EPERM, errno.EROFS)  # another user's, or for reading alone: as it is
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, *kept):
            raise


def in_the_way(path: Path) -> StoreUnusable:
    return StoreUnusable(f"{path}: something else stands where the store keeps its own. Move it away, then try again")


def sweep(path: Path) -> None:
    """Remove whatever is there, if anything is."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def read_own(path: Path) -> bytes:
    """A file that the store wrote. Raises FileNotFoundError; `SnapshotCorrupt` where a link, a folder or a pipe
    stands in its place, which nobody waits for."""
    try:
        with open_folder(path.parent) as parent, file(path.name, parent) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise _no_file(path)
            with os.fdopen(fd, "rb", closefd=False) as stream:
                return stream.read()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise
        raise _no_file(path) from None


def _no_file(path: Path) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"{path}: not a file. `ramify fsck --repair` makes it anew where it can")


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def flush_folder(folder: Path) -> None:
    with open_folder(folder) as fd:
        os.fsync(fd)


def write_new(path: Path, data: bytes) -> None:
    """A new file, not yet flushed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(fd, FILE_MODE)
        write_all(fd, data)
    finally:
        os.close(fd)


@contextmanager
def the_disks_errors(root: Path) -> Iterator[None]:
    """What the disk under the store answers, as `StoreUnusable`."""
    try:
        yield
    except OSError as error:
        todo = _THE_DISKS.get(error.errno or 0)
        if todo is None:
            raise
        where = f" at {error.filename!r}" if error.filename is not None else ""
        raise StoreUnusable(
            f"the store {root} cannot be written{where}: {error.strerror}. {todo.capitalize()}"
        ) from error
