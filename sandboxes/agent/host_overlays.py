"""Show the host's folders to a world over the host's root, each as a read-only overlay. Stdlib only.

A read-only bind mount keeps a world from writing to the host's files, but it shows the host's own inodes, on which
locks, leases, FIFOs, sockets and watches still work. An overlay has inodes of its own. So the root of a world is a
small tmpfs that holds one overlay for each folder of the host's root.

The kernel makes no overlay of a folder with a mount below it, since the overlay would show what that mount covers.
Such a folder is created anew, and each of its entries is laid out separately. A folder that cannot be an overlay at
all (on a network file system) is bound as it is and reported in `uncovered`.
"""

# Every world waits for this code, and pathlib costs as much as a mount.
# ruff: noqa: PTH101, PTH102, PTH103, PTH108, PTH112, PTH114, PTH115, PTH116, PTH119, PTH120, PTH211

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Sequence

from ramify.sandboxes.linux import kernel
from ramify.sandboxes.linux.mount_table import MountTable, is_within

OWN = ("/dev", "/proc", "/sys")
"""Folders that a world has for itself, or sees through its own mounts: `mount_view.py` mounts them."""

TEMPORARY_PLACES = ("/run", "/tmp", "/var/tmp")
"""Places for temporary files. A world sees nothing of the host's."""

SOFTWARE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

KERNELS = frozenset({
    "proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs",
    "configfs", "bpf", "pstore", "efivarfs", "binfmt_misc", "fusectl", "hugetlbfs", "rpc_pipefs", "nsfs", "nfsd",
    "selinuxfs", "smackfs", "functionfs", "resctrl",
})  # fmt: skip
"""File systems that lead to the kernel. They are left out: a second /proc of the host would show its processes."""

REMOTE = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "lustre", "glusterfs", "autofs", "virtiofs",
    "fuse", "fuseblk",
})  # fmt: skip
"""File systems that are never used as an overlay's layer: a server that does not answer would stall every world."""

MOST_ENTRIES = 512  # of a folder that is laid out entry by entry, a mount for each
LOWEST, MASKED = "empty", "masked"


