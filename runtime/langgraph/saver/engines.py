"""From an address to a database: `sqlite:///FILE`, `postgresql://…`, or a path."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from ramify.runtime.store.connect import of_this_process, prepare, sync_folder
from ramify.runtime.store.failures import BUSY_TIMEOUT_S
from ramify.runtime.store.unwritable import connected


def open_engine(address: str | Path) -> Engine:
    """An engine whose transactions survive a power cut once they are committed.

    Raises `ValueError` for an address that is none, and for a database in memory: nothing would be durable.
    """
    url = URL.create("sqlite", database=os.fspath(address)) if isinstance(address, Path) else _url(address)
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    if url.get_backend_name() == "postgresql":
        try:
            return of_this_process(create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True))
        except ModuleNotFoundError as error:
            raise ValueError("PostgreSQL needs psycopg: pip install 'ramify[postgres]'") from error
    raise ValueError(f"no saver for {url.get_backend_name()}: give sqlite:///FILE or postgresql://HOST/DATABASE")


def engine_to_read(address: str | Path) -> Engine:
    """As `open_engine`, for who only looks: also into a file that cannot be written. It is not made."""
    url = URL.create("sqlite", database=os.fspath(address)) if isinstance(address, Path) else _url(address)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return open_engine(address)
    file = Path(str(url.database))
    engine = create_engine("sqlite://", creator=lambda: connected(file, timeout_s=BUSY_TIMEOUT_S), poolclass=NullPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))  # one look, one state
    return engine


def _url(address: str) -> URL:
    if "://" not in address:
        return URL.create("sqlite", database=address)
    try:
        return make_url(address)
    except ArgumentError:
        raise ValueError("not a database's address: give sqlite:///FILE or postgresql://HOST/DATABASE") from None


def _sqlite(url: URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise ValueError("a saver keeps its checkpoints: name a file, or use LangGraph's InMemorySaver")
    folder = Path(str(url.database)).absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url.set(drivername="sqlite"))
    prepare(engine)
    engine.connect().close()
    sync_folder(folder)
    return engine
