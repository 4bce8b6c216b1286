"""Room in SQLite's log, made ahead.

A commit is appended to the log and waits for the disk. Where it makes the file longer, the file system has to note
the new length as well, which takes it as long again. So the log is made longer in larger pieces, of zeros, and
commits overwrite them. To SQLite they are nothing: its log ends where a frame lacks the log's own salts and checksum,
as what an earlier round left does. PostgreSQL makes its log so, too (decision 017).

Zeros are appended, never written at a place: what another wrote meanwhile stays, be it that the database was replaced
under its name and the log is not ours any more. Inside a transaction that writes, nobody else makes the log longer.
"""

from __future__ import annotations

import os
from pathlib import Path

SELDOM = 4  # transactions from one look to the next: a look takes as long as a row
FIRST, LARGEST = 1 << 17, 1 << 20  # bytes made at once: as many as there are, between these
_FRAME = 24 + 4096  # bytes of SQLite's header and page: zeros to the last are room still


class Room:
    """Of one connection's log. It may be another's, too, who makes room in it as well."""

    def __init__(self, log: Path) -> None:
        self._log = os.fspath(log)
        self._until_next = 0
        self._length: int | None = None  # when it was looked at last

    def make(self) -> None:
        """Make the log longer where the last commits used up what there was. Where that cannot be done, without space
        on the disk or without a descriptor, it stays as it is: whether a commit fits is SQLite's to say."""
        self._until_next -= 1
        if self._until_next > 0:
            return
        self._until_next = SELDOM
        try:
            length = os.stat(self._log).st_size  # noqa: PTH116  # in half the time
            if self._length is not None and length != self._length and length:
                length += self._appended(length)
        except OSError:
            return
        self._length = length

    def _appended(self, length: int) -> int:
        handle = os.open(self._log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not any(os.pread(handle, _FRAME, max(0, length - _FRAME))):
                return 0  # another made room
            return os.write(handle, bytes(min(max(length, FIRST), LARGEST)))
        finally:
            os.close(handle)
