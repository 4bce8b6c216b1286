"""What an isolated world sees: the host's root, read-only, with its own /dev, /proc, /run, home and /tmp; or an
image.

Runs in the world's PID 1 before any command. The host's folders are overlays (host_overlays.py). The writable
overlays (the tree, home and /tmp; or the whole root of an image) are made by the mount server and arrive as
descriptors; they are only attached here, and detached for a seal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import struct
from pathlib import Path

from ramify.sandboxes.agent import host_overlays
from ramify.sandboxes.agent.framing import Link
from ramify.sandboxes.agent.host_overlays import HostOverlays
from ramify.sandboxes.agent.messages import View
from ramify.sandboxes.linux import kernel, landlock
from ramify.sandboxes.linux.mount_table import is_within

PRIVATE = "/run/ramify"
ROOT = "root"  # an empty folder in a backend's folder: the mount point of a world's root
SCRATCH_PLACES = ("/tmp", *(place for place in host_overlays.TEMPORARY_PLACES if place != "/tmp"))
TMPFS = "size=25%,nr_inodes=64k"
"""Files without bytes take about a kilobyte of kernel memory each, which belongs to no process: so bound them."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
HARMLESS = ("driver", "pressure", "sysvipc", "tty")  # of /proc: read-only, or open to all anyway
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


