"""The store's folder: where things are made, how they get their names, and what is not yet on disk.

Whatever is made gets its final name by one rename. Before that, a note is left under `unflushed/BOOT/`; it goes when
the whole file system has been flushed. A process that dies leaves the kernel's copy, which is whole. A machine that
dies leaves the note of another boot, and what it names is checked before it is believed (`SnapshotStore` does, when
it is opened).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ramify.fork_engine import crash_points
from ramify.fork_engine.close_on_fork import close_in_children, close_lock, open_lock
from ramify.fork_engine.errors import SnapshotCorrupt, StoreUnusable
from ramify.fork_engine.filesystem import openat
from ramify.fork_engine.filesystem.file_content import sync_file_system, write_all
from ramify.fork_engine.filesystem.openat import file, remove_tree

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
            raise unexpected_file_error(path) from None
    except NotADirectoryError:
        raise unexpected_file_error(path) from None
    else:
        path.chmod(FOLDER_MODE)  # a set-id bit of the folder above is passed on


def drop_default_acl(folder: Path) -> None:
    """What is made in it has no ACL, as no layer has: a default one, of a folder above, is passed on to all below."""
    try:
        os.removexattr(folder, "system.posix_acl_default")
    except OSError as error:
        kept = (errno.EPERM, errno.EROFS)  # another user's, or for reading alone: as it is
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, *kept):
            raise


def unexpected_file_error(path: Path) -> StoreUnusable:
    return StoreUnusable(f"{path}: something else stands where the store keeps its own. Move it away, then try again")


def sweep(path: Path) -> None:
    """Remove whatever is there, if anything is."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def read_store_file(path: Path) -> bytes:
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
def translate_disk_errors(root: Path) -> Iterator[None]:
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


_NOTE = re.compile(r"(layers|images|blobs|snapshots)-([0-9a-f]{64}(?:\.json)?)")


class Note(NamedTuple):
    """What is not yet known to be on disk."""

    kind: str  # the folder of the store that holds it
    name: str


class StoreFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.tmp = root / "tmp"
        self._unflushed = root / "unflushed"
        self._notes = self._unflushed / boot_id()
        self._flushing = threading.Lock()
        for made in (root, self.tmp, self._unflushed):
            make_folder(made)
        self._make_notes()
        drop_default_acl(self.tmp)

    def _make_notes(self) -> None:
        """This boot's. A store that is not ours to write, of an earlier boot, can still be read."""
        try:
            make_folder(self._notes)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise

    # Making

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """A folder of our own under tmp/, removed at the end. Its lock says that it is in use (see `forget`)."""
        while (locked := self._new_temporary()) is None:
            pass
        folder, fd = locked
        try:
            yield folder
        finally:
            try:
                remove_tree(folder)
            finally:
                close_lock(fd)

    def _new_temporary(self) -> tuple[Path, int] | None:
        """A new folder and its lock; None where `forget` took it before it was locked."""
        folder = Path(tempfile.mkdtemp(dir=self.tmp))
        try:
            fd = open_lock(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():
                return folder, fd
        close_lock(fd)
        return None

    def leftovers(self) -> Iterator[Path]:
        """What crashed processes left under tmp/, each locked against its maker while it is yielded."""
        for folder in sorted(self.tmp.iterdir()):
            if folder.is_symlink() or not folder.is_dir():
                yield folder  # no maker's: they make folders
                continue
            with suppress(FileNotFoundError):  # its owner finished meanwhile
                opened = openat.open_folder(folder, lend=0o700)
                try:
                    close_in_children(opened.fd)
                    fcntl.flock(opened.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    folder.lstat()
                    yield folder
                except BlockingIOError:
                    continue
                finally:
                    opened.close()

    def forget(self) -> None:
        """Remove what crashed processes left under tmp/."""
        for folder in self.leftovers():
            sweep(folder)

    @contextmanager
    def lock(self, *, alone: bool = False) -> Iterator[None]:
        """Held from finding or making a layer until the snapshot that names it is in place."""
        fd = self._open_lock(alone)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            close_lock(fd)

    def _open_lock(self, alone: bool) -> int:
        """A store that is not ours to write can still be read, and held against changes meanwhile."""
        path, how = self.root / "lock", os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = open_lock(path, os.O_RDWR | os.O_CREAT | how)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):  # a folder, a link, a socket
                raise unexpected_file_error(path) from None
            if alone or error.errno not in (errno.EROFS, errno.EACCES):
                raise
            fd = open_lock(path, os.O_RDONLY | how)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            close_lock(fd)
            raise unexpected_file_error(path)
        return fd

    def place(self, made: Path, kind: str, name: str) -> bool:
        """Give what was made under tmp/ its final name. False where a folder has that name already."""
        crash_points.point("written")
        note = self._note(kind, name)
        os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        crash_points.point("noted")
        target = self.root / kind / name
        try:
            made.rename(target)
        except BaseException as error:
            if isinstance(error, OSError) and target.is_dir():
                return False
            note.unlink(missing_ok=True)
            raise
        crash_points.point("placed")
        return True

    # Flushing

    def flush(self) -> None:
        """All that has its name is on disk when this returns. Costs nothing where nothing was made.

        Of many threads that ask at once one flushes; the next flushes what came meanwhile, and the others find that
        there is nothing left.
        """
        with self._flushing:
            noted = self._renamed()
            if not noted:
                return
            with open_folder(self.root) as fd:
                sync_file_system(fd)
            crash_points.point("flushed")
            for note in noted:
                note.unlink(missing_ok=True)
            crash_points.point("cleared")

    def _renamed(self) -> list[Path]:
        """The notes of what had its final name when we looked. The others' must outlast a flush that may be too early
        for their rename."""
        there = self._notes.iterdir() if self._notes.is_dir() else ()
        notes = [(path, _parsed(path.name)) for path in there]
        return [
            path for path, note in notes if note is not None and os.path.lexists(self.root / note.kind / note.name)
        ]

    def forget_notes(self) -> None:
        """Drop the notes of what is gone or never got its name. The caller holds the lock alone."""
        for path in set(self._notes.iterdir()) - set(self._renamed()):
            path.unlink()

    def _note(self, kind: str, name: str) -> Path:
        return self._notes / f"{kind}-{name}"

    def from_earlier_boots(self) -> list[Note]:
        """What was not yet on disk when the machine went down."""
        parsed = (_parsed(path.name) for boot in self._earlier() for path in boot.iterdir())
        return sorted(note for note in parsed if note is not None)

    def forget_earlier_boots(self) -> None:
        for boot in self._earlier():
            remove_tree(boot)

    def _earlier(self) -> list[Path]:
        boots = (path for path in self._unflushed.iterdir() if path.is_dir())
        return [boot for boot in boots if boot.name != self._notes.name]

    def strangers(self) -> list[str]:
        """What lies under unflushed/ and is no note."""
        found = [path for path in self._unflushed.iterdir() if not path.is_dir()]
        found += [path for boot in self._unflushed.iterdir() if boot.is_dir() for path in boot.iterdir()]
        return sorted(str(path.relative_to(self.root)) for path in found if _parsed(path.name) is None)


def _parsed(name: str) -> Note | None:
    found = _NOTE.fullmatch(name)
    return None if found is None else Note(found[1], found[2])


@functools.cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
