"""System call numbers by architecture, and a way to make calls that Python does not wrap. Stdlib only.

From the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`. From 424 on, all
architectures share the numbers. A call that an architecture never had has no entry there.
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass

LAST = 469  # file_setattr, Linux 6.17: calls after it were never reviewed for this table

SHARED = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "memfd_secret": 447,
    "open_tree_attr": 467,
}

X86_64 = {
    "ioctl": 16,
    "socket": 41,
    "clone": 56,
    "chown": 92,
    "fchown": 93,
    "lchown": 94,
    "syslog": 103,
    "uselib": 134,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "fchownat": 260,
    "unshare": 272,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "prlimit64": 302,
    "open_by_handle_at": 304,
    "setns": 308,
    "finit_module": 313,
    "seccomp": 317,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    **SHARED,
}

AARCH64 = {
    "lookup_dcookie": 18,
    "ioctl": 29,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "fchownat": 54,
    "fchown": 55,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "socket": 198,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "swapon": 224,
    "swapoff": 225,
    "perf_event_open": 241,
    "prlimit64": 261,
    "fanotify_init": 262,
    "open_by_handle_at": 265,
    "setns": 268,
    "finit_module": 273,
    "seccomp": 277,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
    **SHARED,
}


@dataclass(frozen=True)
class Architecture:
    audit: int  # AUDIT_ARCH_*: by which seccomp tells call tables apart
    numbers: dict[str, int]
    x32: int = 0  # the bit that marks calls of a second table under the same AUDIT_ARCH


ARCHITECTURES = {
    "x86_64": Architecture(0xC000_003E, X86_64, x32=0x4000_0000),
    "aarch64": Architecture(0xC000_00B7, AARCH64),
}

_libc = ctypes.CDLL(None, use_errno=True)


def here() -> Architecture | None:
    """This machine's architecture; None without a table for it."""
    return ARCHITECTURES.get(platform.machine())


def call(name: str, *arguments: object) -> int:
    """Make a system call by name. Raises `OSError`, whose text begins with the name."""
    architecture = here()
    number = architecture.numbers.get(name) if architecture is not None else SHARED.get(name)
    if number is None:
        raise OSError(f"{name}: its number on {platform.machine()} is not known")
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result == -1:
        failure = ctypes.get_errno()
        raise OSError(failure, f"{name}: {os.strerror(failure)}")
    return result
