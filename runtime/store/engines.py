"""SQLAlchemy engines for a database: an async one that reads, and one whose only connection writes.

On SQLite, transactions begin explicitly and wait for locks. On PostgreSQL, our tables are in a schema of their own,
because a database may be shared (LangGraph's saver also has a table `checkpoints`).

Space in SQLite's write-ahead log (WAL) is preallocated, so that a commit is faster. A commit is appended to the log
and synced to disk. If it makes the file longer, the file system must also write the new length, which takes as long
again. So the log is extended in larger pieces of zeros, which later commits overwrite. SQLite ignores them: to it the
log ends at the first frame without the log's salts and checksum. PostgreSQL preallocates its log, too (decision 017).
Zeros are only appended, never written at an offset. So nothing that another process wrote is overwritten, even if the
database file was replaced and the log belongs to another one. Inside a write transaction nobody else extends the log.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from ramify import paths
from ramify.fork_engine.close_on_fork import close_in_children, refuse_in_child
from ramify.runtime.errors import StoreError, UsedAfterFork
from ramify.runtime.store.address import SCHEMA, Address
from ramify.runtime.store.database_errors import BUSY_TIMEOUT_S, is_busy
from ramify.runtime.store.files_beside import refuse_planted

CONNECT_TIMEOUT_S = 5

PRAGMAS = (
    f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}",  # first, because the next ones may have to wait
    "PRAGMA synchronous = FULL",  # a confirmed commit survives a power cut
    "PRAGMA foreign_keys = ON",
)


def probe(path: Path) -> None:
    """Open and close the file, to raise early if that fails. aiosqlite would raise too, but leave a thread behind
    that calls an event loop which may be closed by then."""
    paths.make_private_file(path)  # SQLite gives its mode to the files beside it
    sqlite3.connect(path).close()


def reader(address: Address, *, pooled: bool = False) -> AsyncEngine:
    """Return the engine for reading. Raises `StoreError` if PostgreSQL's driver is not installed.

    pooled: a pooler before the server gives each transaction another session (`pooler_check.py`).
    """
    if address.file is not None:
        engine = create_async_engine(address.url.set(drivername="sqlite+aiosqlite"))
        prepare(engine.sync_engine)
        return engine
    with _psycopg():
        engine = create_async_engine(address.url, pool_pre_ping=True, **_options(pooled))
    _set_up(engine.sync_engine, pooled)
    return engine


def writer(address: Address, *, pooled: bool = False) -> Engine:
    """Return the engine for writing. `pooled`: as for `reader`.

    On SQLite its transactions take the write lock when they begin: a transaction that reads first and asks for the
    lock later fails at once if another process wrote in between.
    """
    if address.file is not None:
        engine = create_engine(address.url.set(drivername="sqlite"))
        prepare(engine)
        return engine.execution_options(write=True)
    with _psycopg():
        engine = create_engine(address.url, **_options(pooled))
    _set_up(engine, pooled)
    return engine


def without_settings(address: Address) -> Engine:
    """Return an engine on a server that leaves the sessions as they are. Raises `StoreError` as `reader`."""
    with _psycopg():
        return create_engine(address.url, **_options(pooled=True))


def _options(pooled: bool) -> dict[str, Any]:
    """Return the options of an engine on a server. Prepared statements belong to a session."""
    if not pooled:
        return {"connect_args": _SERVER}
    return {"connect_args": {**_SERVER, "prepare_threshold": None}, "isolation_level": "READ COMMITTED"}


def _set_up(engine: Engine, pooled: bool) -> None:
    bind_to_process(engine)
    if pooled:
        event.listen(engine, "begin", lambda connection: in_our_schema_now(connection.connection))
    else:
        event.listen(engine, "connect", _in_our_schema)


@contextmanager
def _psycopg() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise StoreError("PostgreSQL needs psycopg: pip install 'ramify[postgres]'") from error


_SERVER = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "ramify"}


def prepare(engine: Engine) -> None:
    """Set up an engine on a SQLite file: pragmas, explicit transactions, and preallocation of the log."""
    bind_to_process(engine)
    event.listen(engine, "do_connect", _before_connect)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)


def bind_to_process(engine: Engine) -> Engine:
    """Keep an engine's connections from forked children: a child that asks for one gets `UsedAfterFork`.

    The child's copies of sockets to a server are closed. So PostgreSQL ends our session, with its locks, when this
    process ends, even if a child lives on.
    """
    event.listen(engine, "connect", _opened_here)
    event.listen(engine, "checkout", _used_here)
    return engine


def _opened_here(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_OWNER] = os.getpid()
    to_server = getattr(record.driver_connection, "pgconn", None)
    if to_server is not None:
        close_in_children(to_server.socket)


def _used_here(_connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
    refuse_in_child(record.info.get(_OWNER, os.getpid()), "the connection to the database", UsedAfterFork)


_OWNER = "the process that opened it"


def _before_connect(_dialect: Dialect, _record: object, given: Sequence[Any], _options: object) -> None:
    refuse_planted(given[0])


def _on_connect(connection: Any, record: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver does not begin transactions by itself: `_on_begin` does
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    use_write_ahead_log(cursor)
    cursor.execute("SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'")  # file names are bytes
    name = cursor.fetchone()[0]  # empty if the database is in memory
    record.info[_ROOM] = LogPreallocation(Path(os.fsdecode(name + b"-wal")))
    record.info[_FILE] = os.fsdecode(name), _identity(os.fsdecode(name))
    cursor.close()


def use_write_ahead_log(cursor: Any) -> None:
    """Switch a new database to the write-ahead log, and wait for other processes that do the same.

    SQLite does not wait: if another connection has the write lock, it refuses at once, whatever the busy timeout.
    """
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
        time.sleep(_SWITCH_AGAIN_S)


_SWITCH_AGAIN_S = 0.005
_ROOM = "room in the log"
_FILE = "the database file, and which one it was"


def _identity(file: str) -> tuple[int, int] | None:
    """Return what tells a file from another one of the same name; None if there is none."""
    try:
        found = os.stat(file)  # noqa: PTH116  # half the time of Path.stat
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _refuse_if_replaced(connection: Connection) -> None:
    """Raise `StoreError` if the file is not the one that was opened. SQLite would go on in the removed file, and all
    that it confirms would be gone when this process ends."""
    file, opened = connection.info[_FILE]
    if _identity(file) != opened:
        raise StoreError(
            f"the database {file} was moved, removed or replaced while this process used it, so nothing more is "
            "written. Put the file back with its -wal file and resume, or start a new run"
        )


def _on_begin(connection: Connection) -> None:
    own: Any = connection.connection.dbapi_connection
    if isinstance(own, sqlite3.Connection) and own.in_transaction:  # `transaction` has begun it
        return
    write = connection.get_execution_options().get("write", False)
    with driver_errors(connection):
        own.cursor().execute("BEGIN IMMEDIATE" if write else "BEGIN")
        if write:
            _refuse_if_replaced(connection)
            connection.info[_ROOM].make()


class driver_errors:
    """A context in which statements may go to the driver directly, because SQLAlchemy takes longer for them than the
    database. The driver's errors are raised as SQLAlchemy's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        dialect = self._connection.dialect
        driver = dialect.loaded_dbapi
        if not isinstance(error, driver.Error):
            return
        gone = dialect.is_disconnect(error, None, None)
        if gone:
            self._connection.invalidate()
        raise DBAPIError.instance(
            None, None, error, driver.Error, connection_invalidated=gone, dialect=dialect
        ) from error


