"""System calls that Python 3.11 does not wrap: namespaces, mounts, capabilities. Stdlib only.

Numbers are from the kernel's uapi headers. Every failure is an `OSError` whose text begins with the call.

`receive_descriptors` is here because `socket.recv_fds` ignores its flags before Python 3.12: what that returns is
inherited by every program.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import platform
import signal
import socket
from collections.abc import Collection
from pathlib import Path

from ramify.sandboxes.linux.syscalls import SHARED, here

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
CLONE_NEWTIME = 0x0000_0080  # Linux 5.6

KINDS = {
    "user": CLONE_NEWUSER,
    "mount": CLONE_NEWNS,
    "pid": CLONE_NEWPID,
    "net": CLONE_NEWNET,
    "ipc": CLONE_NEWIPC,
    "uts": CLONE_NEWUTS,
    "time": CLONE_NEWTIME,
}

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_MOVE = 8192
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 4096, 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

AT_FDCWD = -100
AT_RECURSIVE = 0x8000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
SYS_OPEN_TREE, SYS_MOVE_MOUNT = SHARED["open_tree"], SHARED["move_mount"]  # Linux 5.2
SYS_MOUNT_SETATTR = SHARED["mount_setattr"]  # Linux 5.12
SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = SHARED["fsopen"], SHARED["fsconfig"], SHARED["fsmount"]  # Linux 5.2
FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 1, 6
SYS_OPENAT2 = SHARED["openat2"]  # Linux 5.6
RESOLVE_NO_MAGICLINKS, RESOLVE_BENEATH = 0x02, 0x08
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
CAPABILITY_VERSION = 0x2008_0522
CAP_SETGID, CAP_SETUID = 6, 7
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

ROOT_KEEPS = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 10, 13, 31})
"""The capabilities that commands of a root user keep: chown, dac_override, dac_read_search, fowner, fsetid, kill,
setgid, setuid, net_bind_service, net_raw, setfcap. None reaches past the world's own namespaces and mounts.
"""

OVER_MODES = frozenset({1, 2})
"""dac_override, dac_read_search. Over the host's root they would open other users' private files, so root keeps them
only over an image, where packages bring users of their own.
"""

_libc = ctypes.CDLL(None, use_errno=True)
_python = ctypes.PyDLL(None, use_errno=True)  # the interpreter itself; its calls keep the interpreter's lock
_python.syscall.restype = ctypes.c_long


class OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({', '.join(name for name, flag in KINDS.items() if flags & flag)})")


def move_clocks_of_children(monotonic_s: int, boottime_s: int) -> None:
    """Let the clocks that begin with the machine's boot be ahead by so much in all children that are forked from now
    on."""
    unshare(CLONE_NEWTIME)
    Path("/proc/self/timens_offsets").write_text(f"monotonic {monotonic_s} 0\nboottime {boottime_s} 0\n")


def fork_into(namespaces: int) -> int:
    """Fork a child that is the first process of new namespaces. Returns its pid, and 0 in the child.

    One call of the kernel instead of an `unshare` between two forks: each fork of a Python copies the pages that it
    touches. Raises `OSError`.
    """
    number = here().numbers["clone"]  # type: ignore[union-attr]  # the caller has asked `can_fork_into`
    _python.PyOS_BeforeFork()
    pid = _python.syscall(
        ctypes.c_long(number), ctypes.c_ulong(namespaces | signal.SIGCHLD), *[ctypes.c_ulong(0)] * 4
    )
    if pid == 0:
        _python.PyOS_AfterFork_Child()
        return 0
    failure = ctypes.get_errno()
    _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(failure, f"clone: {os.strerror(failure)}")
    return int(pid)


def can_fork_into() -> bool:
    """Whether the number of the call is known here."""
    return here() is not None


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system; without `kind` a bind mount, with the flag MS_BIND."""
    done = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        os.fsencode(options) or None,
    )
    _check(done, f"mount {kind or 'bind'} on {target}")


def bind(source: str, target: str, *, recursive: bool = True) -> None:
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))


def clone_tree(path: str, *, recursive: bool = False) -> int:
    """A descriptor of a copy of the mount at `path`, attached nowhere. The copy ends with the descriptor."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    descriptor = int(_libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags))
    _check(descriptor, f"open_tree of {path}")
    return descriptor


def clone_confined(path: str, *, writable: bool = False) -> int:
    """A descriptor of a folder that leads nowhere else: nothing is above it, and only a link leads out."""
    descriptor = clone_tree(path, recursive=True)
    attributes = ATTR_NOSUID | ATTR_NODEV | (0 if writable else ATTR_RDONLY)
    try:
        set_attributes(f"/proc/self/fd/{descriptor}", attributes, recursive=True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def empty_tmpfs(size: str) -> int:
    """A descriptor of an empty folder in memory with mode 0700. It is mounted nowhere and ends with its last user."""
    return _detached("tmpfs", size=size, mode="0700")


def message_queues() -> int:
    """A descriptor of a folder with the POSIX message queues of this process's IPC namespace, mounted nowhere."""
    return _detached("mqueue")


