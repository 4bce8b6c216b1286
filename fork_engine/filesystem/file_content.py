"""Bytes: hashing, copying with holes kept, flushing. Nothing here knows of layers."""

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
_HOLES_WORTH = 64 << 20  # bytes of holes that are asked for, not read: reading fills the kernel's cache with zeros
LARGE = 1 << 30
"""Bytes beyond which a digest is of what a file holds beside zeros: a hole of a terabyte takes no time."""
_FICLONE = 0x40049409  # linux/fs.h: share all extents of another file
_NOT_HERE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}
"""What a kernel or file system answers that cannot clone or copy in place: fall back to plain reads and writes."""


def digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_fd(fd: int) -> str:
    """Hex, of an open file from its start; holes count as zeros. sha256, but see `LARGE`."""
    size = os.fstat(fd).st_size
    if size > LARGE:
        return _digest_large(_blocks(fd, size), size)
    hasher = hashlib.sha256()
    offset = _hash_bytes(hasher, fd, 0, _CHUNK)
    if offset < _CHUNK:  # most files: no more questions
        return hasher.hexdigest()
    status = os.fstat(fd)
    if status.st_size - status.st_blocks * 512 >= _HOLES_WORTH:
        for start, end in _segments(fd, status):
            _hash_zeros(hasher, start - offset)
            offset = _hash_bytes(hasher, fd, max(start, offset), end)
        _hash_zeros(hasher, status.st_size - offset)
        offset = max(offset, status.st_size)
    _hash_bytes(hasher, fd, offset, sys.maxsize)
    return hasher.hexdigest()


def digest_file(data: bytes) -> str:
    """What `digest_fd` says of a file that holds `data`."""
    if len(data) <= LARGE:
        return digest_bytes(data)
    blocks = range(-(-len(data) // _CHUNK))
    return _digest_large(((block, data[block * _CHUNK : (block + 1) * _CHUNK]) for block in blocks), len(data))


def _digest_large(blocks: Iterable[tuple[int, bytes]], size: int) -> str:
    """Another function than the small files', so that none of them can be made to have a large one's digest."""
    hasher = hashlib.blake2b(digest_size=32)
    for block, data in blocks:
        if data != _ZEROS[: len(data)]:
            hasher.update(block.to_bytes(8, "big") + data)
    hasher.update(size.to_bytes(8, "big"))
    return hasher.hexdigest()


def _blocks(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Those that are not all hole, each once, by number."""
    next_ = 0
    for start, end in _segments(fd, os.fstat(fd)):
        for block in range(max(next_, start // _CHUNK), -(-min(end, size) // _CHUNK)):
            yield block, os.pread(fd, min(_CHUNK, size - block * _CHUNK), block * _CHUNK)
            next_ = block + 1


def _hash_bytes(hasher: hashlib._Hash, fd: int, start: int, end: int) -> int:
    """Where it stopped: at `end`, or where the file ends before."""
    while start < end and (chunk := os.pread(fd, min(_CHUNK, end - start), start)):
        hasher.update(chunk)
        start += len(chunk)
    return start


def _hash_zeros(hasher: hashlib._Hash, count: int) -> None:
    while count > 0:
        hasher.update(_ZEROS[: min(_CHUNK, count)])
        count -= _CHUNK


class Hashing:
    """Digests on the other processors, while whoever asks for them goes on. hashlib and reads let go of the lock."""

    _MOST_OPEN = 64
    _BATCH = 1 << 20  # bytes handed over at once: handing over costs as much as hashing a tenth of it

    def __init__(self) -> None:
        self._pending: list[Future[list[tuple[str, str]]]] = []
        self._batch: list[tuple[str, int]] = []  # (key, open file)
        self._batched = self._open = 0  # bytes in the batch; files that nobody has closed yet
        self._done: dict[str, str] = {}

    def start(self, key: str, fd: int, size: int) -> None:
        """Begin with an open file of about `size` bytes, which may be closed at once."""
        if self._open >= self._MOST_OPEN:
            self._collect()
        self._batch.append((key, os.dup(fd)))
        self._open += 1
        self._batched += size
        if self._batched >= self._BATCH:
            self._hand_over()

    def finish(self) -> dict[str, str]:
        """All of them, by key."""
        self._collect()
        return self._done

    def close(self) -> None:
        """Where nobody will ask any more: wait, and forget."""
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
        wait(self._pending)  # also where one failed: the others' files are to be closed
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
