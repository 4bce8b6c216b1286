"""What an isolated world sees: the host's root, read-only, with its own /dev, /proc, /tmp, /run and tree.

Runs inside the world's PID 1 before any command. Folders that ramify itself needs later (the store's layers, the
world's upper) are held open by descriptor and then covered: an overlay is mounted by `/proc/self/fd/N`, which also
keeps its options short (a mount's options fit in one page: about 200 layers).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path

from ramify.sandboxes.namespaces import kernel
from ramify.sandboxes.wire import Attach, View

PRIVATE = "/run/ramify"
HOST_TREE = f"{PRIVATE}/tree"
"""The tree once more, where only the host's process looks. On the host no such path exists, so a path that was
resolved (`/proc/PID/root/…` reads as `/`) fails there, where `mount_at` would quietly name the real workspace."""

HOME = "/tmp/home"
SCRATCH_PLACES = ("/tmp", "/var/tmp", "/run")
TMPFS = "size=25%"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


class Mounts:
    """The world's view, and its tree on top, which goes and comes at a seal."""

    def __init__(self, view: View, tree: str) -> None:
        self._view = view
        self._tree = tree
        self._store = self._folder = -1

    def build(self) -> None:
        """The whole view but the tree. After it, the calling process lives in the new root."""
        root = f"{self._view.folder}/root"
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.bind("/", root)
        harmless = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
        kernel.set_attributes(root, harmless, recursive=True)
        kernel.bind(self._view.folder, root + self._view.folder, recursive=False)
        _devices(f"{root}/dev")
        kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        os.chdir(root)
        kernel.pivot_root_here()
        self._store = os.open(self._view.store, os.O_PATH | os.O_DIRECTORY)
        self._folder = os.open(self._view.folder, os.O_PATH | os.O_DIRECTORY)
        self._cover()
        if os.geteuid() == 0:
            _protect_proc()
        _loopback_up()

    def _cover(self) -> None:
        shown = [(path, os.open(path, os.O_PATH)) for path in self._view.visible]
        for place in SCRATCH_PLACES:
            if Path(place).is_dir() and not Path(place).is_symlink():
                mode = "0755" if place == "/run" else "1777"
                kernel.mount("tmpfs", place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"{TMPFS},mode={mode}")
        for path, held in shown:
            _make_mount_point(path, directory=Path(f"/proc/self/fd/{held}").is_dir())
            kernel.bind(f"/proc/self/fd/{held}", path)
            os.close(held)
        for path in self._view.hidden:
            if Path(path).is_dir():
                kernel.mount("tmpfs", path, "tmpfs", kernel.MS_RDONLY, "size=4k,mode=0555")
        for path in (PRIVATE, HOST_TREE):
            Path(path).mkdir(mode=0o700)
        Path(HOME).mkdir(parents=True, exist_ok=True)

    def attach(self, layers: Attach) -> None:
        """Mount the tree: upper over lowers, the top one named first as overlayfs wants it."""
        _make_mount_point(self._tree, directory=True)
        with contextlib.ExitStack() as held:
            folders = [self._hold(held, path, self._store, self._view.store) for path in layers.lowers]
            upper = self._hold(held, layers.upper, self._folder, self._view.folder)
            work = self._hold(held, layers.work, self._folder, self._view.folder)
            lower = ":".join(reversed(folders))
            # volatile: no sync at all. Sound here: an upper that a crash leaves behind is thrown away.
            options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr,volatile,index=off"
            kernel.mount("overlay", self._tree, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        kernel.bind(self._tree, HOST_TREE, recursive=False)

    def detach(self) -> bool:
        """Take the tree away; False, with all as before, where an open file or a directory holds it."""
        try:
            kernel.umount(HOST_TREE)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        try:
            kernel.umount(self._tree)
        except OSError as error:
            if error.errno == errno.EBUSY:
                kernel.bind(self._tree, HOST_TREE, recursive=False)
                return False
            raise
        return True

    @staticmethod
    def _hold(held: contextlib.ExitStack, path: str, anchor: int, anchor_path: str) -> str:
        descriptor = os.open(os.path.relpath(path, anchor_path), os.O_PATH | os.O_DIRECTORY, dir_fd=anchor)
        held.callback(os.close, descriptor)
        return f"/proc/self/fd/{descriptor}"


def _make_mount_point(path: str, *, directory: bool) -> None:
    place = Path(path)
    if place.exists():
        return
    try:
        (place if directory else place.parent).mkdir(parents=True, exist_ok=True)
        if not directory:
            place.touch()
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path} does not exist on this machine and cannot be made in the world, where only "
            f"{', '.join(SCRATCH_PLACES)} can hold new places: create the folder first",
        ) from error


def _devices(dev: str) -> None:
    """A minimal /dev. The nodes are bound before the root's own become `nodev`."""
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, "size=64k,mode=0755")
    for name in DEVICES:
        if Path("/dev", name).exists():
            Path(dev, name).touch()
            kernel.bind(f"/dev/{name}", f"{dev}/{name}", recursive=False)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        Path(dev, name).symlink_to(f"/proc/self/{target}")
    Path(dev, "ptmx").symlink_to("pts/ptmx")
    for name in ("pts", "shm"):
        Path(dev, name).mkdir()
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", f"{dev}/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=620")
    kernel.mount("tmpfs", f"{dev}/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"{TMPFS},mode=1777")


def _protect_proc() -> None:
    """Root inside is root's uid outside, and /proc/sys asks for the uid alone: make the host's knobs read-only."""
    for name in ("sys", "sysrq-trigger", "irq", "bus", "fs"):
        path = f"/proc/{name}"
        if Path(path).exists():
            kernel.bind(path, path)
            kernel.set_attributes(path, kernel.ATTR_RDONLY, recursive=True)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = bytearray(struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(sock, SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("h", request, 16)
        struct.pack_into("h", request, 16, flags | IFF_UP)
        fcntl.ioctl(sock, SIOCSIFFLAGS, request)