class MountView:
    """The world's mounts. On the root there is one stack, from the first place beside the tree up to the tree.

    `root` is an empty folder of the host, the mount point of the new root.
    """

    _view: View
    _areas: HostOverlays

    def __init__(self, root: str, link: Link) -> None:
        self._root, self._link = root, link
        self._mounted = -1  # reports changed mounts while a prepared view waits
        self._tmpfs_mounts: list[str] = []  # mounted
        self._stack: list[str] = []  # mount points, in the order of mounting
        self._store = self._folder = self.pids = -1
        self.image = -1  # a descriptor of the process image, if there is one
        self._shown: list[tuple[str, int]] = []  # visible places, while they are detached
        self.uncovered: list[str] = []  # host folders that are bound instead of overlaid, and why
        self.made: list[tuple[str, int, int]] = []  # host folders that were made anew, as they were then

    def prepare(self) -> None:
        """Build in advance what does not depend on the world: a spare agent does this while it waits."""
        self._make_root()
        self._mounted = os.open("/proc/self/mountinfo", os.O_RDONLY)

    def _make_root(self) -> None:
        """Build what is the same in all worlds over the host's root."""
        root = self._root
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)  # see the host's new mounts
        self._areas = HostOverlays(root)
        self._areas.lay_root()
        harmless = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
        kernel.set_attributes(root, harmless, recursive=True)
        self._mount_kernel_file_systems(root)
        for place in SCRATCH_PLACES:
            real = Path(place).is_dir() and Path(place).resolve() == Path(place)
            if real and place != "/tmp":  # most views have an overlay there
                self._mount_tmpfs(root, place)
        _loopback_up()

    def build(self, view: View, image: str = "", *, waits: bool = False) -> None:
        """Build the whole view. Afterwards the calling process lives in the new root. `image`: processes to begin
        with. `waits`: the tree comes later, by `adopt`."""
        if self._mounted < 0:
            self._make_root()
        elif _outdated(self._mounted) or self._areas.outdated():
            self._areas.close()
            for _ in range(2):  # the root, and below it the folder that it was made with
                kernel.umount(self._root, kernel.MNT_DETACH)
            self._tmpfs_mounts.clear()
            self._make_root()
        self._view, root, passed = view, self._root, self._take()
        self._store, self._folder = (
            kernel.clone_confined(view.store),
            kernel.clone_confined(view.folder, writable=True),
        )
        if image:
            self.image = kernel.clone_confined(image)
        shown = [(path, self._areas.show(path, view.hidden)) for path in view.visible if self._is_to_show(path)]
        if not view.image:
            covered = [*SCRATCH_PLACES, *map(os.path.realpath, view.points[:-1])]
            self._areas.hide("/", root, view.hidden, [*view.points, *view.visible], covered)
        self._areas.close()
        self.uncovered, self.made = self._areas.uncovered, self._areas.made
        if view.image:
            kernel.umount(root, kernel.MNT_DETACH)
            kernel.attach(passed.pop(0), root)
            self._mount_kernel_file_systems(root)
            self._tmpfs_mounts.clear()
        os.chdir(root)
        kernel.pivot_root_here()
        for place in ("/run",) if view.image else SCRATCH_PLACES:
            if (
                place not in (*view.points, *self._tmpfs_mounts)
                and Path(place).is_dir()
                and not Path(place).is_symlink()
            ):
                self._mount_tmpfs("", place)
        Path(PRIVATE).mkdir(mode=0o700, parents=True, exist_ok=True)
        if waits:
            self._attach_beside(passed, shown)
        else:
            self._attach_all(passed, shown)
        if not view.image:  # a seal replaces an image's root
            landlock.make_ruleset()
        elif view.network:
            landlock.make_ruleset_for_sockets()

    def _is_to_show(self, path: str) -> bool:
        """Whether a visible place would be hidden or covered in the world. Anywhere else the world sees the host's
        folders anyway."""
        places = [*SCRATCH_PLACES, *map(os.path.realpath, self._view.points[:-1]), *self._view.hidden]
        return self._view.image or any(is_within(os.path.realpath(path), place) for place in places)

    def _mount_kernel_file_systems(self, root: str) -> None:
        """Mount /dev and /proc, and open the file in it that only the agent may write to."""
        for place in ("/dev", "/proc"):
            _check_folder(root + place, place)  # a link would lead out of the root, which is not entered yet
        _devices(f"{root}/dev")
        kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        if self.pids < 0:  # before /proc becomes read-only
            self.pids = os.open(f"{root}/proc/sys/kernel/ns_last_pid", os.O_RDWR)
        if os.geteuid() == 0:
            _protect_proc(f"{root}/proc")

    def _mount_tmpfs(self, root: str, place: str) -> None:
        mode = "0755" if place == "/run" else "1777"
        kernel.mount("tmpfs", root + place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"{TMPFS},mode={mode}")
        self._tmpfs_mounts.append(place)

    def _take(self) -> list[int]:
        passed, self._link.passed = self._link.passed, []
        return passed

    def _beside(self) -> list[str]:
        """The places beside the tree that are mounts of their own, which come and go."""
        return self._view.points[1 if self._view.image else 0 : -1]

    def _attach_all(self, passed: list[int], shown: list[tuple[str, int]]) -> None:
        """Attach everything from the first place beside the tree on."""
        *beside, tree = passed
        self._attach_beside(beside, shown)
        self._put(self._view.points[-1], tree)

    def _attach_beside(self, beside: list[int], shown: list[tuple[str, int]]) -> None:
        """Attach everything but the tree, whose mount point exists afterwards."""
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

    def _put(self, point: str, descriptor: int) -> None:
        kernel.attach(descriptor, point)
        os.close(descriptor)
        self._stack.append(point)

    def adopt(self, *, image: bool) -> None:
        """Attach the tree of a view that waited, from the descriptors that came along."""
        passed = self._take()
        if image:
            self.image = passed.pop(0)
        self._put(self._view.points[-1], passed.pop())

    def attach(self, *, outside: bool) -> None:
        """Attach the tree again, with `outside` everything beside it first, from the descriptors that came along."""
        passed = self._take()
        if outside:
            self._attach_all(passed, self._shown)
            self._shown = []
        else:
            self._put(self._view.points[-1], passed.pop())

    def folder(self) -> int:
        """A new descriptor of the world's own folder, which holds what it writes."""
        return os.dup(self._folder)

    def path_inside(self, path: str) -> str:
        """A path in the store or the world's folder, which are covered, as this process and its children see it."""
        for anchor, held in ((self._view.folder, self._folder), (self._view.store, self._store)):
            if Path(path).is_relative_to(anchor):
                return f"/proc/{os.getpid()}/fd/{held}/{os.path.relpath(path, anchor)}"
        raise OSError(f"{path} is neither in the store nor in the world's folder")

    def detach(self, *, outside: bool) -> bool:
        """Detach the tree, with `outside` also everything beside it. False, with all mounts as before, if something
        holds one."""
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
    """Whether a mount has changed since this list of mounts was opened. Closes it."""
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


def _check_folder(path: str, name: str) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise OSError(errno.ENOTDIR, f"a link or a file is at {name}, where the world needs a folder")


def _make_mount_point(path: str, *, directory: bool) -> None:
    place = Path(path)
    if directory and os.path.lexists(path):
        _check_folder(path, path)
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
    """Mount a minimal /dev. The nodes are bound before the root's own become `nodev`."""
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, "size=64k,nr_inodes=1k,mode=0755")
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
    """Make what in /proc belongs to the machine, not to a process, read-only. Root inside is root's uid outside, and
    much of /proc checks nothing else."""
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
