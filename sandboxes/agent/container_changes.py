"""What changed in a container beside its workspace, as an overlay's upper folder: taken and put back. Stdlib only.

Both run inside, as the world's own user: `capture` by an exec when a world is sealed, `apply` by the agent before its
first command. The form is the store's: a character device 0/0 where a path was removed, `user.overlay.opaque` on a
folder that hides what the image has at its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

OPAQUE = "user.overlay.opaque"
LAYERS = "/ramify/outside"  # where a container sees the layers to apply, in the order of their names


def capture(changed: Iterable[str], removed: Iterable[str], root: Path, to: Path) -> None:
    """Copy `changed` paths of `root` into the folder `to`, and mark those `removed`. Paths are absolute.

    A path that is among the removed and yet is there is a folder that was made anew.
    """
    to.mkdir()
    folders: list[tuple[Path, Path]] = []
    gone = [path for path in removed if not os.path.lexists(_under(root, path))]
    for path in sorted({*changed, *removed} - set(gone)):  # a folder before what it holds
        source, target = _under(root, path), _under(to, path)
        _make_parents(root, to, target.parent, folders)
        if os.path.lexists(source):  # else: it went since the engine looked
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


def apply(layers: Path, root: Path) -> None:
    """Bring `root` to what the folders in `layers` say, one after the other."""
    if not layers.is_dir():
        return
    for layer in sorted(layers.iterdir()):
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
        shutil.copystat(source, target)
    elif stat.S_ISREG(status.st_mode):
        shutil.copy2(source, target)  # mode, times and user attributes, too
    # a socket, a device: what would listen is gone, what could be reached is not for a snapshot


def _make_parents(root: Path, to: Path, folder: Path, folders: list[tuple[Path, Path]]) -> None:
    """Folders above a change, which may not have changed themselves, as they are in `root`."""
    if folder == to or folder.is_dir():
        return
    _make_parents(root, to, folder.parent, folders)
    folder.mkdir()
    folders.append((root / folder.relative_to(to), folder))


def _finish(folders: list[tuple[Path, Path]]) -> None:
    """Modes and times of folders, when all that belongs into them is there; the deepest first.

    A folder of somebody else's, which this user cannot have changed, is in a layer for what lies in it alone: it has
    no time there, for that is each container's own, and is left as it is where the layer is laid.
    """
    for source, target in reversed(folders):
        if _is_ours(source) and _is_ours(target):
            shutil.copystat(source, target)
        elif _is_ours(target):
            shutil.copymode(source, target)
            os.utime(target, ns=(0, 0))
        if _is_ours(target) and OPAQUE in os.listxattr(target):  # the layer's own mark came along
            os.removexattr(target, OPAQUE)


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


if __name__ == "__main__":  # outside.py LIST TO: the list as engine.py writes it
    _changes = json.loads(Path(sys.argv[1]).read_text())
    capture(_changes["changed"], _changes["removed"], Path("/"), Path(sys.argv[2]))
