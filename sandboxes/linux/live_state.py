"""What the kernel must allow for snapshots of living programs, found by trying it. Stdlib only; x86_64.

A machine may lack one of these: an older kernel, one built without checkpoints, or an administrator's choice.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

from ramify.sandboxes.linux.pagemap import PROTECTABLE
from ramify.sandboxes.linux.write_tracking import API, UFFD_API, USER_MODE_ONLY, USERFAULTFD, WP_ASYNC

PR_SET_MM, PR_SET_MM_MAP_SIZE = 35, 15
NO_TRACING = 3  # kernel.yama.ptrace_scope: nobody may trace, whatever their rights
TRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")

_libc = ctypes.CDLL(None, use_errno=True)


def forbidden() -> list[str]:
    """What is lost here, and why; empty if nothing is."""
    return [f"{lost}: {why}" for lost, try_it in METHODS if (why := _reason(try_it))]


def _reason(try_it: Callable[[], None]) -> str:
    try:
        try_it()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def trace() -> None:
    """Raise `OSError` if processes cannot be traced."""
    if TRACE_SCOPE.exists() and int(TRACE_SCOPE.read_text()) >= NO_TRACING:
        raise OSError(f"{TRACE_SCOPE} is {NO_TRACING}, which forbids to trace any process until the next boot")


def restore_layout() -> None:
    """Raise `OSError` if a process cannot get the memory layout and the pid of an earlier one."""
    size = ctypes.c_uint()
    if _libc.prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, ctypes.byref(size), 0, 0) < 0 or not LAST_PID.exists():
        raise OSError("the kernel was built without CONFIG_CHECKPOINT_RESTORE")


def track_writes() -> None:
    """Raise `OSError` if the kernel does not note which pages are written."""
    held = _libc.syscall(USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK | USER_MODE_ONLY)
    if held < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"userfaultfd is refused ({os.strerror(number)})")
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(held, API, struct.pack("=3Q", UFFD_API, WP_ASYNC, 0))
        list(PROTECTABLE.found(pagemap, 0, mmap.PAGESIZE))
    except OSError as error:
        raise OSError(error.errno, f"it needs Linux 6.7 ({error.strerror})") from error
    finally:
        os.close(pagemap)
        os.close(held)


METHODS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("snapshots keep no living programs and no Python sessions", trace),
    ("snapshots with living programs or Python sessions cannot be restored", restore_layout),
    ("each seal compares all memory of living programs, not only what was written", track_writes),
)
