"""Runs as a program in a mount namespace: mount an overlay, apply the script from stdin, print what the mount shows.

It is also imported, so that the same script can be applied to a plain copy. Standard library only.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any


def perform(root: Path, script: list[tuple[str, str, str]]) -> None:
    """Perform the steps of the script that are possible; the others fail as they would for anyone. Folders are not
    renamed: overlayfs answers EXDEV, which a plain folder would not."""
    for name, path, value in script:
        place = root / path
        if any((root / above).is_symlink() for above in Path(path).parents):
            continue
        try:
            _one(name, place, value, root)
        except (OSError, shutil.Error):
            continue


def _one(name: str, place: Path, value: str, root: Path) -> None:
    if name in ("write", "append", "hole", "again") and place.is_fifo():
        return  # opening it would block until somebody opens its other end (rmtree opens before it looks)
    if name == "write" and not place.is_symlink():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(value)
    elif name == "append" and not place.is_symlink():
        with place.open("a") as file:
            file.write(value)
    elif name == "hole" and not place.is_symlink():
        with place.open("r+b") as file:
            file.truncate(200_000)
    elif name == "mkdir":
        place.mkdir(parents=True)
    elif name == "remove":
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    elif name == "again":  # a recreated folder hides what the old one held
        shutil.rmtree(place)
        place.mkdir()
        (place / "anew").write_text(value)
    elif name == "chmod" and not place.is_symlink():
        place.chmod(int(value, 8) | (0o700 if place.is_dir() else 0))
    elif name == "symlink":
        place.symlink_to(value)
    elif name == "fifo":
        os.mkfifo(place)
    elif name == "link" and not place.is_symlink():
        os.link(place, root / value)
    elif name == "rename" and not (place.is_dir() and not place.is_symlink()) and not (root / value).is_dir():
        place.rename(root / value)
    elif name == "touch":
        os.utime(place, ns=(int(value), int(value)), follow_symlinks=False)
    elif name == "xattr" and not place.is_symlink():
        os.setxattr(place, "user.note", value.encode())


def shown(root: Path, *, times: bool = True) -> dict[str, list[Any]]:
    """Return everything that a snapshot promises to restore, as JSON."""
    found: dict[str, list[Any]] = {".": [root.stat().st_mode, root.stat().st_mtime_ns if times else 0]}
    inodes: dict[int, list[str]] = {}
    for folder, names, files in os.walk(root):
        for name in names + files:
            path = Path(folder, name)
            status, at = path.lstat(), os.fspath(Path(folder, name).relative_to(root))
            content, notes = "", []
            if stat.S_ISLNK(status.st_mode):
                content = os.fspath(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                inodes.setdefault(status.st_ino, []).append(at)
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                notes = sorted(
                    [n, os.getxattr(path, n).hex()] for n in os.listxattr(path) if n.startswith("user.note")
                )
            found[at] = [status.st_mode, content, notes, status.st_mtime_ns if times else 0, []]
    for paths in inodes.values():
        if len(paths) > 1:
            for at in paths:
                found[at][4] = sorted(paths)
    return found


def mount(lowers: list[str], upper: str, work: str, merged: str, *, userxattr: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"lowerdir={':'.join(reversed(lowers))},upperdir={upper},workdir={work}"
    options += ",userxattr" if userxattr else ""
    if libc.mount(b"overlay", merged.encode(), b"overlay", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    told = json.load(sys.stdin)
    mount(told["lowers"], told["upper"], told["work"], told["merged"], userxattr=told["userxattr"])
    perform(Path(told["merged"]), told["script"])
    json.dump(shown(Path(told["merged"])), sys.stdout)


if __name__ == "__main__":
    main()
