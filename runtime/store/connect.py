"""A SQLite file as an engine that begins its own transactions and waits for locks."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ramify.runtime.store.failures import BUSY_TIMEOUT_S

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


def open_engine(path: Path) -> AsyncEngine:
    """Transactions of `engine.execution_options(write=True)` take the write lock when they begin: one that read
    first and asked for the lock later would be refused at once if another process wrote in between."""
    engine = create_async_engine(URL.create("sqlite+aiosqlite", database=os.fspath(path)))
    prepare(engine.sync_engine)
    return engine


def prepare(engine: Engine) -> None:
    """Make an engine on a SQLite file behave as `open_engine` says."""
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: `_on_begin` does
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _on_begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def sync_folder(folder: Path) -> None:
    """Make the folder's new names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
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
