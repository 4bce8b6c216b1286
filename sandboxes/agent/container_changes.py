"""Copy changes outside a container's workspace to an overlay's upper folder, and apply such folders. Stdlib only.

Both run inside, as the world's own user: an exec runs `capture` when the world is sealed, and the agent runs `apply`
before the first command. The format is the store's: a character device 0/0 marks a removed path, and
`user.overlay.opaque` a folder that hides the image's folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

MARKS = "user.overlay."
OPAQUE = f"{MARKS}opaque"
NOT_HERE = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENODATA, errno.EINVAL})  # for an attribute
LAYERS = "/ramify/outside"  # where a container sees the layers to apply, ordered by name


def capture(changed: Iterable[str], removed: Iterable[str], root: Path, to: Path) -> None:
    """Copy the `changed` paths of `root` into the folder `to`, and mark the `removed` ones. Paths are absolute.

    A removed path that exists is a folder that was made anew.
    """
    to.mkdir()
    folders: list[tuple[Path, Path]] = []
    gone = [path for path in removed if not os.path.lexists(_under(root, path))]
    for path in sorted({*changed, *removed} - set(gone)):  # a folder before its entries
        source, target = _under(root, path), _under(to, path)
        _make_parents(root, to, target.parent, folders)
        if os.path.lexists(source):  # else it went away since the engine looked
            _copy(source, target)
            if source.is_dir() and not source.is_symlink():
                folders.append((source, target))
    for path in gone:
        target = _under(to, path)
        _make_parents(root, to, target.parent, folders)
        os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
    _finish(folders)
    for path in set(removed) - set(gone):
        if _under(to, path).is_dir():
            os.setxattr(_under(to, path), OPAQUE, b"y")


def layer_folders(count: int) -> list[Path]:
    """Where a container sees its layers. Others in the same place are the image's own."""
    return [Path(LAYERS) / f"{number:06}" for number in range(count)]


def apply(layers: Iterable[Path], root: Path) -> None:
    """Apply the changes in these folders to `root`, in order."""
    for layer in layers:
        folders: list[tuple[Path, Path]] = []
        for folder, names, files in os.walk(layer):
            for name in (*names, *files):
                source = Path(folder, name)
                target = root / source.relative_to(layer)
                _lay(source, target)
                if source.is_dir() and not source.is_symlink():
                    folders.append((source, target))
        _finish(folders)


def _lay(source: Path, target: Path) -> None:
    status = source.lstat()
    if stat.S_ISCHR(status.st_mode):
        _remove(target)
    elif stat.S_ISDIR(status.st_mode):
        if OPAQUE in os.listxattr(source) or not target.is_dir() or target.is_symlink():
            _remove(target)
        target.mkdir(exist_ok=True)
    else:
        _remove(target)
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    status = source.lstat()
    if stat.S_ISLNK(status.st_mode):
        target.symlink_to(source.readlink())
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
    elif stat.S_ISDIR(status.st_mode):
        target.mkdir(exist_ok=True)
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(target)
        _copy_status(source, target)
    elif stat.S_ISREG(status.st_mode):
        _copy_data(source, target)
        _copy_status(source, target)
    # no sockets: their listener is gone. No devices: a snapshot must not keep what they reach.


def _copy_status(source: Path, target: Path) -> None:
    """Copy attributes, times and mode, but no marks of overlayfs: commands can plant those."""
    for name in os.listxattr(source):
        if not name.startswith(MARKS):
            try:
                os.setxattr(target, name, os.getxattr(source, name))
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
    status = source.stat()
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    target.chmod(stat.S_IMODE(status.st_mode))


def _copy_data(source: Path, target: Path) -> None:
    """Copy a file's content, and its holes as holes: a command makes a huge file of nothing in no time."""
    with contextlib.ExitStack() as opened:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        read = opened.enter_context(os.fdopen(os.open(source, flags), "rb", 0)).fileno()
        write = opened.enter_context(target.open("xb", 0)).fileno()
        size, at = os.fstat(read).st_size, 0
        os.ftruncate(write, size)
        while at < size:
            try:
                at = os.lseek(read, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nothing follows but a hole
                    raise
                return
            os.lseek(write, at, os.SEEK_SET)
            end = os.lseek(read, at, os.SEEK_HOLE)
            while at < end and (copied := os.sendfile(write, read, at, end - at)):
                at += copied
            if at < end:
                return  # it was cut meanwhile


def _make_parents(root: Path, to: Path, folder: Path, folders: list[tuple[Path, Path]]) -> None:
    """Make the folders above a change as they are in `root`; they may not have changed themselves."""
    if folder == to or folder.is_dir():
        return
    _make_parents(root, to, folder.parent, folders)
    folder.mkdir()
    folders.append((root / folder.relative_to(to), folder))


def _finish(folders: list[tuple[Path, Path]]) -> None:
    """Set modes and times of folders once all their entries exist, the deepest first.

    A folder of another user, which this user cannot have changed, is in a layer only for its entries. It gets no time
    there, since each container has its own, and it is left alone where the layer is applied.
    """
    for source, target in reversed(folders):
        if _is_ours(source) and _is_ours(target):
            _copy_status(source, target)
        elif _is_ours(target):
            shutil.copymode(source, target)
            os.utime(target, ns=(0, 0))


def _is_ours(path: Path) -> bool:
    return os.geteuid() in (0, path.stat().st_uid)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def run(listed: str, to: str) -> None:
    """Capture the changes that a JSON file lists, as `docker/backend.py` writes it, into the folder `to`."""
    changes = json.loads(Path(listed).read_text())
    try:
        capture(changes["changed"], changes["removed"], Path("/"), Path(to))
    except OSError as error:
        sys.exit(str(error))