class HostOverlays:
    """Lays the host's folders out below a new root, in the caller's mount namespace."""

    def __init__(self, root: str) -> None:
        """`root`: an empty folder of the host, the mount point of the new root."""
        self._root = root
        self._mounts = MountTable.read()
        self.made: list[tuple[str, int, int]] = []  # the folders that were created anew, as they were then
        self.uncovered: list[str] = []  # folders that locks and watches reach, and why
        self._masks = 0
        self._shown = 0
        kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,nr_inodes=16k,mode=0700")
        os.mkdir(f"{root}/{LOWEST}")
        self._workshop = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=16m,nr_inodes=64k,mode=0755")

    def close(self) -> None:
        """Close the folder that overlays are made with; the old root takes it along."""
        os.close(self._workshop)

    def lay_root(self) -> None:
        """Lay out all of "/"."""
        self._lay_entries("/", self._root)

    def outdated(self) -> bool:
        """Whether a folder that was created anew has other entries now. Changed mounts are noticed elsewhere."""
        return outdated(self.made)

    def show(self, path: str, hidden: Iterable[str]) -> int:
        """A descriptor of a folder or file of the host, without what is hidden in it, to be attached anywhere."""
        real = os.path.realpath(path)
        if not os.path.isdir(real):
            return kernel.clone_tree(real)
        place = self._workplace(f"shown-{self._shown}")
        self._shown += 1
        self._lay(real, place)
        self.hide(real, place, hidden)
        return kernel.clone_tree(place, recursive=True)

    def hide(
        self,
        source: str,
        target: str,
        hidden: Iterable[str],
        points: Collection[str] = (),
        covered: Collection[str] = (),
    ) -> None:
        """Hide files and folders below a folder that was laid out.

        `points`: places below it that more is mounted on. `covered`: folders that will be covered by a mount anyway.
        """
        files: dict[str, set[str]] = {}
        folders: list[tuple[str, str]] = []
        for path in sorted({name for one in hidden for name in self._mounts.names(one)}):
            if not is_within(path, source) or any(is_within(path, place) for place in covered):
                continue
            at = target + path[len(source.rstrip("/")) :] if path != source else target
            if os.path.isdir(path) and not os.path.islink(path):
                folders.append((path, at))
            elif path != source:
                files.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
        for folder, names in sorted(files.items()):  # those above first: each of these mounts covers all below it
            at = target + folder[len(source.rstrip("/")) :] if folder != source else target
            if os.path.isdir(folder) and os.path.isdir(at):
                self._without(folder, at, names)
        for path, at in folders:  # afterwards, for the same reason
            if os.path.isdir(at):
                cover(path, at, points)

    # One folder

    def _lay(self, path: str, target: str) -> None:
        """Show a folder of the host at `target`, an empty folder."""
        mount = self._mounts.of(path)
        if mount.kind in KERNELS:
            return
        if mount.kind in REMOTE or mount.kind.startswith("fuse."):
            self._bind(path, target, f"{mount.kind} cannot be overlaid")
        elif mount.kind == "overlay" and path in SOFTWARE:
            self._bind(path, target, "the system's software, on an overlay itself")  # CRIU sees through one only
        elif self._mounts.has_below(path):
            self._lay_entries(path, target)
        else:
            try:
                self._overlay(target, [f"{self._place(LOWEST)}", path])
            except OSError as error:
                self._bind(path, target, f"{mount.kind} cannot be overlaid: {error.strerror}")

    def _lay_entries(self, path: str, target: str) -> None:
        """Create the folder anew and show each of its entries."""
        try:
            with os.scandir(path) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except PermissionError:
            entries = []  # a command of this user may not list it either
        if len(entries) > MOST_ENTRIES:
            self._bind(path, target, f"something is mounted below it, and it has more than {MOST_ENTRIES} entries")
            return
        self.made.append((path, *_stamp(path)))
        files = 0
        for entry in entries:
            source, place = _join(path, entry.name), _join(target, entry.name)
            if source in OWN or source in TEMPORARY_PLACES:
                if entry.is_symlink():
                    os.symlink(os.readlink(source), place)
                elif entry.is_dir():
                    os.mkdir(place)
                    os.chmod(place, 0o1777 if source != "/run" and source in TEMPORARY_PLACES else 0o755)
                    if source == "/sys":
                        kernel.bind(source, place)
            elif entry.is_symlink():
                os.symlink(os.readlink(source), place)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(place)
                self._lay(source, place)
            elif entry.is_file(follow_symlinks=False):  # FIFOs, sockets and devices are left out
                with contextlib.suppress(OSError):  # the file went away meanwhile
                    os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                    kernel.bind(source, place, recursive=False)
                    files += 1
        if path != "/":
            _copy_metadata(target, path)
        if files:
            self.uncovered.append(f"files directly in {path} ({files}): something is mounted below it")

    def _bind(self, path: str, target: str, why: str) -> None:
        kernel.bind(path, target)
        self.uncovered.append(f"{path}: {why}")

    def _overlay(self, target: str, lowers: list[str]) -> None:
        """Mount a read-only overlay; `lowers` begin with the bottom."""
        held = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in lowers]
        try:
            stack = ":".join(f"/proc/self/fd/{descriptor}" for descriptor in reversed(held))
            options = f"lowerdir={stack},userxattr,index=off,xino=on"
            kernel.mount("overlay", target, "overlay", kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV, options)
        finally:
            for descriptor in held:
                os.close(descriptor)

    # What is hidden

    def _without(self, folder: str, at: str, names: Collection[str]) -> None:
        """Show the folder without these names, whether or not they exist yet."""
        mask = self._workplace(f"{MASKED}-{self._masks}")
        self._masks += 1
        if not self._mounts.has_below(folder):
            for name in names:
                os.mknod(f"{mask}/{name}", stat.S_IFCHR, os.makedev(0, 0))  # overlayfs's mark for a removed name
            _copy_metadata(mask, folder)
            try:
                self._overlay(at, [folder, mask])
                return
            except OSError:
                for name in names:
                    os.unlink(f"{mask}/{name}")
        nothing = f"{mask}/nothing"
        os.close(os.open(nothing, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o000))
        for name in names:
            if os.path.lexists(f"{at}/{name}"):
                kernel.bind(nothing, f"{at}/{name}", recursive=False)
                kernel.set_attributes(f"{at}/{name}", kernel.ATTR_RDONLY)

    def _place(self, name: str) -> str:
        return f"/proc/self/fd/{self._workshop}/{name}"

    def _workplace(self, name: str) -> str:
        os.mkdir(self._place(name))
        return self._place(name)


def outdated(made: Iterable[Sequence[object]]) -> bool:
    """Whether one of these folders (path, inode, time of change) has other entries now."""
    return any(_stamp(str(path)) != (inode, changed) for path, inode, changed in made)


def cover(path: str, at: str, points: Collection[str]) -> None:
    """Cover the folder `path`, shown at `at`, with an empty mount that keeps only the ways to those `points` in
    it."""
    kernel.mount("tmpfs", at, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=64k,mode=0555")
    for point in points:
        if is_within(point, path) and point != path:
            os.makedirs(at + point[len(path) :], exist_ok=True)
    kernel.set_attributes(at, kernel.ATTR_RDONLY)


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_ino, status.st_mtime_ns)


def _copy_metadata(target: str, path: str) -> None:
    """Copy the mode, the times and, if this user may give it away, the owner of another folder."""
    status = os.stat(path)
    with contextlib.suppress(OSError):
        os.chown(target, status.st_uid, status.st_gid)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