@contextmanager
def transaction(connection: Connection, *, single: bool = False) -> Iterator[Callable[[], None]]:
    """A write transaction that the driver itself begins and ends: `Connection.begin` takes as long as the rest of a
    small transaction.

    Yields the function that commits; if it is not called, the transaction is rolled back. Statements through
    SQLAlchemy in the block are part of the transaction. On SQLite it takes the write lock at once. On PostgreSQL the
    connection is in autocommit mode. `single`: the block has only one statement, which may commit itself.
    """
    own: Any = connection.connection.driver_connection
    try:
        with driver_errors(connection):
            if isinstance(own, sqlite3.Connection):
                own.execute("BEGIN IMMEDIATE")
                _refuse_if_replaced(connection)
                connection.info[_ROOM].make()
            elif not single:
                own.execute("BEGIN ISOLATION LEVEL READ COMMITTED")  # after waiting for a lock, see earlier commits
            yield own.commit
    except BaseException:
        if not connection.invalidated:
            with driver_errors(connection):
                own.rollback()
        raise


@contextmanager
def looking(connection: Connection) -> Iterator[None]:
    """Like `transaction`, for reading: on SQLite the whole block sees one state and does not wait for writers."""
    own: Any = connection.connection.driver_connection
    if isinstance(own, sqlite3.Connection):  # psycopg begins by itself
        with driver_errors(connection):
            own.execute("BEGIN")
    try:
        yield
    finally:
        if not connection.invalidated:
            with driver_errors(connection):
                own.rollback()


def in_our_schema_now(connection: Any) -> None:
    """Make the settings of `_in_our_schema` for the driver's present transaction."""
    cursor = connection.cursor()
    cursor.execute(
        f"SELECT set_config('search_path', '{SCHEMA}, ' || current_setting('search_path'), true), "
        "set_config('synchronous_commit', 'on', true)"
    )
    cursor.close()


def _in_our_schema(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # keep the user's search path: the saver's tables are there, and may be written in the same transaction
    cursor.execute(f"SELECT set_config('search_path', '{SCHEMA}, ' || current_setting('search_path'), false)")
    cursor.execute("SET default_transaction_isolation TO 'read committed'")  # as the saver's transactions are
    cursor.execute("SET synchronous_commit TO on")  # a confirmed commit survives a power cut
    cursor.close()
    connection.commit()


def sync_folder(folder: Path) -> None:
    """Make new names in the folder durable (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def finish_despite_cancel(work: Coroutine[Any, Any, None] | asyncio.Future[Any]) -> None:
    """Await `work` to its end, even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    task.result()


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
