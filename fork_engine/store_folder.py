"""The store's folder: temporary folders, final names, locks, and the record of what is not flushed yet.

Every object is made under `tmp/` and gets its final name by one rename. Before the rename a note is left under
`unflushed/BOOT/`. The note is removed once the whole file system has been flushed. If the process dies, the kernel
still has everything. If the machine dies, the note of the earlier boot remains, and `SnapshotStore` verifies what it
names when it opens the store.
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

from ramify import paths
from ramify.fork_engine import crash_points
from ramify.fork_engine.close_on_fork import close_in_children, close_lock, open_lock
from ramify.fork_engine.errors import SnapshotCorrupt, StoreUnusable
from ramify.fork_engine.filesystem import openat
from ramify.fork_engine.filesystem.file_content import sync_file_system, write_all
from ramify.fork_engine.filesystem.openat import file, remove_tree

FOLDER_MODE, TREE_MODE, FILE_MODE = 0o700, 0o755, 0o644
"""Modes, whatever the umask is: of the store's folders, of the folder of one layer or image, of the store's files."""

_DISK_ERRORS = {
    errno.ENOSPC: "free some space, or delete snapshots",
    errno.EDQUOT: "free some of your quota, or delete snapshots",
    errno.EROFS: "make it writable, or name another store",
    errno.EIO: "the disk is failing: copy the store elsewhere, then run `ramify fsck` on the copy",
    errno.EACCES: "give yourself write permission, or name another store",
    errno.EPERM: "give yourself write permission, or name another store",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOLCK: "name a store on a file system that can lock files",
}


def make_folder(path: Path, *, emptied: bool = False) -> None:
    """Create one of the store's folders if it is missing. Raises `StoreUnusable` if something else has its name.

    `emptied`: Ramify removes whatever it finds there. Then a link counts as something else: in a store of somebody
    else it could lead to a folder of the user's.
    """
    try:
        paths.make_private(path.parent)
        path.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir() or (emptied and path.is_symlink()):
            raise unexpected_file_error(path) from None
    except NotADirectoryError:
        raise unexpected_file_error(path) from None
    else:
        path.chmod(FOLDER_MODE)  # the parent folder may pass on a set-id bit


def drop_default_acl(folder: Path) -> None:
    """Remove the folder's default ACL, which everything created in it would inherit: layers have no ACLs."""
    try:
        os.removexattr(folder, "system.posix_acl_default")
    except OSError as error:
        kept = (errno.EPERM, errno.EROFS)  # another user's folder, or a read-only file system: leave it
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, *kept):
            raise


def unexpected_file_error(path: Path) -> StoreUnusable:
    return StoreUnusable(f"{path}: something else has the name of a file of the store. Move it away, then try again")


def remove_if_present(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def read_store_file(path: Path) -> bytes:
    """Read a file that the store wrote.

    Raises FileNotFoundError if it is missing, and `SnapshotCorrupt` if a link, folder or pipe has its name. It never
    blocks on a pipe.
    """
    try:
        with open_folder(path.parent) as parent, file(path.name, parent) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise _not_a_file(path)
            with os.fdopen(fd, "rb", closefd=False) as stream:
                return stream.read()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise
        raise _not_a_file(path) from None


def _not_a_file(path: Path) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"{path}: not a file. `ramify fsck --repair` recreates it if possible")


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
    """Write a new file. It is not flushed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(fd, FILE_MODE)
        write_all(fd, data)
    finally:
        os.close(fd)


def write_durably(path: Path, text: str, *, new: bool = False) -> None:
    """Write a file whole, and return when it is on disk: readers, and a crash, find the old text or the new one.

    With `new`, raises FileExistsError if the file exists.
    """
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if new:
            os.link(temporary, path)
        else:
            Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    flush_folder(path.parent)


@contextmanager
def translate_disk_errors(root: Path) -> Iterator[None]:
    """Turn errors of the store's disk (no space, read-only, I/O error, …) into `StoreUnusable`."""
    try:
        yield
    except OSError as error:
        todo = _DISK_ERRORS.get(error.errno or 0)
        if todo is None:
            raise
        where = f" at {error.filename!r}" if error.filename is not None else ""
        raise StoreUnusable(
            f"the store {root} cannot be written{where}: {error.strerror}. {todo.capitalize()}"
        ) from error


_NOTE = re.compile(r"(layers|images|blobs|snapshots)-([0-9a-f]{64}(?:\.json)?)")


ID = re.compile(r"[0-9a-f]{64}")
"""What has another name in a folder of objects is not the store's: fsck reports it, and nothing removes it."""


