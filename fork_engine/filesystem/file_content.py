"""File contents: hash them, copy them with holes preserved, flush them to disk. Knows nothing of layers."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
# bytes of holes above which holes are queried and not read: reading them fills the page cache with zeros
_HOLES_WORTH = 64 << 20
LARGE = 1 << 30
"""Size in bytes above which a file's digest covers only its nonzero blocks, so that a hole of a terabyte costs
nothing."""
_FICLONE = 0x40049409  # linux/fs.h: share all extents of another file
_NOT_HERE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}
"""Errors of kernels and file systems that cannot clone, or copy in the kernel. The fallback is to read and write."""


def digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_fd(fd: int) -> str:
    """Return the digest, in hex, of an open file's whole content, with holes as zeros: sha256, or see `LARGE`."""
    size = os.fstat(fd).st_size
    if size > LARGE:
        return _digest_large(_blocks(fd, size), size)
    hasher = hashlib.sha256()
    offset = _hash_bytes(hasher, fd, 0, _CHUNK)
    if offset < _CHUNK:  # true for most files, which need no further system call
        return hasher.hexdigest()
    status = os.fstat(fd)
    if status.st_size - status.st_blocks * 512 >= _HOLES_WORTH:
        for start, end in segments(fd, status):
            _hash_zeros(hasher, start - offset)
            offset = _hash_bytes(hasher, fd, max(start, offset), end)
        _hash_zeros(hasher, status.st_size - offset)
        offset = max(offset, status.st_size)
    _hash_bytes(hasher, fd, offset, sys.maxsize)
    return hasher.hexdigest()


def digest_file(data: bytes) -> str:
    """Return the digest that `digest_fd` gives for a file with the content `data`."""
    if len(data) <= LARGE:
        return digest_bytes(data)
    blocks = range(-(-len(data) // _CHUNK))
    return _digest_large(((block, data[block * _CHUNK : (block + 1) * _CHUNK]) for block in blocks), len(data))


def _digest_large(blocks: Iterable[tuple[int, bytes]], size: int) -> str:
    """Digest a large file. The hash function differs from that of small files, so that no small file can be given a
    large file's digest."""
    hasher = hashlib.blake2b(digest_size=32)
    for block, data in blocks:
        if data != _ZEROS[: len(data)]:
            hasher.update(block.to_bytes(8, "big") + data)
    hasher.update(size.to_bytes(8, "big"))
    return hasher.hexdigest()


def _blocks(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number, bytes) of each block that is not entirely a hole."""
    next_ = 0
    for start, end in segments(fd, os.fstat(fd)):
        for block in range(max(next_, start // _CHUNK), -(-min(end, size) // _CHUNK)):
            yield block, os.pread(fd, min(_CHUNK, size - block * _CHUNK), block * _CHUNK)
            next_ = block + 1


def _hash_bytes(hasher: hashlib._Hash, fd: int, start: int, end: int) -> int:
    """Hash the range and return where it stopped: at `end`, or earlier at the end of the file."""
    while start < end and (chunk := os.pread(fd, min(_CHUNK, end - start), start)):
        hasher.update(chunk)
        start += len(chunk)
    return start


def _hash_zeros(hasher: hashlib._Hash, count: int) -> None:
    while count > 0:
        hasher.update(_ZEROS[: min(_CHUNK, count)])
        count -= _CHUNK


class HashPool:
    """Compute digests in other threads while the caller continues. Both hashlib and reads release the GIL."""

    _MOST_OPEN = 64
    _BATCH = 1 << 20  # bytes handed over at once; handing over costs as much as hashing a tenth of this

    def __init__(self) -> None:
        self._pending: list[Future[list[tuple[str, str]]]] = []
        self._batch: list[tuple[str, int]] = []  # (key, open file)
        self._batched = self._open = 0  # bytes in the batch; files that are not closed yet
        self._done: dict[str, str] = {}

    def start(self, key: str, fd: int, size: int) -> None:
        """Start hashing an open file of about `size` bytes. The caller may close it at once."""
        if self._open >= self._MOST_OPEN:
            self._collect()
        self._batch.append((key, os.dup(fd)))
        self._open += 1
        self._batched += size
        if self._batched >= self._BATCH:
            self._hand_over()

    def finish(self) -> dict[str, str]:
        """Wait for all digests and return them by key."""
        self._collect()
        return self._done

    def close(self) -> None:
        """Wait for the pending work and discard its results."""
        for _, fd in self._batch:
            os.close(fd)
        self._batch.clear()
        wait(self._pending)

    def _hand_over(self) -> None:
        batch, self._batch, self._batched = self._batch, [], 0
        if batch:
            self._pending.append(_hashers().submit(_digest_and_close, batch))

    def _collect(self) -> None:
        self._hand_over()
        wait(self._pending)  # wait for all even if one failed, so that the other files are closed
        for future in self._pending:
            self._done.update(future.result())
        self._pending.clear()
        self._open = 0


@functools.cache
def _hashers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), "ramify-hash")


def _digest_and_close(batch: list[tuple[str, int]]) -> list[tuple[str, str]]:
    try:
        return [(key, digest_fd(fd)) for key, fd in batch]
    finally:
        for _, fd in batch:
            os.close(fd)


def copy_bytes(source: int, dest: int) -> None:
    """Copy all of `source` into the empty file `dest`: as a reflink if the file system supports it, else with holes
    kept."""
    try:
        fcntl.ioctl(dest, _FICLONE, source)
        return
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    stat = os.fstat(source)
    os.ftruncate(dest, stat.st_size)
    in_kernel = True
    for start, end in segments(source, stat):
        in_kernel = in_kernel and _copy_in_kernel(source, dest, start, end)
        if not in_kernel:
            _copy_by_hand(source, dest, start, end)


def segments(fd: int, stat: os.stat_result) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) ranges of a file that hold data."""
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
    """Copy a range inside the kernel. Returns False if the kernel cannot. If the file was truncated meanwhile, the
    copy is short, and the caller must check for that."""
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


def write_all(fd: int, data: bytes | memoryview, offset: int = 0) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def sync_file_system(fd: int) -> None:
    """Flush the whole file system that `fd` is on: one system call for any number of new files."""
    if _libc().syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


_CLOCK_REALTIME_COARSE = 5  # linux/time.h: the clock of file timestamps, which the time module has no name for


def wait_past_tick(mtime_ns: int) -> None:
    """Wait until a file written from now on gets a later timestamp than `mtime_ns`, a timestamp that a scan has seen.

    The clock of file timestamps advances in steps of up to 10 ms. Without this wait, a write directly after a scan
    could leave size and time unchanged, and the next scan would miss it.
    """
    while 0 <= mtime_ns - time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) < 50_000_000:
        time.sleep(0.001)
