"""The tables, on SQLite and PostgreSQL. Their names begin with `ramify_`, since other programs may share the
database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.dml import Insert as PostgresInsert
from sqlalchemy.dialects.sqlite.dml import Insert as SqliteInsert

from ramify.runtime.store.tables import Text as Name  # any string: LangGraph's users choose them

VERSION = 1

metadata = MetaData()

Number = BigInteger().with_variant(Integer, "sqlite")

meta = Table("ramify_saver", metadata, Column("version", Integer, primary_key=True))

# number of deletions so far: checkpoint_writes.py
deletion_epoch_table = Table("ramify_house", metadata, Column("number", Number, nullable=False))

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
    Column("run", Name),  # run_id of the metadata
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


SAVER_TABLES = (meta, deletion_epoch_table, threads, values, checkpoints, writes)
STORE_TABLES = (meta, items)
CACHE_TABLES = (meta, cached)
"""What each of the three needs. An empty table takes two pages, so none is made before somebody uses it."""


class SaverVersionError(RuntimeError):
    """The tables were made by another version of Ramify."""


def make(connection: Connection, needed: Sequence[Table]) -> None:
    """Make those of the needed tables that are missing. Raises `SaverVersionError` if they are of another version."""
    # if two processes made the same table at once, one of them would fail
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('ramify saver'))")
    metadata.create_all(connection, tables=needed)
    found = connection.execute(select(meta.c.version)).scalar()
    if found is None:
        connection.execute(meta.insert().values(version=VERSION))
    elif found != VERSION:
        raise SaverVersionError(
            f"the saver's tables have version {found}, this Ramify writes {VERSION}: use the Ramify that made "
            "them, or another database"
        )
    if deletion_epoch_table not in needed:
        return
    if connection.execute(select(deletion_epoch_table.c.number)).first() is None:
        connection.execute(deletion_epoch_table.insert().values(number=0))


def replaces(insert: SqliteInsert | PostgresInsert, table: Table) -> SqliteInsert | PostgresInsert:
    """Return the INSERT so that it replaces a row with the same key."""
    keys = [column.name for column in table.primary_key]
    rest = {c.name: insert.excluded[c.name] for c in table.c if c.name not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=rest)


def replacing(connection: Connection, table: Table) -> SqliteInsert | PostgresInsert:
    """Return an INSERT that replaces a row with the same key."""
    return replaces(upsert(connection, table), table)


def upsert(connection: Connection, table: Table) -> SqliteInsert | PostgresInsert:
    """Return an INSERT of the connection's dialect, which can say what to do on a conflict."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
