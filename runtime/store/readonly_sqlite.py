"""Looking into a SQLite file that nobody here may write: a home on a read-only disk, or another user's.

SQLite wants to make a file beside a database that keeps a log, also to read it. Where that cannot be, and a process
works on the database or was killed, its files are there and are read with it. Where the last process ended well
there is no log, and the file is all that there is. A log that lies there alone, as in a copy, is read beside a copy
of the file. In these two cases a connection sees nothing of what somebody writes later: `Still`. The
same holds where an earlier Ramify left the file: a copy in memory is brought to the present version.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

_C = TypeVar("_C", bound=sqlite3.Connection)

_Stamp = list[tuple[int, int, int] | None]


class Still(sqlite3.Connection):
    """Sees the database as it was when it was opened."""

    file: Path
    stamp: _Stamp

    @property
    def is_old(self) -> bool:
        """Whether somebody has written since."""
        return _stamp(self.file) != self.stamp


_REFUSED = {"SQLITE_CANTOPEN", "SQLITE_READONLY"}


def connected(file: Path, *, timeout_s: float) -> sqlite3.Connection:
    """A connection for who only reads, in the driver's own mode of commits. The file is not made where it is missing.

    Raises `sqlite3.Error` where it cannot be read, or is no database.
    """
    try:
        return _opened(file, "mode=rw", timeout_s, sqlite3.Connection)
    except sqlite3.OperationalError as error:
        refused = "_".join(str(error.sqlite_errorname).split("_")[:2]) in _REFUSED
        if not refused or not os.access(file, os.R_OK) or os.access(file.parent, os.W_OK):
            raise
    stamp, log = _stamp(file), _log(file)
    whole = not log.exists() or not log.stat().st_size
    still = _opened(file, "mode=ro&immutable=1", timeout_s, Still) if whole else _copied(file, log)
    still.file, still.stamp = file, stamp
    return still


def upgraded(file: Path, read: sqlite3.Connection, upgrade: Callable[[Path], None]) -> Still | None:
    """What an earlier Ramify left, at the present version: a copy in memory. None where the file can be written, and
    so brought up to date itself. `upgrade` is called with the copy's file."""
    if os.access(file, os.W_OK) and os.access(file.parent, os.W_OK):
        return None
    stamp = _stamp(file)
    with _beside(file) as copy:
        with closing(sqlite3.connect(copy)) as target:
            read.backup(target)
        upgrade(copy)
        still = _in_memory(copy)
    still.file, still.stamp = file, stamp
    return still


def _log(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def _stamp(file: Path) -> _Stamp:
    """Another one once the file or its log was written to."""
    found: _Stamp = []
    for each in (file, _log(file)):
        try:
            here = each.stat()
            found.append((here.st_ino, here.st_size, here.st_mtime_ns))
        except OSError:
            found.append(None)
    return found


def _opened(file: Path, how: str, timeout_s: float, kind: type[_C]) -> _C:
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?{how}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
        factory=kind,
    )
    try:
        connection.execute("PRAGMA schema_version")  # until something is read, nothing is opened
    except BaseException:
        connection.close()
        raise
    return connection


def _copied(file: Path, log: Path) -> Still:
    """The file with its log, in memory."""
    with _beside(file) as copy:
        for each in (file, log):
            (copy.parent / each.name).write_bytes(each.read_bytes())
        return _in_memory(copy)


@contextmanager
def _beside(file: Path) -> Iterator[Path]:
    """Where a copy of the file may lie for a moment."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ramify-look-") as folder:
        yield Path(folder) / file.name


def _in_memory(file: Path) -> Still:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=Still)
    with closing(sqlite3.connect(file)) as copy:
        copy.backup(memory)
    return memory
