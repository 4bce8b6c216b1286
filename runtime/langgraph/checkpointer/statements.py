"""What a superstep executes and what a checkpoint is read by, given to the driver itself: SQLAlchemy would take
longer over each than the database does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, Select, Table, and_, bindparam, func, select
from sqlalchemy import Text as PlainText
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPICursor

from ramify.runtime.langgraph.checkpointer.group_commit import Asks
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, replaces, threads, values, writes

VALUES_AT_ONCE = 32


class Prepared:
    """A statement that is compiled once for a dialect and given to the driver itself: the hot path would spend most
    of its time in SQLAlchemy otherwise. Use inside `driver_errors`, which turns the driver's errors into SQLAlchemy's.

    `names` are the parameters, in the order in which each call gives them.
    """

    def __init__(self, statement: Executable, dialect: Dialect, names: Sequence[str]) -> None:
        compiled = statement.compile(dialect=_positional(dialect), column_keys=names)  # type: ignore[attr-defined]
        order = list(compiled.positiontup or ())
        self.sql = str(compiled)
        self.order = None if order == list(names) else [names.index(name) for name in order]
        self.takes = len(names)

    def __call__(self, connection: Connection, *given: Any) -> DBAPICursor:
        own: Any = connection.connection.driver_connection
        cursor: DBAPICursor = own.cursor()
        cursor.execute(self.sql, given if self.order is None else [given[at] for at in self.order])
        return cursor


class Together:
    """Several that are not to be told apart: all is done, or nothing. On PostgreSQL."""

    def __init__(self, puts: Sequence[Prepared], last: Prepared | None) -> None:
        parts = ", ".join(f"put_{at} AS ({put.sql})" for at, put in enumerate(puts))
        end = "SELECT 1" if last is None else last.sql
        self._sql = f"WITH {parts} {end}" if puts else end
        self._order: list[int] = []
        begin = 0
        for one in [*puts, *([] if last is None else [last])]:
            self._order += [begin + at for at in (one.order or range(one.takes))]
            begin += one.takes

    def __call__(self, connection: Connection, *given: Any) -> DBAPICursor:
        own: Any = connection.connection.driver_connection
        cursor: DBAPICursor = own.cursor()
        cursor.execute(self._sql, [given[at] for at in self._order])
        return cursor


@lru_cache(maxsize=256)
def _together(puts: tuple[Prepared, ...], last: Prepared | None) -> Together:
    return Together(puts, last)


def together(puts: Sequence[Prepared], last: Prepared | None) -> Together:
    """These, and at last that SELECT, as one statement."""
    return _together(tuple(puts), last)


def _positional(dialect: Dialect) -> Dialect:
    """The same, whose statements take their parameters by place."""
    if dialect.positional:
        return dialect
    return type(dialect)(paramstyle="format")  # type: ignore[call-arg]  # as all of SQLAlchemy's take


class Statements:
    """What a superstep executes. Rows are given as their columns stand in the tables."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._server = dialect.name == "postgresql"
        self._insert = postgresql.insert if self._server else sqlite.insert
        insert = self._insert
        same = (values.c.thread == bindparam("thread"), values.c.digest == bindparam("digest"))
        self.find_value = Prepared(select(values.c.id).where(*same), dialect, ("thread", "digest"))
        self.put_checkpoint = Prepared(replaces(insert(checkpoints), checkpoints), dialect, _names(checkpoints))
        self.put_writes = Prepared(replaces(insert(writes), writes), dialect, _names(writes))
        self.put_first_writes = Prepared(insert(writes).on_conflict_do_nothing(), dialect, _names(writes))
        self.put_new_writes = Prepared(insert(writes), dialect, _names(writes))
        place = tuple(column == bindparam(column.name) for column in writes.primary_key)
        keys = [column.name for column in writes.primary_key]
        self.find_writes = Prepared(select(writes.c.written).where(*place), dialect, keys)
        self.find = Prepared(_found(), dialect, ("thread", "ns", "id"))
        self._put_values: dict[int, Prepared] = {}
        self._put_new_values: dict[int, Prepared] = {}

    def put_values(
        self, connection: Connection, digests: Sequence[bytes], found: Sequence[Sequence[Any]]
    ) -> dict[bytes, int]:
        """Digests to ids of those of these values, at most `VALUES_AT_ONCE`, that were not there. One round trip.

        Each as its columns stand after `id`. Where some were there, and SQLite does not say which, none is returned.
        """
        count = len(found)
        if count not in self._put_values:
            rows, given = _given(_names(values)[1:], count)
            new = self._insert(values).values(rows).on_conflict_do_nothing()
            returning = new.returning(values.c.digest, values.c.id) if self._server else new
            self._put_values[count] = Prepared(returning, self._dialect, given)
        if not self._server:  # it numbers rows one after the other; to have them returned takes as long again
            put = self._put_values[count](connection, *chain.from_iterable(found))
            last: int = put.lastrowid
            return dict(zip(digests, range(last - count + 1, last + 1), strict=True)) if put.rowcount == count else {}
        with one_trip(connection):  # also with the BEGIN before it
            put = self._put_values[count](connection, *chain.from_iterable(found))
        return {bytes(digest): id for digest, id in put.fetchall()}

    def put_new_values(self, count: int) -> Prepared:
        """That many values, `id` and all, each at its own."""
        if count not in self._put_new_values:
            rows, given = _given(_names(values), count)
            self._put_new_values[count] = Prepared(self._insert(values).values(rows), self._dialect, given)
        return self._put_new_values[count]


