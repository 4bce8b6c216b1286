"""Preallocate space in SQLite's write-ahead log (WAL), so that a commit is faster.

A commit is appended to the log and synced to disk. If it makes the file longer, the file system must also write the
new length, which takes as long again. So the log is extended in larger pieces of zeros, which later commits
overwrite. SQLite ignores them: to it the log ends at the first frame without the log's salts and checksum. PostgreSQL
preallocates its log, too (decision 017).

Zeros are only appended, never written at an offset. So nothing that another process wrote is overwritten, even if the
database file was replaced and the log belongs to another one. Inside a write transaction nobody else extends the log.
"""

from __future__ import annotations

import os
from pathlib import Path

SELDOM = 4  # transactions between two checks: a check takes as long as writing a row
FIRST, LARGEST = 1 << 17, 1 << 20  # the log is doubled, but by no fewer and no more bytes than these
_FRAME = 24 + 4096  # bytes of SQLite's frame header and page: if they are all zero, there is space left


class LogPreallocation:
    """Preallocates the log of one connection. Other connections may do the same in the same log."""

    def __init__(self, log: Path) -> None:
        self._log = os.fspath(log)
        self._until_next = 0
        self._length: int | None = None  # at the last check

    def make(self) -> None:
        """Extend the log if the last commits used the preallocated space. Errors, such as a full disk, are ignored:
        SQLite itself reports whether a commit fits."""
        self._until_next -= 1
        if self._until_next > 0:
            return
        self._until_next = SELDOM
        try:
            length = os.stat(self._log).st_size  # noqa: PTH116  # half the time of Path.stat
            if self._length is not None and length != self._length and length:
                length += self._appended(length)
        except OSError:
            return
        self._length = length

    def _appended(self, length: int) -> int:
        handle = os.open(self._log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not any(os.pread(handle, _FRAME, max(0, length - _FRAME))):
                return 0  # another connection extended it
            return os.write(handle, bytes(min(max(length, FIRST), LARGEST)))
        finally:
            os.close(handle)
