"""The mounts of the calling process, from /proc/self/mountinfo. Stdlib only.

Every world's agent reads the list. Paths are strings: pathlib would cost more than the mounts.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterable
from typing import NamedTuple


class Mount(NamedTuple):
    point: str  # the mount point
    root: str  # the folder of the file system that is shown there
    device: str  # MAJOR:MINOR
    kind: str  # the file system's type


class MountTable:
    """All mounts. Of several at one mount point only the last counts: it covers the others."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._at = {mount.point: mount for mount in mounts}
        self._above: set[str] = set()
        for point in self._at:
            while point != "/" and (point := _parent(point)) not in self._above:
                self._above.add(point)

    @classmethod
    def read(cls) -> MountTable:
        with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123
            return cls(parse(os.fsdecode(file.read())))

    def at(self, point: str) -> Mount | None:
        return self._at.get(point)

    def has_below(self, folder: str) -> bool:
        """Whether anything is mounted below the folder, not counting the folder itself."""
        return folder in self._above

    def below(self, folder: str) -> list[str]:
        """The mount points below the folder, sorted."""
        return sorted(point for point in self._at if point != folder and is_within(point, folder))

    def of(self, path: str) -> Mount:
        """The mount that a path without links lies on."""
        folder = path
        while folder not in self._at and folder != "/":
            folder = _parent(folder)
        return self._at.get(folder) or Mount("/", "/", "", "unknown")  # a chroot, whose root is no mount of its own

    def names(self, path: str) -> set[str]:
        """All paths that show what lies at `path`, or part of it: the path itself, and other mounts of the same file
        system or of a folder of it."""
        home = self.of(path)
        within = _join(home.root, os.path.relpath(path, home.point))
        found = {path}
        for mount in self._at.values():
            if mount.device != home.device or mount is home:
                continue
            if is_within(within, mount.root):
                found.add(_join(mount.point, os.path.relpath(within, mount.root)))
            elif is_within(mount.root, within):
                found.add(mount.point)
        return found


class MountWatch:
    """Tells whether a mount has changed in this process's mount namespace."""

    def __init__(self) -> None:
        self._table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._table, select.POLLPRI)

    def changed(self) -> bool:
        """Whether one has changed since the last call, or since this object was made."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        if self._table >= 0:
            os.close(self._table)
            self._table = -1


def parse(text: str) -> list[Mount]:
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        _, _, device, root, point, *_ = left.split(" ")
        mounts.append(Mount(_plain(point), _plain(root), device, right.split(" ")[0]))
    return mounts


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _join(folder: str, rest: str) -> str:
    return folder if rest == "." else f"{folder.rstrip('/')}/{rest}"


def _plain(escaped: str) -> str:
    """Decode blanks, tabs, newlines and backslashes, which the kernel writes as octal numbers."""
    if "\\" not in escaped:
        return escaped
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)


def _parent(path: str) -> str:
    return path[: path.rindex("/")] or "/"