class UnflushedNote(NamedTuple):
    """An object that may not be on disk yet."""

    kind: str  # the store's folder that holds it
    name: str


class StoreFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.tmp = root / "tmp"
        self._unflushed = root / "unflushed"
        self._notes = self._unflushed / boot_id()
        self._flushing = threading.Lock()
        make_folder(root)
        for made in (self.tmp, self._unflushed):
            make_folder(made, emptied=True)
        self._make_notes()
        drop_default_acl(self.tmp)

    def _make_notes(self) -> None:
        """Create the folder for this boot's notes. A read-only store can still be read without it."""
        try:
            make_folder(self._notes, emptied=True)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise

    # Making objects

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """Yield a new folder under tmp/, which is removed at the end. Its lock shows that it is in use (see
        `forget`)."""
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
        """Create a temporary folder and lock it. Returns None if it was removed before it was locked."""
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
        """Yield what crashed processes left under tmp/. Each folder is locked while it is yielded."""
        for folder in sorted(self.tmp.iterdir()):
            if folder.is_symlink() or not folder.is_dir():
                yield folder  # no process of ours made this: they make folders
                continue
            with suppress(FileNotFoundError):  # its process finished meanwhile
                opened = openat.open_folder(folder, grant=0o700)
                try:
                    close_in_children(opened.fd)
                    fcntl.flock(opened.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    folder.lstat()
                    yield folder
                except BlockingIOError:
                    continue
                finally:
                    opened.close()

    def remove_leftovers(self) -> None:
        """Remove what crashed processes left under tmp/."""
        for folder in self.leftovers():
            remove_if_present(folder)

    @contextmanager
    def lock(self, *, alone: bool = False) -> Iterator[None]:
        """Hold the store's lock: shared while a snapshot and its layers are made, `alone` (exclusive) for deletion
        and repair."""
        fd = self._open_lock(alone)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            close_lock(fd)

    def _open_lock(self, alone: bool) -> int:
        """Open the lock file. A read-only store can be locked as well, so that nothing changes while it is read."""
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
        """Rename an object made under tmp/ to its final name. Returns False if a folder has that name already."""
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
        """Return once every object with a final name is on disk. Costs nothing if nothing was made.

        If several threads call it at once, one flushes, the next one flushes what was added meanwhile, and the others
        find nothing left to do.
        """
        with self._flushing:
            noted = self._notes_of_placed()
            if not noted:
                return
            with open_folder(self.root) as fd:
                sync_file_system(fd)
            crash_points.point("flushed")
            for note in noted:
                note.unlink(missing_ok=True)
            crash_points.point("cleared")

    def _notes_of_placed(self) -> list[Path]:
        """Return the notes whose objects have their final names now. A note whose rename is still to come must
        survive this flush."""
        there = self._notes.iterdir() if self._notes.is_dir() else ()
        notes = [(path, _parse_note(path.name)) for path in there]
        return [
            path for path, note in notes if note is not None and os.path.lexists(self.root / note.kind / note.name)
        ]

    def drop_notes(self) -> None:
        """Remove the notes of objects that were deleted or never renamed. The caller holds the lock exclusively."""
        for path in set(self._notes.iterdir()) - set(self._notes_of_placed()):
            path.unlink()

    def _note(self, kind: str, name: str) -> Path:
        return self._notes / f"{kind}-{name}"

    def unflushed_at_earlier_boots(self) -> list[UnflushedNote]:
        """Return the objects that were not flushed when the machine went down."""
        parsed = (_parse_note(path.name) for boot in self._earlier_boots() for path in boot.iterdir())
        return sorted(note for note in parsed if note is not None)

    def forget_earlier_boots(self) -> None:
        for boot in self._earlier_boots():
            remove_tree(boot)

    def _earlier_boots(self) -> list[Path]:
        boots = (path for path in self._unflushed.iterdir() if path.is_dir() and not path.is_symlink())
        return [boot for boot in boots if boot.name != self._notes.name]

    def unknown_files(self) -> list[str]:
        """Return the paths under unflushed/ that are not notes."""
        found = [path for path in self._unflushed.iterdir() if not path.is_dir()]
        found += [path for boot in self._unflushed.iterdir() if boot.is_dir() for path in boot.iterdir()]
        return sorted(str(path.relative_to(self.root)) for path in found if _parse_note(path.name) is None)


def _parse_note(name: str) -> UnflushedNote | None:
    found = _NOTE.fullmatch(name)
    return None if found is None else UnflushedNote(found[1], found[2])


@functools.cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
