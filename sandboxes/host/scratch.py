"""The folders of live worlds, and the removal of those that a crash left behind.

`scratch/<session>/` belongs to one backend, which holds a lock on `scratch/<session>.lock` while it lives. If the
lock is free, the owner ended without cleaning up: the next backend removes the session.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import struct
from contextlib import suppress
from pathlib import Path

from ramify import paths
from ramify.fork_engine.close_on_fork import close_lock, open_lock
from ramify.fork_engine.filesystem import openat
from ramify.fork_engine.store_folder import drop_default_acl

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x8008_6601, 0x4008_6602
TOPDIR = 0x2_0000  # FS_TOPDIR_FL, `chattr +T`
_LOCK = re.compile(r"[0-9a-f]{12}\.lock")


class ScratchSession:
    """One backend's folder. `open()` and `close()` block: call them in a thread."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._lock = -1
        self.folder = scratch

    def open(self) -> None:
        """Make and lock the session's folder, after removing what crashed sessions left."""
        paths.make_private(self._scratch)
        self._remove_abandoned()
        while True:
            self.folder = self._scratch / secrets.token_hex(6)  # before the lock: `close` removes the folder
            lock = self.folder.with_suffix(".lock")
            self._lock = open_lock(lock, os.O_CREAT | os.O_RDWR)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if lock.exists() and lock.stat().st_ino == os.fstat(self._lock).st_ino:
                break
            close_lock(self._lock)  # another backend took it for abandoned before we had the lock
            self._lock = -1
        self.folder.mkdir(mode=0o700)
        spread(self.folder)
        drop_default_acl(self.folder)

    def close(self) -> None:
        if self._lock < 0:
            return
        remove_tree(self.folder)
        self.folder.with_suffix(".lock").unlink(missing_ok=True)
        close_lock(self._lock)
        self._lock = -1

    def _remove_abandoned(self) -> None:
        """Remove every session whose lock is free, and nothing else: a link in the home of somebody else could make
        this a folder of the user's."""
        for lock in self._scratch.iterdir():
            if not _LOCK.fullmatch(lock.name):
                continue
            try:
                held = open_lock(lock, os.O_RDWR)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(lock.with_suffix(""))
                lock.unlink(missing_ok=True)
            except BlockingIOError:
                pass  # its owner lives
            finally:
                close_lock(held)


def spread(folder: Path) -> None:
    """Make ext4 place new folders in `folder` in emptier parts of the disk: decision 034.

    Only the time of a mount depends on it, so file systems without such a flag are left alone.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (flags,) = struct.unpack_from("i", fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, bytes(8)))
        fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("ii", flags | TOPDIR, 0))
    except OSError:
        pass
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder, if it exists, whatever the modes and depth of its contents: overlayfs leaves `work/` without
    any permissions, and commands may do anything."""
    while os.path.lexists(folder):
        with suppress(FileNotFoundError):  # something in it disappeared meanwhile
            openat.remove_tree(folder)
