"""Bytes: hashing, copying with holes kept, flushing. Nothing here knows of layers."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import time
from collections.abc import Iterator

_CHUNK = 1 << 20
_FICLONE = 0x40049409  # linux/fs.h: share all extents of another file
_NOT_HERE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}
"""What a kernel or file system answers that cannot clone or copy in place: fall back to plain reads and writes."""


def digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_fd(fd: int) -> str:
    """sha256, hex, of an open file from its start; holes count as zeros."""
    hasher = hashlib.sha256()
    offset = 0
    while chunk := os.pread(fd, _CHUNK, offset):
        hasher.update(chunk)
        offset += len(chunk)
    return hasher.hexdigest()


def copy_bytes(source: int, dest: int) -> None:
    """Copy all of `source` into the empty file `dest`: by reference where the file system can, else holes kept."""
    try:
        fcntl.ioctl(dest, _FICLONE, source)
        return
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    stat = os.fstat(source)
    os.ftruncate(dest, stat.st_size)
    in_kernel = True
    for start, end in _segments(source, stat):
        in_kernel = in_kernel and _copy_in_kernel(source, dest, start, end)
        if not in_kernel:
            _copy_by_hand(source, dest, start, end)


def _segments(fd: int, stat: os.stat_result) -> Iterator[tuple[int, int]]:
    """The (start, end) ranges that hold data."""
    if stat.st_blocks * 512 >= stat.st_size:
        yield 0, stat.st_size
        return
    end = 0
    while end < stat.st_size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def _copy_in_kernel(source: int, dest: int, start: int, end: int) -> bool:
    """False where the kernel cannot; an end that comes early (a file cut meanwhile) is the caller's to notice."""
    while start < end:
        try:
            copied = os.copy_file_range(source, dest, end - start, start, start)
        except OSError as error:
            if error.errno in _NOT_HERE:
                return False
            raise
        if copied == 0:
            return True
        start += copied
    return True


def _copy_by_hand(source: int, dest: int, start: int, end: int) -> None:
    while start < end and (chunk := os.pread(source, min(_CHUNK, end - start), start)):
        write_all(dest, chunk, start)
        start += len(chunk)


def write_all(fd: int, data: bytes, offset: int = 0) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def sync_file_system(fd: int) -> None:
    """Flush the whole file system that `fd` lies on: one call for any number of new files."""
    if _libc().syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


_CLOCK_REALTIME_COARSE = 5  # linux/time.h; what stamps files. The time module has no name for it


def wait_past_tick(mtime_ns: int) -> None:
    """Return once a file written from now on gets a later time than `mtime_ns`, which was seen on a file.

    The clock that stamps files stands still for up to 10 ms. Without this wait a write right after a scan could leave
    size and time as they were, and the next scan would not see it.
    """
    while 0 <= mtime_ns - time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) < 50_000_000:
        time.sleep(0.001)
