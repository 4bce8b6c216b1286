"""Translate the databases' errors: what is wrong, with which database, and what to do. Retry a transaction or query
after a lost connection or a conflict, with growing pauses."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ramify.runtime.errors import StoreError
from ramify.runtime.store.address import Address

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError
    from typing_extensions import TypeIs


BUSY_TIMEOUT_S = 30.0

# By SQLite's primary result code: its name up to the second underscore.
ADVICE = {
    "SQLITE_FULL": "the disk is full: free some space, and try again",
    "SQLITE_READONLY": "it cannot be written: check the permissions of file and folder, or use another --home",
    "SQLITE_PERM": "it cannot be read: check the permissions of file and folder, or use another --home",
    "SQLITE_CANTOPEN": (
        "it cannot be opened: check that its folder exists, is yours and can be written (reading needs that, too), "
        "or use another --home"
    ),
    "SQLITE_NOTADB": "it is not a database: move it away, or use another --home",
    "SQLITE_CORRUPT": "it is damaged: move it away (keep its -wal file with it), or use another --home",
    "SQLITE_IOERR": "the disk failed to read or write: check the disk and its free space",
    "SQLITE_BUSY": f"another process has locked it for over {BUSY_TIMEOUT_S:.0f} s: end it, then try again",
    "SQLITE_LOCKED": f"another process has locked it for over {BUSY_TIMEOUT_S:.0f} s: end it, then try again",
    "SQLITE_CONSTRAINT": "a row exists already, or names one that does not: do two processes work on the run?",
}

REPLACED = (
    "it was removed or replaced while this process used it, or is no database of Ramify's: put it back, or use "
    "another --home"
)
SHARED_SESSIONS = (
    "it is behind a connection pooler that gives each transaction another session (as PgBouncer does with "
    "pool_mode = transaction), but this needs a session of its own. Use the server's own address, or have the pooler "
    "use pool_mode = session for this database"
)
STATEMENT_POOLING = (
    "it is behind a connection pooler that gives each statement another session (PgBouncer's pool_mode = statement), "
    "so there are no transactions. Use the server's own address, or have the pooler use pool_mode = transaction"
)

# By PostgreSQL's SQLSTATE, or its class (the first two characters).
SERVER_ADVICE = {
    **dict.fromkeys(("42P05", "26000"), SHARED_SESSIONS),  # prepared statements that another client made
    "08P01": "a connection pooler refused it: use the server's own address, or set pool_mode = session there, with "
    "several connections per process",
    "08": "the connection broke: check that the server runs, and try again",
    "23": ADVICE["SQLITE_CONSTRAINT"],
    "25006": "it cannot be written: it is read-only (a standby?)",
    "28": "it refuses this user: check the address",
    "3D000": "there is no such database: create it",
    "42501": "this user lacks a permission: allow it to create or use the schema `ramify`",
    "53100": "the server's disk is full: free some space, and try again",
    "53300": "the server takes no more connections: end some, and try again",
    "57P": "the server was shut down: start it, and try again",
}
NO_SERVER = "no server answers there: check that it runs, and try again"


@contextmanager
def as_store_errors(address: Address) -> Iterator[None]:
    """Raise errors of the database, and of its folder, as `StoreError`."""
    try:
        yield
    except Exception as error:
        said = _said(error, address)
        if said is None:
            raise
        raise StoreError(f"the database {address} {said}") from error


def _said(error: Exception, address: Address) -> str | None:
    """Return the message for an error; None if neither the database nor its folder raised it."""
    if _is_drivers(error):
        return f"refused: {_describe(error)}"
    if isinstance(error, sqlite3.Error):
        return f"refused: {_of_sqlite(error)}"
    if isinstance(error, _loaded("sqlalchemy.exc", "SQLAlchemyError")):
        return f"cannot be used: {error}"
    if isinstance(error, OSError):
        return (
            f"cannot be used: {error.strerror or error} ({error.filename}): "
            "check the folder's permissions, or use another --home"
        )
    return None


def _loaded(module: str, name: str) -> type[Exception] | tuple[()]:
    """Return an error class, or () if its module is not imported, so that no such error can have been raised."""
    found = sys.modules.get(module)
    return () if found is None else getattr(found, name)


def _is_drivers(error: BaseException) -> TypeIs[DBAPIError]:
    """Whether it is a driver's error that SQLAlchemy wrapped."""
    return isinstance(error, _loaded("sqlalchemy.exc", "DBAPIError"))


