"""The database's errors in our words: what is wrong, with which file, and what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ramify.runtime.errors import StoreError

BUSY_TIMEOUT_S = 30.0

# By SQLite's primary result code, the part of its name before the second underscore.
ADVICE = {
    "SQLITE_FULL": "the disk is full: free some space, then `ramify resume`",
    "SQLITE_READONLY": "it cannot be written: check the permissions of file and folder, or use another --home",
    "SQLITE_PERM": "it cannot be read: check the permissions of file and folder, or use another --home",
    "SQLITE_CANTOPEN": "it cannot be opened: check that its folder exists and is yours, or use another --home",
    "SQLITE_NOTADB": "it is not a database: move it away, or use another --home",
    "SQLITE_CORRUPT": "it is damaged: move it away (keep its -wal file with it), or use another --home",
    "SQLITE_IOERR": "the disk failed to read or write: check the disk and its free space",
    "SQLITE_BUSY": f"another process has locked it for over {BUSY_TIMEOUT_S:.0f} s: end that one, then try again",
    "SQLITE_LOCKED": f"another process has locked it for over {BUSY_TIMEOUT_S:.0f} s: end that one, then try again",
    "SQLITE_CONSTRAINT": "a row of that name is there already, or names one that is not: is the run worked on twice?",
}


@contextmanager
def in_our_words(path: Path) -> Iterator[None]:
    """Turn whatever the database or the folder under it raises into a `StoreError`."""
    try:
        yield
    except DBAPIError as error:
        raise StoreError(f"the database {path} refused: {_describe(error.orig)}") from error
    except sqlite3.Error as error:
        raise StoreError(f"the database {path} refused: {_describe(error)}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"the database {path} cannot be used: {error}") from error
    except OSError as error:
        raise StoreError(
            f"the database {path} cannot be used: {error.strerror or error} ({error.filename}): "
            "check the folder's permissions, or use another --home"
        ) from error


def _describe(error: BaseException | None) -> str:
    name = getattr(error, "sqlite_errorname", None)
    if not isinstance(error, sqlite3.Error) or not isinstance(name, str):
        return str(error)
    primary = "_".join(name.split("_")[:2])
    advice = ADVICE.get(primary)
    return f"{error} ({name}): {advice}" if advice else f"{error} ({name})"
