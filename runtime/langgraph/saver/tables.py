"""The tables, on SQLite and on PostgreSQL. Names of ours begin with `ramify_`: the database may be shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Executable,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.dml import Insert as PostgresInsert
from sqlalchemy.dialects.sqlite.dml import Insert as SqliteInsert
from sqlalchemy.engine.interfaces import DBAPICursor

from ramify.runtime.store.tables import Text as Name  # any string: LangGraph's users choose them

VERSION = 1

metadata = MetaData()

Number = BigInteger().with_variant(Integer, "sqlite")

meta = Table("ramify_saver", metadata, Column("version", Integer, primary_key=True))

threads = Table(
    "ramify_threads",
    metadata,
    Column("id", Number, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
)

values = Table(
    "ramify_values",
    metadata,
    Column("id", Number, primary_key=True),
    Column("thread", Number, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("kind", Text, nullable=False),
    Column("head", LargeBinary, nullable=False),
    Column("base", Number),
    Column("keep", Number, nullable=False),
    Column("compressed", Boolean, nullable=False),
    Column("words", Text, nullable=False),  # ids, separated by commas
    Column("tail", LargeBinary, nullable=False),
    UniqueConstraint("thread", "digest"),
)

checkpoints = Table(
    "ramify_checkpoints",
    metadata,
    Column("thread", Number, primary_key=True, autoincrement=False),
    Column("ns", Name, primary_key=True),
    Column("id", Name, primary_key=True),
    Column("parent", Name),
    Column("run", Name),  # metadata's run_id
    Column("made", Float, nullable=False),  # Unix seconds
    Column("channels", Text, nullable=False),  # JSON: channel to the id of its value
    Column("kind", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),  # the checkpoint without its values, and its metadata
    Column("word", Number),  # the value that is the body's dictionary
    Column("compressed", Boolean, nullable=False),
    Index("ramify_checkpoints_run", "run", sqlite_where=Column("run").is_not(None)),
    sqlite_with_rowid=False,
)

writes = Table(
    "ramify_writes",
    metadata,
    Column("thread", Number, primary_key=True, autoincrement=False),
    Column("ns", Name, primary_key=True),
    Column("checkpoint", Name, primary_key=True),
    Column("task", Name, primary_key=True),
    Column("path", Name, nullable=False),
    Column("written", Text, nullable=False),  # JSON: [index, channel, id of the value]
    sqlite_with_rowid=False,
)

items = Table(
    "ramify_items",
    metadata,
    Column("prefix", Name, primary_key=True),  # the namespace, its labels joined by dots
    Column("key", Name, primary_key=True),
    Column("value", Text, nullable=False),  # JSON
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("ttl", Float),  # minutes
)

cached = Table(
    "ramify_cache",
    metadata,
    Column("prefix", Name, primary_key=True),
    Column("key", Name, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("expires_at", Float),
)


class SaverVersionError(RuntimeError):
    """The tables were made by another version of Ramify."""


def make(connection: Connection) -> None:
    """Make the tables where they are missing. Raises `SaverVersionError` for those of another version."""
    if connection.dialect.name == "postgresql":  # of two that make the same table at once, one would be refused
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('ramify saver'))")
    metadata.create_all(connection)
    found = connection.execute(select(meta.c.version)).scalar()
    if found is None:
        connection.execute(meta.insert().values(version=VERSION))
    elif found != VERSION:
        raise SaverVersionError(
            f"the saver's tables are of version {found}, this ramify writes {VERSION}: use the ramify that made "
            "them, or another database"
        )


class Prepared:
    """A statement that is compiled once for a dialect and given to the driver itself: the hot path would spend most
    of its time in SQLAlchemy otherwise. Use inside `drivers_own`, which turns the driver's errors into SQLAlchemy's.

    `names` are the parameters, in the order in which each call gives them.
    """

    def __init__(self, statement: Executable, dialect: Dialect, names: Sequence[str]) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=names)  # type: ignore[attr-defined]
        self._sql = str(compiled)
        self._names = names
        order = compiled.positiontup
        self._as_given = order is not None and list(order) == list(names)
        self._order = None if order is None else [names.index(name) for name in order]

    def __call__(self, connection: Connection, *given: Any) -> DBAPICursor:
        own: Any = connection.connection.driver_connection
        cursor: DBAPICursor = own.cursor()
        cursor.execute(self._sql, given if self._as_given else self._arranged(given))
        return cursor

    def _arranged(self, given: Sequence[Any]) -> Any:
        if self._order is None:
            return dict(zip(self._names, given, strict=True))
        return tuple(given[at] for at in self._order)


class Statements:
    """What a superstep executes. Rows are given as their columns stand in the tables."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._insert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        insert = self._insert
        same = (values.c.thread == bindparam("thread"), values.c.digest == bindparam("digest"))
        self.find_value = Prepared(select(values.c.id).where(*same), dialect, ("thread", "digest"))
        self.put_checkpoint = Prepared(_replace(insert(checkpoints), checkpoints), dialect, _names(checkpoints))
        self.put_writes = Prepared(_replace(insert(writes), writes), dialect, _names(writes))
        self.put_first_writes = Prepared(insert(writes).on_conflict_do_nothing(), dialect, _names(writes))
        place = tuple(column == bindparam(column.name) for column in writes.primary_key)
        keys = [column.name for column in writes.primary_key]
        self.find_writes = Prepared(select(writes.c.written).where(*place), dialect, keys)
        self._put_values: dict[int, Prepared] = {}

    def put_values(self, connection: Connection, found: Sequence[Sequence[Any]]) -> dict[bytes, int]:
        """Digests to ids of those of these values, at most `VALUES_AT_ONCE`, that were not there. One round trip.

        Each as its columns stand after `id`.
        """
        count = len(found)
        if count not in self._put_values:
            names = _names(values)[1:]
            made: list[dict[str, Any]] = [{name: bindparam(f"{name}_{at}") for name in names} for at in range(count)]
            new = self._insert(values).values(made).on_conflict_do_nothing().returning(values.c.digest, values.c.id)
            given = [f"{name}_{at}" for at in range(count) for name in names]
            self._put_values[count] = Prepared(new, self._dialect, given)
        with one_trip(connection):  # also with the BEGIN before it
            put = self._put_values[count](connection, *chain.from_iterable(found))
        return {bytes(digest): id for digest, id in put.fetchall()}


def _names(table: Table) -> list[str]:
    return [column.name for column in table.c]


VALUES_AT_ONCE = 32


@contextmanager
def one_trip(connection: Connection) -> Iterator[None]:
    """Statements inside share a round trip to a server. Fetch what they return afterwards."""
    if connection.dialect.name != "postgresql":
        yield
        return
    own: Any = connection.connection.driver_connection
    with own.pipeline():
        yield


def _replace(insert: SqliteInsert | PostgresInsert, table: Table) -> SqliteInsert | PostgresInsert:
    keys = [column.name for column in table.primary_key]
    rest = {c.name: insert.excluded[c.name] for c in table.c if c.name not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=rest)


def replacing(connection: Connection, table: Table) -> SqliteInsert | PostgresInsert:
    """An INSERT that takes the place of a row with the same key."""
    return _replace(upsert(connection, table), table)


def upsert(connection: Connection, table: Table) -> SqliteInsert | PostgresInsert:
    """An INSERT that can say what to do on a conflict, in the dialect of the connection."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
