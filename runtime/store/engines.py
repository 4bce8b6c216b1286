"""Engines: one that reads, for any task of the event loop, and one whose only connection writes.

SQLite: transactions begin when ours do, and wait for locks. PostgreSQL: our tables stand in a schema of their own,
since a database may be shared (LangGraph's saver has a table `checkpoints`, too).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from ramify.fork_engine.close_on_fork import close_in_children, refuse_in_child
from ramify.runtime.errors import StoreError, UsedAfterFork
from ramify.runtime.store.address import Address
from ramify.runtime.store.database_errors import BUSY_TIMEOUT_S
from ramify.runtime.store.revisions import SCHEMA
from ramify.runtime.store.wal_preallocation import Room

CONNECT_TIMEOUT_S = 5

PRAGMAS = (
    f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}",  # first: the next ones may have to wait
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # a commit that was answered survives a power cut
    "PRAGMA foreign_keys = ON",
)


def probe(path: Path) -> None:
    """Open and close the file. Raises where that cannot be done: aiosqlite would, too, but would leave a thread
    behind that answers an event loop which may be closed by then."""
    sqlite3.connect(path).close()


def reader(address: Address) -> AsyncEngine:
    """Raises `StoreError` where PostgreSQL's driver is not installed."""
    if address.file is not None:
        engine = create_async_engine(address.url.set(drivername="sqlite+aiosqlite"))
        prepare(engine.sync_engine)
        return engine
    with _psycopg():
        engine = create_async_engine(address.url, pool_pre_ping=True, connect_args=_SERVER)
    bind_to_process(engine.sync_engine)
    event.listen(engine.sync_engine, "connect", _in_our_schema)
    return engine


def writer(address: Address) -> Engine:
    """Its transactions take SQLite's write lock when they begin: one that read first and asked for the lock later
    would be refused at once if another process wrote in between."""
    if address.file is not None:
        engine = create_engine(address.url.set(drivername="sqlite"))
        prepare(engine)
        return engine.execution_options(write=True)
    with _psycopg():
        engine = create_engine(address.url, connect_args=_SERVER)
    bind_to_process(engine)
    event.listen(engine, "connect", _in_our_schema)
    return engine


@contextmanager
def _psycopg() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise StoreError("PostgreSQL needs psycopg: pip install 'ramify[postgres]'") from error


_SERVER = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "ramify"}


def prepare(engine: Engine) -> None:
    """Make an engine on a SQLite file behave as the above says."""
    bind_to_process(engine)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)


def bind_to_process(engine: Engine) -> Engine:
    """Keep an engine's connections from children that are forked: a child that asks for one gets `UsedAfterFork`, and
    the child's copies of sockets to a server are closed. There is nobody on the other end to say goodbye to then, so
    that PostgreSQL ends our session, with its locks, when this process ends."""
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


def _on_connect(connection: Any, record: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: `_on_begin` does
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.execute("SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'")  # a name is bytes
    record.info[_ROOM] = Room(Path(os.fsdecode(cursor.fetchone()[0] + b"-wal")))
    cursor.close()


_ROOM = "room in the log"


def _on_begin(connection: Connection) -> None:
    own: Any = connection.connection.dbapi_connection
    if isinstance(own, sqlite3.Connection) and own.in_transaction:  # `transaction` was faster
        return
    write = connection.get_execution_options().get("write", False)
    with driver_errors(connection):
        own.cursor().execute("BEGIN IMMEDIATE" if write else "BEGIN")
        if write:
            connection.info[_ROOM].make()


class driver_errors:
    """Statements of each transaction go to the driver itself inside, since SQLAlchemy takes longer over them than the
    database does. The driver's errors come out as SQLAlchemy's, as from anything else."""

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
    """A transaction that the driver itself begins and ends: `Connection.begin` takes as long as the rest of a small
    one. It gives what commits; without it, all is rolled back. What is done through SQLAlchemy inside is part of it.
    On SQLite it takes the write lock at once. On PostgreSQL the connection is one that commits by itself; `single`:
    one statement is all there is, so that it may."""
    own: Any = connection.connection.driver_connection
    try:
        with driver_errors(connection):
            if isinstance(own, sqlite3.Connection):
                own.execute("BEGIN IMMEDIATE")
                connection.info[_ROOM].make()
            elif not single:
                own.execute("BEGIN ISOLATION LEVEL READ COMMITTED")  # who waited for a lock sees what came before
            yield own.commit
    except BaseException:
        if not connection.invalidated:
            with driver_errors(connection):
                own.rollback()
        raise


@contextmanager
def looking(connection: Connection) -> Iterator[None]:
    """As `transaction`, for what only reads: on SQLite all of it sees one state, and waits for no writer."""
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


def _in_our_schema(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # first, not alone: the saver's tables stand where its user has them, and may be written in the same transaction
    cursor.execute(f"SELECT set_config('search_path', '{SCHEMA}, ' || current_setting('search_path'), false)")
    cursor.execute("SET default_transaction_isolation TO 'read committed'")  # as the saver's transactions are
    cursor.execute("SET synchronous_commit TO on")  # a commit that was answered survives a power cut
    cursor.close()
    connection.commit()


def sync_folder(folder: Path) -> None:
    """Make the folder's new names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def finish_despite_cancel(work: Coroutine[Any, Any, None] | asyncio.Future[Any]) -> None:
    """Await `work`; a cancelled caller hears of it only when the work is over, done or failed."""
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
