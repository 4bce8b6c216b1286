"""Read a SQLite file that this process may not write: a home on a read-only disk, or of another user.

SQLite needs to create a file beside a database in WAL mode, even to read it. If that is not possible:

- If a process works on the database, or was killed, its files exist, and SQLite reads with them.
- If the last process ended properly there is no log, and the database file alone is read.
- If there is only a log, as in a copied folder, database and log are copied to memory.
- If an earlier Ramify wrote the database, a copy in memory is migrated to the present version.

In the last three cases the connection does not see later writes: it is a `FrozenConnection`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from ramify.runtime.store.files_beside import refuse_planted

_C = TypeVar("_C", bound=sqlite3.Connection)

_Stamp = list[tuple[int, int, int] | None]


class FrozenConnection(sqlite3.Connection):
    """A connection that sees the database as it was when it was opened."""

    file: Path
    stamp: _Stamp

    @property
    def is_old(self) -> bool:
        """Whether the file was written since."""
        return _stamp(self.file) != self.stamp


_REFUSED = {"SQLITE_CANTOPEN", "SQLITE_READONLY"}


def connected(file: Path, *, timeout_s: float) -> sqlite3.Connection:
    """Open a connection for reading, in autocommit mode. A missing file is not created.

    Raises `sqlite3.Error` if the file cannot be read or is no database, and as `refuse_planted` does.
    """
    refuse_planted(file)
    try:
        return _opened(file, "mode=rw", timeout_s, sqlite3.Connection)
    except sqlite3.OperationalError as error:
        refused = "_".join(str(error.sqlite_errorname).split("_")[:2]) in _REFUSED
        if not refused or not os.access(file, os.R_OK) or os.access(file.parent, os.W_OK):
            raise
    stamp, log = _stamp(file), _log(file)
    whole = not log.exists() or not log.stat().st_size
    still = _opened(file, "mode=ro&immutable=1", timeout_s, FrozenConnection) if whole else _copy_to_memory(file, log)
    still.file, still.stamp = file, stamp
    return still


def upgraded(file: Path, read: sqlite3.Connection, upgrade: Callable[[Path], None]) -> FrozenConnection | None:
    """Return a migrated copy in memory of a database of an earlier Ramify; None if the file can be written, so that
    it can be migrated itself. `upgrade`: migrates the file of a copy."""
    if os.access(file, os.W_OK) and os.access(file.parent, os.W_OK):
        return None
    stamp = _stamp(file)
    with _temporary_copy(file) as copy:
        with closing(sqlite3.connect(copy)) as target:
            read.backup(target)
        upgrade(copy)
        still = _in_memory(copy)
    still.file, still.stamp = file, stamp
    return still


def _log(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def _stamp(file: Path) -> _Stamp:
    """Return a value that changes when the file or its log is written."""
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
        connection.execute("PRAGMA schema_version")  # SQLite opens the file only when something is read
    except BaseException:
        connection.close()
        raise
    return connection


def _copy_to_memory(file: Path, log: Path) -> FrozenConnection:
    """Copy the file with its log to memory."""
    with _temporary_copy(file) as copy:
        for each in (file, log):
            (copy.parent / each.name).write_bytes(each.read_bytes())
        return _in_memory(copy)


@contextmanager
def _temporary_copy(file: Path) -> Iterator[Path]:
    """Yield the path for a temporary copy of the file."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ramify-look-") as folder:
        yield Path(folder) / file.name


def _in_memory(file: Path) -> FrozenConnection:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=FrozenConnection)
    with closing(sqlite3.connect(file)) as copy:
        copy.backup(memory)
    return memory
