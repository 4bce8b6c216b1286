"""The databases of `ramify.Saver` and of LangGraph's own savers, opened by their address to copy threads.

The async savers of LangGraph have the tables of the others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from ramify.runtime.langgraph.checkpointer.database import open_read_only_engine
from ramify.runtime.langgraph.checkpointer.portable_serializer import PortableSerializer
from ramify.runtime.langgraph.checkpointer.saver import Saver
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, threads, writes
from ramify.runtime.langgraph.checkpointer.thread_copies import CheckpointId, TaskId
from ramify.runtime.langgraph.errors import ThreadNotCopied
from ramify.runtime.store.address import Address, parse
from ramify.runtime.store.database_errors import as_store_errors

_CHECKPOINTS = {"thread_id", "checkpoint_ns", "checkpoint_id"}
"""Columns of LangGraph's table `checkpoints`. Its shallow savers, which keep no history, have no `checkpoint_id`."""


@dataclass(frozen=True)
class SaverThreads:
    """The threads of a `ramify.Saver`."""

    saver: Saver
    engine: Engine

    def names(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(threads.c.name).order_by(threads.c.name)).scalars())

    def checkpoints(self, thread: str) -> list[CheckpointId]:
        query = select(checkpoints.c.ns, checkpoints.c.id).join(threads, threads.c.id == checkpoints.c.thread)
        with self.engine.connect() as connection:
            rows = connection.execute(query.where(threads.c.name == thread)).all()
        return sorted((CheckpointId(*row) for row in rows), key=lambda place: place.id)

    def task_paths(self, thread: str) -> Mapping[TaskId, str]:
        query = select(writes.c.ns, writes.c.checkpoint, writes.c.task, writes.c.path)
        query = query.join(threads, threads.c.id == writes.c.thread).where(threads.c.name == thread)
        with self.engine.connect() as connection:
            return {TaskId(*task): path for *task, path in connection.execute(query)}


@dataclass(frozen=True)
class LangGraphThreads:
    """The threads of a saver of LangGraph's. `rows` runs a query with `?` for each value."""

    saver: BaseCheckpointSaver[Any]
    rows: Callable[[str, Sequence[str]], list[tuple[str, ...]]]
    writes: str  # the table
    has_paths: bool

    def names(self) -> list[str]:
        return [name for (name,) in self.rows("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id", ())]

    def checkpoints(self, thread: str) -> list[CheckpointId]:
        query = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_id"
        return [CheckpointId(*row) for row in self.rows(query, (thread,))]

    def task_paths(self, thread: str) -> Mapping[TaskId, str]:
        if not self.has_paths:  # the saver reads the writes in the order of the tasks' ids, and so will the target
            return {}
        query = (
            f"SELECT DISTINCT checkpoint_ns, checkpoint_id, task_id, task_path FROM {self.writes} WHERE thread_id = ?"
        )
        return {TaskId(*task): path for *task, path in self.rows(query, (thread,))}


@contextmanager
def saver_threads(address: str | Path, *, keep_exact: bool, create: bool = False) -> Iterator[SaverThreads]:
    """Open the database of a `ramify.Saver`. `create`: make what is missing; otherwise raises `ThreadNotCopied`.

    Raises `StoreError` if the database cannot be used."""
    where = parse(address)
    if not create and where.file is not None and not where.file.exists():
        raise ThreadNotCopied.no_file(str(where))
    with _store_errors(where), Saver(address, serde=PortableSerializer(keep_exact=keep_exact)) as saver:
        engine = open_read_only_engine(address)
        try:
            yield SaverThreads(saver, engine)
        finally:
            engine.dispose()


@contextmanager
def _store_errors(where: Address) -> Iterator[None]:
    """Raise SQLAlchemy's errors as `StoreError`. Only our own savers use it; other errors are not of our database."""
    try:
        yield
    except SQLAlchemyError:
        with as_store_errors(where):
            raise


@contextmanager
def langgraph_threads(address: str | Path, *, create: bool = False) -> Iterator[LangGraphThreads]:
    """Open the database of a `SqliteSaver` or a `PostgresSaver`. `create`: make its tables if they are missing;
    otherwise the database is only read, and `ThreadNotCopied` says that they are missing."""
    where = parse(address)
    opened = _sqlite(where.file, create) if where.file is not None else _postgres(where, create)
    with opened as found:
        yield found


@contextmanager
def _sqlite(file: Path, create: bool) -> Iterator[LangGraphThreads]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ModuleNotFoundError as error:
        raise ThreadNotCopied.not_installed("langgraph-checkpoint-sqlite") from error
    if not create and not file.exists():
        raise ThreadNotCopied.no_file(str(file))
    mode = "rwc" if create else "ro"
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", uri=True, check_same_thread=False)
        with closing(connection):
            saver = SqliteSaver(connection, serde=PortableSerializer(keep_exact=False))
            if create:
                saver.setup()

            def rows(query: str, values: Sequence[str]) -> list[tuple[str, ...]]:
                return connection.execute(query, values).fetchall()

            def columns(table: str) -> set[str]:
                return {name for (name,) in rows("SELECT name FROM pragma_table_info(?)", (table,))}

            _require_tables(columns("checkpoints"), str(file))
            yield LangGraphThreads(saver, rows, "writes", "task_path" in columns("writes"))
    except sqlite3.Error as error:
        raise ThreadNotCopied.database(str(file), str(error)) from error


@contextmanager
def _postgres(where: Address, create: bool) -> Iterator[LangGraphThreads]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError as error:
        raise ThreadNotCopied.not_installed("langgraph-checkpoint-postgres") from error
    address = where.url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with (
            psycopg.connect(address, autocommit=True) as connection,
            PostgresSaver.from_conn_string(address) as saver,
        ):
            saver.serde = PortableSerializer(keep_exact=False)
            if create:
                saver.setup()

            def rows(query: str, values: Sequence[str]) -> list[tuple[str, ...]]:
                return connection.execute(query.replace("?", "%s").encode(), values).fetchall()

            def columns(table: str) -> set[str]:
                found = rows(
                    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0", (table,)
                )
                return {name for (name,) in found}

            _require_tables(columns("checkpoints"), str(where))
            if "task_path" not in columns("checkpoint_writes"):  # LangGraph's queries need it
                raise ThreadNotCopied.outdated(str(where))
            yield LangGraphThreads(saver, rows, "checkpoint_writes", has_paths=True)
    except psycopg.Error as error:
        raise ThreadNotCopied.database(str(where), str(error)) from error


def _require_tables(columns: set[str], where: str) -> None:
    if not columns:
        raise ThreadNotCopied.nothing_there(where)
    if missing := _CHECKPOINTS - columns:
        raise ThreadNotCopied.database(where, f"its table `checkpoints` has no {', '.join(sorted(missing))}")
