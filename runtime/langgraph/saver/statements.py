"""What a superstep executes and what a checkpoint is read by, given to the driver itself: SQLAlchemy would take
longer over each than the database does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, Select, Table, and_, bindparam, func, select
from sqlalchemy import Text as PlainText
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPICursor

from ramify.runtime.langgraph.saver.tables import checkpoints, replaces, threads, values, writes

VALUES_AT_ONCE = 32


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
        self.put_checkpoint = Prepared(replaces(insert(checkpoints), checkpoints), dialect, _names(checkpoints))
        self.put_writes = Prepared(replaces(insert(writes), writes), dialect, _names(writes))
        self.put_first_writes = Prepared(insert(writes).on_conflict_do_nothing(), dialect, _names(writes))
        place = tuple(column == bindparam(column.name) for column in writes.primary_key)
        keys = [column.name for column in writes.primary_key]
        self.find_writes = Prepared(select(writes.c.written).where(*place), dialect, keys)
        self.find = Prepared(_found(), dialect, ("thread", "ns", "id"))
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


@contextmanager
def one_trip(connection: Connection) -> Iterator[None]:
    """Statements inside share a round trip to a server. Fetch what they return afterwards."""
    if connection.dialect.name != "postgresql":
        yield
        return
    own: Any = connection.connection.driver_connection
    with own.pipeline():
        yield


def _found() -> Select[Any]:
    """The newest id of a thread's namespace, and beside it the checkpoint of an id, or the newest where that is NULL,
    once for each task that wrote after it. One statement: what it finds was there at one time."""
    thread = select(threads.c.id).where(threads.c.name == bindparam("thread")).scalar_subquery()
    ns = bindparam("ns", type_=PlainText())
    here = (checkpoints.c.thread == thread, checkpoints.c.ns == ns)
    newest = select(func.max(checkpoints.c.id).label("id")).where(*here).subquery("newest")
    wanted = func.coalesce(bindparam("id", type_=PlainText()), newest.c.id)
    columns = [checkpoints.c[name] for name in _READ]
    after = and_(*(writes.c[mine] == checkpoints.c[theirs] for mine, theirs in _AFTER))
    found = newest.outerjoin(checkpoints, and_(*here, checkpoints.c.id == wanted)).outerjoin(writes, after)
    return select(newest.c.id.label("newest"), *columns, writes.c.task, writes.c.path, writes.c.written).select_from(
        found
    )


_READ = ("thread", "id", "parent", "channels", "kind", "body", "word", "compressed")
_AFTER = (("thread", "thread"), ("ns", "ns"), ("checkpoint", "id"))