def _describe(error: DBAPIError) -> str:
    if isinstance(error.orig, sqlite3.Error):
        return _of_sqlite(error.orig)
    state = _state(error)
    text = str(error.orig).strip().partition("\n")[0]
    if not state:
        return f"{text}: {NO_SERVER}" if is_connection_lost(error) else text
    advice = next((SERVER_ADVICE[k] for k in (state, state[:3], state[:2]) if k in SERVER_ADVICE), None)
    return f"{text} ({state}): {advice}" if advice else f"{text} ({state})"


def _of_sqlite(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None)
    if not isinstance(name, str):
        return str(error)
    primary = "_".join(name.split("_")[:2])
    advice = REPLACED if primary == "SQLITE_ERROR" and str(error).startswith("no such table") else ADVICE.get(primary)
    return f"{error} ({name}): {advice}" if advice else f"{error} ({name})"


def _state(error: DBAPIError) -> str:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else ""


def is_connection_lost(error: BaseException) -> bool:
    """Whether the server is gone, is starting, or takes no more connections, so that a retry may succeed."""
    if not _is_drivers(error) or isinstance(error.orig, sqlite3.Error):
        return False
    state = _state(error)
    if state:
        return state[:2] == "08" or state in ("57P01", "57P02", "57P03", "53300")
    return error.connection_invalidated or isinstance(error, _loaded("sqlalchemy.exc", "OperationalError"))


def sessions_are_shared(error: BaseException) -> bool:
    """Whether the error shows that a pooler shares our session: an unknown or duplicate prepared statement, or a
    refused transaction."""
    if not _is_drivers(error):
        return False
    return _state(error) in ("42P05", "26000") or (_state(error) == "08P01" and "pooling" in str(error.orig))


def is_busy(error: BaseException) -> bool:
    """Whether another process locked SQLite's file for longer than the busy timeout."""
    found = error.orig if _is_drivers(error) else error
    return isinstance(found, sqlite3.Error) and getattr(found, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def is_serialization_failure(error: BaseException) -> bool:
    """Whether PostgreSQL aborted the transaction because of a concurrent one, so that a retry may succeed."""
    return _is_drivers(error) and _state(error) in ("40001", "40P01")


def is_duplicate_key(error: BaseException) -> bool:
    """Whether PostgreSQL refused a new row because its key exists."""
    return _is_drivers(error) and _state(error) == "23505"


def divided(error: BaseException) -> bool:
    """Whether PostgreSQL divided by zero, by which one of our statements reports that a count was zero."""
    return _is_drivers(error) and _state(error) == "22012"


PATIENCE_S = 30.0
"""For how many seconds a lost connection is retried by default."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class Retries:
    """The attempts at one operation.

    patience_s: after how many seconds to give up. timer: returns monotonic seconds.
    """

    def __init__(self, patience_s: float = PATIENCE_S, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._until = timer() + patience_s
        self._pause_s = _FIRST_PAUSE_S

    @property
    def are_over(self) -> bool:
        return self._timer() >= self._until

    def pause_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt. Raises `error` if a retry cannot help or time is up."""
        pause_s = self._pause_s
        if (
            not (is_connection_lost(error) or is_serialization_failure(error))
            or self._timer() + pause_s > self._until
        ):
            raise error
        self._pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return pause_s