def _detached(kind: str, **options: str) -> int:
    opened = int(_libc.syscall(SYS_FSOPEN, kind.encode(), 1))  # FSOPEN_CLOEXEC
    _check(opened, f"fsopen of {kind}")
    try:
        for name, value in options.items():
            done = _libc.syscall(SYS_FSCONFIG, opened, FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
            _check(done, f"fsconfig {name}")
        _check(_libc.syscall(SYS_FSCONFIG, opened, FSCONFIG_CMD_CREATE, None, None, 0), "fsconfig create")
        descriptor = int(_libc.syscall(SYS_FSMOUNT, opened, 1, ATTR_NOSUID | ATTR_NODEV))  # FSMOUNT_CLOEXEC
        _check(descriptor, f"fsmount of {kind}")
        return descriptor
    finally:
        os.close(opened)


def attach(descriptor: int, target: str) -> None:
    """Attach a detached mount at `target`. The caller closes the descriptor."""
    done = _libc.syscall(SYS_MOVE_MOUNT, descriptor, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    _check(done, f"move_mount to {target}")


def set_attributes(target: str, attributes: int, *, recursive: bool = False) -> None:
    """Add ATTR_* flags to a mount, and with `recursive` to all mounts below it. Flags that are set stay set."""
    attr = MountAttr(attributes, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    done = _libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), flags, ctypes.byref(attr), ctypes.sizeof(attr)
    )
    _check(done, f"mount_setattr on {target}")


def umount(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def pivot_root_here() -> None:
    """Make the current directory, a mount, the root, and detach the old root."""
    number = SYS_PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root: not known for {platform.machine()}")
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    umount(".", MNT_DETACH)
    os.chdir("/")


def set_undumpable(*, closed: bool) -> None:
    """Keep every process of this user namespace, whatever its capabilities, from this process's memory and
    descriptors.

    Works for a process that has executed nothing since before the user namespace existed: otherwise the namespace's
    creators may still look.
    """
    _check(_libc.prctl(PR_SET_DUMPABLE, 0 if closed else 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def die_with_parent() -> None:
    set_death_signal(9)


def set_death_signal(number: int) -> None:
    """Have this signal sent to this process when its parent ends; 0 for none."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def become_subreaper() -> None:
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def keep_capabilities_on_exec(*, but: frozenset[int] = frozenset()) -> None:
    """Let the next exec keep every capability except `but`; a process that is not root would lose them all."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()  # twice: effective, permitted, inheritable
    _check(_libc.capget(header, data), "capget")
    data[2], data[5] = data[1], data[4]
    _check(_libc.capset(header, data), "capset")
    for capability in range(64):
        if capability not in but and data[1 + 3 * (capability // 32)] >> (capability % 32) & 1:
            _check(_libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0), "prctl(PR_CAP_AMBIENT)")


def drop_privileges(*, image: bool) -> None:
    """Drop all capabilities for good; root keeps `ROOT_KEEPS`. No set-uid program brings them back. Over the host's
    root, though not over an `image`, root too is bound by file modes.

    They are dropped at once and not by the next exec: with the agent's capabilities, the path of the executed program
    could lead through the agent's descriptors.
    """
    kept = frozenset() if os.geteuid() != 0 else ROOT_KEEPS if image else ROOT_KEEPS - OVER_MODES
    for capability in range(64):
        if capability not in kept and _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == -1:
            break  # past the last one that this kernel knows
    header, data = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, data), "capget")
    for half in (0, 3):  # lower and upper 32 bits, each as effective, permitted, inheritable
        mask = sum(1 << number % 32 for number in kept if number // 32 == half // 3)
        data[half], data[half + 1], data[half + 2] = data[half + 1] & mask, data[half + 1] & mask, 0
    _check(_libc.capset(header, data), "capset")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def become_in_namespace(user: int, group: int) -> None:
    """Enter a user namespace with one user and one group, which stand for this process's own outside. Root there may
    do what it may with files of that one user; no other owner exists."""
    outside = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {outside[0]} 1"),
        ("gid_map", f"{group} {outside[1]} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text)


def open_folder(path: str) -> int:
    """A descriptor of a folder. Follows no magic link of /proc: a path that commands made must not lead to
    descriptors that they do not have."""
    how = OpenHow(os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, RESOLVE_NO_MAGICLINKS)
    folder = int(_libc.syscall(SYS_OPENAT2, AT_FDCWD, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
    _check(folder, f"openat2 of {path}")
    return folder


def enter_folder(path: str) -> None:
    """As `os.chdir`, by `open_folder`."""
    folder = open_folder(path)
    try:
        os.fchdir(folder)
    finally:
        os.close(folder)


def close_all_but(kept: Collection[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (every shell and program waits for this)
        if number not in kept:
            with contextlib.suppress(OSError):  # the descriptor that listed them
                os.close(number)


def receive_descriptors(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """At most `size` bytes and `most` descriptors; b"" if the other end hung up. Raises `OSError`."""
    found = array.array("i")
    space = socket.CMSG_LEN(most * found.itemsize)
    data, ancillary, _, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, list(found)
