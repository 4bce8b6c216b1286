"""Looking into a SQLite file that nobody here may write: a home on a read-only disk, or another user's.

SQLite wants to make a file beside a database that keeps a log, also to read it. Where that cannot be, and a process
works on the database or was killed, its files are there and are read with it. Where the last process ended well
there is no log, and the file is all that there is. A log that lies there alone, as in a copy, is read beside a copy
of the file.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

_REFUSED = {"SQLITE_CANTOPEN", "SQLITE_READONLY"}


def connected(file: Path, *, timeout_s: float) -> sqlite3.Connection:
    """A connection for who only reads, in the driver's own mode of commits. The file is not made where it is missing.

    Raises `sqlite3.Error` where it cannot be read, or is no database.
    """
    try:
        return _opened(file, "mode=rw", timeout_s)
    except sqlite3.OperationalError as error:
        refused = "_".join(str(error.sqlite_errorname).split("_")[:2]) in _REFUSED
        if not refused or not os.access(file, os.R_OK) or os.access(file.parent, os.W_OK):
            raise
    log = file.with_name(f"{file.name}-wal")
    if log.exists() and log.stat().st_size:
        return _copied(file, log)
    return _opened(file, "mode=ro&immutable=1", timeout_s)


def _opened(file: Path, how: str, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?{how}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA schema_version")  # until something is read, nothing is opened
    except BaseException:
        connection.close()
        raise
    return connection


def _copied(file: Path, log: Path) -> sqlite3.Connection:
    """The file with its log, in memory."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ramify-look-") as folder:
        for each in (file, log):
            (Path(folder) / each.name).write_bytes(each.read_bytes())
        copy = sqlite3.connect(Path(folder) / file.name)
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            copy.backup(memory)
        finally:
            copy.close()
    return memory