def _given(names: Sequence[str], count: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of parameters, and the parameters' names."""
    rows: list[dict[str, Any]] = [{name: bindparam(f"{name}_{at}") for name in names} for at in range(count)]
    return rows, [f"{name}_{at}" for at in range(count) for name in names]


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


_AT_MOST = 1 << 14  # parameters of one statement: PostgreSQL takes 65,535


@dataclass(frozen=True, slots=True)
class _Row:
    put: Prepared
    given: tuple[Any, ...]
    where_there: Callable[[Connection], None] | None


class Rows:
    """Of one transaction at a time. `boldly`: what is not known to be there is new."""

    def __init__(self) -> None:
        self.boldly = False
        self._rows: list[_Row] = []
        self._takes = 0
        self._only: tuple[Prepared, tuple[Any, ...]] | None = None

    def begin(self, boldly: bool) -> None:
        self.boldly = boldly
        self._only = None
        self._takes = 0
        self._rows.clear()

    def only(self, unless: Prepared, *given: Any) -> None:
        """A SELECT that fails where nothing may be written."""
        self._only = unless, given

    def put(self, statement: Prepared, *given: Any, where_there: Callable[[Connection], None] | None = None) -> None:
        """`where_there`: what is done where a row of that name was there before. What asks, or is more than one
        statement takes, is not done boldly."""
        self._takes += len(given)
        if self.boldly and (where_there is not None or self._takes > _AT_MOST):
            raise Asks
        self._rows.append(_Row(statement, given, where_there))

    def write(self, connection: Connection, commit: Callable[[], None]) -> None:
        """All that was put, and the commit."""
        rows, self._rows = self._rows, []
        if self.boldly:
            self._write_boldly(connection, rows)
        else:
            with one_trip(connection):
                done = [row.put(connection, *row.given) for row in rows]
            for row, cursor in zip(rows, done, strict=True):
                if row.where_there is not None and cursor.rowcount == 0:
                    row.where_there(connection)
        commit()

    def _write_boldly(self, connection: Connection, rows: list[_Row]) -> None:
        unless, given = self._only or (None, ())
        statement = together([row.put for row in rows], unless)
        statement(connection, *(one for row in rows for one in row.given), *given)
