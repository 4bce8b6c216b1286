"""What an isolated world sees: the host's root, read-only, with its own /dev, /proc, /run, home and tmp; or an image.

Runs inside the world's PID 1 before any command. The host's folders are overlays (areas.py). The overlays that are
written to (the tree, home, tmp; the whole root of an image) are made by the keeper and come as descriptors: here they
are only put in their places, and taken away for a seal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from pathlib import Path

from ramify.sandboxes.agent import host_overlays
from ramify.sandboxes.agent.host_overlays import HostOverlays
from ramify.sandboxes.agent.messages import Link, View
from ramify.sandboxes.linux import kernel, landlock
from ramify.sandboxes.linux.mount_table import is_within

PRIVATE = "/run/ramify"
ROOT = "root"  # in a backend's folder, empty: what a world's root stands on
SCRATCH_PLACES = ("/tmp", *(place for place in host_overlays.TEMPORARY_PLACES if place != "/tmp"))
TMPFS = "size=25%"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
HARMLESS = ("driver", "pressure", "sysvipc", "tty")  # of /proc: to read, or for anybody; a mount is .1 ms a world
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


class MountView:
    """The world's view. What lies on the root, from the first place beside the tree to the tree, is one stack.

    `root` is an empty folder of the host's, to stand the new root on.
    """

    _view: View
    _areas: HostOverlays

    def __init__(self, root: str, link: Link) -> None:
        self._root, self._link = root, link
        self._mounted = -1  # tells of the mounts that a view was prepared over, while nobody wants it
        self._scratches: list[str] = []  # mounted
        self._stack: list[str] = []  # mount points, in the order of mounting
        self._store = self._folder = self.pids = -1
        self.image = -1  # of processes
        self._shown: list[tuple[str, int]] = []  # the visible places, while they are taken away
        self.uncovered: list[str] = []  # places of the host's that are bound, not overlaid, and why

    def prepare(self) -> None:
        """What a spare does before it is wanted."""
        self._make_root()
        self._mounted = os.open("/proc/self/mountinfo", os.O_RDONLY)

    def _make_root(self) -> None:
        """Everything that is alike in all worlds over the host's root."""
        root = self._root
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)  # what the host mounts while we wait counts
        self._areas = HostOverlays(root)
        self._areas.lay_root()
        harmless = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
        kernel.set_attributes(root, harmless, recursive=True)
        self._furnish_kernels(root)
        for place in SCRATCH_PLACES:
            real = Path(place).is_dir() and Path(place).resolve() == Path(place)
            if real and place != "/tmp":  # which is in most views
                self._scratch(root, place)
        _loopback_up()

    def build(self, view: View, image: str = "") -> None:
        """The whole view. After it, the calling process lives in the new root. `image`: processes to begin with."""
        if self._mounted < 0:
            self._make_root()
        elif _outdated(self._mounted) or self._areas.outdated():
            self._areas.close()
            for _ in range(2):  # the root, and what it was made with below it
                kernel.umount(self._root, kernel.MNT_DETACH)
            self._scratches.clear()
            self._make_root()
        self._view, root, passed = view, self._root, self._take()
        self._store, self._folder = kernel.narrow(view.store), kernel.narrow(view.folder, writable=True)
        if image:
            self.image = kernel.narrow(image)
        shown = [(path, self._areas.show(path, view.hidden)) for path in view.visible if self._is_to_show(path)]
        if not view.image:
            covered = [*SCRATCH_PLACES, *map(os.path.realpath, view.points[:-1])]
            self._areas.hide("/", root, view.hidden, [*view.points, *view.visible], covered)
        self._areas.close()
        self.uncovered = self._areas.uncovered
        if view.image:
            kernel.umount(root, kernel.MNT_DETACH)
            kernel.attach(passed.pop(0), root)
            self._furnish_kernels(root)
            self._scratches.clear()
        os.chdir(root)
        kernel.pivot_root_here()
        for place in ("/run",) if view.image else SCRATCH_PLACES:
            if (
                place not in (*view.points, *self._scratches)
                and Path(place).is_dir()
                and not Path(place).is_symlink()
            ):
                self._scratch("", place)
        Path(PRIVATE).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._furnish(passed, shown)
        if not view.image:  # whose root a seal replaces
            landlock.prepare()

    def _is_to_show(self, path: str) -> bool:
        """Whether the world would see nothing, or something else, in a visible place: what else is there to see are
        the host's own folders."""
        places = [*SCRATCH_PLACES, *map(os.path.realpath, self._view.points[:-1]), *self._view.hidden]
        return self._view.image or any(is_within(os.path.realpath(path), place) for place in places)

    def _furnish_kernels(self, root: str) -> None:
        """/dev, /proc, and what of it the agent alone may write to."""
        _devices(f"{root}/dev")
        kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        if self.pids < 0:  # before /proc is protected
            self.pids = os.open(f"{root}/proc/sys/kernel/ns_last_pid", os.O_RDWR)
        if os.geteuid() == 0:
            _protect_proc(f"{root}/proc")

    def _scratch(self, root: str, place: str) -> None:
        mode = "0755" if place == "/run" else "1777"
        kernel.mount("tmpfs", root + place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"{TMPFS},mode={mode}")
        self._scratches.append(place)

    def _take(self) -> list[int]:
        passed, self._link.passed = self._link.passed, []
        return passed

    def _beside(self) -> list[str]:
        """The places beside the tree that are mounts of their own and come and go."""
        return self._view.points[1 if self._view.image else 0 : -1]

    def _furnish(self, passed: list[int], shown: list[tuple[str, int]]) -> None:
        """Everything from the first place beside the tree on."""
        *beside, tree = passed
        for point, descriptor in zip(self._beside(), beside, strict=True):
            _make_mount_point(point, directory=True)
            self._put(point, descriptor)
        for path in self._view.hidden:
            if any(is_within(path, os.path.realpath(point)) for point in self._beside()) and Path(path).is_dir():
                host_overlays.cover(path, path, [*self._view.points, *self._view.visible])
                self._stack.append(path)
        for path, descriptor in shown:
            _make_mount_point(path, directory=Path(f"/proc/self/fd/{descriptor}").is_dir())
            self._put(path, descriptor)
            kernel.set_attributes(path, kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV, recursive=True)
        _make_mount_point(self._view.points[-1], directory=True)
        self._put(self._view.points[-1], tree)

    def _put(self, point: str, descriptor: int) -> None:
        kernel.attach(descriptor, point)
        os.close(descriptor)
        self._stack.append(point)

    def attach(self, *, outside: bool) -> None:
        """Put the tree back, with `outside` all beside it first, from the descriptors that came along."""
        passed = self._take()
        if outside:
            self._furnish(passed, self._shown)
            self._shown = []
        else:
            self._put(self._view.points[-1], passed.pop())

    def folder(self) -> int:
        """A new descriptor of the world's own folder, where what it writes lies."""
        return os.dup(self._folder)

    def reach(self, path: str) -> str:
        """A place of the store or of the world's folder, which are covered, as we and our children see it."""
        for anchor, held in ((self._view.folder, self._folder), (self._view.store, self._store)):
            if Path(path).is_relative_to(anchor):
                return f"/proc/{os.getpid()}/fd/{held}/{os.path.relpath(path, anchor)}"
        raise OSError(f"{path} lies neither in the store nor in the world's folder")

    def detach(self, *, outside: bool) -> bool:
        """Take the tree away, with `outside` all beside it; False, with all as before, where something holds it."""
        count = len(self._stack) if outside else 1
        going = [(point, kernel.clone_tree(point)) for point in self._stack[-count:]]
        try:
            for gone in range(count):
                if not _umounted(going[-1 - gone][0]):
                    for point, descriptor in going[count - gone :]:
                        kernel.attach(descriptor, point)
                    return False
            del self._stack[-count:]
            self._shown = [(point, os.dup(fd)) for point, fd in going if point in self._view.visible]
            return True
        finally:
            for _, descriptor in going:
                os.close(descriptor)


def _outdated(mounted: int) -> bool:
    """Whether anything was mounted or unmounted since this list of mounts was opened. Closes it."""
    poll = select.poll()
    poll.register(mounted, select.POLLPRI)
    changed = bool(poll.poll(0))
    os.close(mounted)
    return changed


def _umounted(point: str) -> bool:
    try:
        kernel.umount(point)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


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
            f"{path} does not exist on this machine and cannot be made in the world: create the folder first",
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


def _protect_proc(proc: str) -> None:
    """Root inside is root's uid outside, and much of /proc asks for no more than that: what is the machine's there,
    not a process's, is read-only."""
    with os.scandir(proc) as entries:
        machines = [one for one in entries if not one.name.isdigit() and not one.is_symlink()]
    for one in machines:
        if one.name not in HARMLESS if one.is_dir() else one.stat().st_mode & 0o222:
            kernel.bind(one.path, one.path)
            kernel.set_attributes(one.path, kernel.ATTR_RDONLY, recursive=True)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = bytearray(struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(sock, SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("h", request, 16)
        if not flags & IFF_UP:  # the host's own is up
            struct.pack_into("h", request, 16, flags | IFF_UP)
            fcntl.ioctl(sock, SIOCSIFFLAGS, request)
