"""Checkpoints of living programs: what the kernel does for them. Stdlib only; x86_64.

`WriteTracker` knows which pages of a stopped process were not written since a moment. The process gets a userfaultfd
of its own, which moves to this process: with asynchronous write protection (Linux 6.7) the kernel notes a write to a
protected page and goes on; no fault is delivered to anybody. It works as an ordinary user, since no fault of the
kernel's is asked for. Memory that the program maps, moves or gives back later is not tracked: it is never among what
was not written.

`forbidden` tries what such checkpoints need. A machine may lack one of these: an older kernel, one built without
checkpoints, or an administrator's choice.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ramify.sandboxes.linux.process_memory import NOT_WRITTEN, PROTECTABLE, Addresses
from ramify.sandboxes.linux.ptrace import Tracee, share_open_file

CLOSE, USERFAULTFD, PIDFD_GETFD = 3, 323, 438  # system calls
USER_MODE_ONLY = 1
API, REGISTER = 0xC018AA3F, 0xC020AA00  # the requests UFFDIO_API and UFFDIO_REGISTER
UFFD_API, WP_ASYNC, MODE_WP = 0xAA, 1 << 15, 1 << 1

_libc = ctypes.CDLL(None, use_errno=True)


class WriteTracker:
    """Tracks a process until it is closed. `userfaultfd`: a descriptor, which it takes over."""

    def __init__(self, userfaultfd: int) -> None:
        self._userfaultfd = userfaultfd

    @classmethod
    def begin(cls, tracee: Tracee, pagemap: int, ranges: Iterable[Addresses]) -> WriteTracker | None:
        """Track writes from now on in these ranges, each of one private mapping without a file. None if the kernel or
        a filter of the process does not allow it."""
        with contextlib.suppress(OSError):
            tracker = cls(_userfaultfd_of(tracee))
            try:
                fcntl.ioctl(tracker._userfaultfd, API, struct.pack("=3Q", UFFD_API, WP_ASYNC, 0))
                for start, end in ranges:
                    asked = struct.pack("=4Q", start, end - start, MODE_WP, 0)
                    fcntl.ioctl(tracker._userfaultfd, REGISTER, asked)
                    PROTECTABLE.protect(pagemap, start, end)
            except BaseException:
                tracker.close()
                raise
            return tracker
        return None

    def not_written(self, pagemap: int, start: int, end: int) -> Iterator[Addresses]:
        """The ranges of pages between two addresses, ascending, that hold what they held when tracking began."""
        if self._userfaultfd >= 0:
            yield from NOT_WRITTEN.found(pagemap, start, end)

    def close(self) -> None:
        """Stop tracking: nothing counts as not written any more. May be called twice."""
        if self._userfaultfd >= 0:
            os.close(self._userfaultfd)
            self._userfaultfd = -1


def _userfaultfd_of(tracee: Tracee) -> int:
    """A new userfaultfd of the process's memory, which only this process holds. Raises `OSError`."""
    theirs = tracee.call(USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK | USER_MODE_ONLY)
    try:
        pidfd = os.pidfd_open(tracee.pid)
        try:
            mine = _libc.syscall(PIDFD_GETFD, pidfd, theirs, 0)
            if mine < 0:
                number = ctypes.get_errno()
                raise OSError(number, f"pidfd_getfd of process {tracee.pid}: {os.strerror(number)}")
            return int(mine)
        finally:
            os.close(pidfd)
    finally:
        tracee.call(CLOSE, theirs)


PR_SET_MM, PR_SET_MM_MAP_SIZE = 35, 15
NOBODY = (1 << 31) - 1  # no process has this pid
NO_TRACING = 3  # kernel.yama.ptrace_scope: nobody may trace, whatever their rights
TRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


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
    """Raise `OSError` if processes cannot be traced, or their open files not be compared."""
    if TRACE_SCOPE.exists() and int(TRACE_SCOPE.read_text()) >= NO_TRACING:
        raise OSError(f"{TRACE_SCOPE} is {NO_TRACING}, which forbids to trace any process until the next boot")
    with contextlib.suppress(ProcessLookupError):  # a filter of system calls answers before the kernel looks
        Tracee.seize(NOBODY)
    with open(os.devnull) as file:  # noqa: PTH123
        share_open_file(os.getpid(), file.fileno(), file.fileno())


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
