"""The statements of the hot path, given to the driver itself, and rows that wait for the end of a transaction.

SQLAlchemy would take longer over each statement than the database does.

On a server the round trip takes longer than a row, and a pipeline of statements longer than one statement that holds
them. So rows that need no answer wait for the end, where they are one statement, which is a transaction by itself. An
answer is needed only to learn whether a value, or a task's writes, exist already. As far as this process knows they
do not, so they are inserted as new (`optimistic`). If another process was faster, the server refuses everything, and
it is done again in a transaction that waits for each answer (decision 017).
"""

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

from ramify.runtime.langgraph.checkpointer.group_commit import NeedsAnswer
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, replaces, threads, values, writes

VALUES_AT_ONCE = 32


class Prepared:
    """A statement that is compiled once for a dialect and given to the driver itself. SQLAlchemy would take most of
    the hot path's time. Use it inside `driver_errors`, which turns the driver's errors into SQLAlchemy's.

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


class CombinedStatement:
    """Several PostgreSQL statements in one, so that all of them take effect or none."""

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
def _combined(puts: tuple[Prepared, ...], last: Prepared | None) -> CombinedStatement:
    return CombinedStatement(puts, last)


def combine(puts: Sequence[Prepared], last: Prepared | None) -> CombinedStatement:
    """Return these statements, followed by that SELECT, as one statement."""
    return _combined(tuple(puts), last)


def _positional(dialect: Dialect) -> Dialect:
    """Return the same dialect with positional parameters."""
    if dialect.positional:
        return dialect
    return type(dialect)(paramstyle="format")  # type: ignore[call-arg]  # as all of SQLAlchemy's take


class Statements:
    """The statements of a superstep. Rows are given with their values in the order of the table's columns."""

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
        """Insert values, at most `VALUES_AT_ONCE`, in one round trip. Return digest to id of those that did not
        exist.

        Each is given as its columns after `id`. If some existed, SQLite does not say which, and nothing is returned.
        """
        count = len(found)
        if count not in self._put_values:
            rows, given = _given(_names(values)[1:], count)
            new = self._insert(values).values(rows).on_conflict_do_nothing()
            returning = new.returning(values.c.digest, values.c.id) if self._server else new
            self._put_values[count] = Prepared(returning, self._dialect, given)
        if not self._server:  # SQLite numbers new rows consecutively, and RETURNING would take as long again
            put = self._put_values[count](connection, *chain.from_iterable(found))
            last: int = put.lastrowid
            return dict(zip(digests, range(last - count + 1, last + 1), strict=True)) if put.rowcount == count else {}
        with one_trip(connection):  # shares the round trip with BEGIN
            put = self._put_values[count](connection, *chain.from_iterable(found))
        return {bytes(digest): id for digest, id in put.fetchall()}

    def put_new_values(self, count: int) -> Prepared:
        """Return a statement that inserts that many values with given ids."""
        if count not in self._put_new_values:
            rows, given = _given(_names(values), count)
            self._put_new_values[count] = Prepared(self._insert(values).values(rows), self._dialect, given)
        return self._put_new_values[count]


_of_sqlite: dict[type[Dialect], Statements] = {}


def statements_for(dialect: Dialect) -> Statements:
    """Return the statements of a dialect. For SQLite they are compiled once in a process: that is a third of the time
    of opening a saver."""
    if dialect.name != "sqlite":
        return Statements(dialect)
    if type(dialect) not in _of_sqlite:
        _of_sqlite[type(dialect)] = Statements(dialect)
    return _of_sqlite[type(dialect)]


def _given(names: Sequence[str], count: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return rows of parameters, and the parameters' names."""
    rows: list[dict[str, Any]] = [{name: bindparam(f"{name}_{at}") for name in names} for at in range(count)]
    return rows, [f"{name}_{at}" for at in range(count) for name in names]


def _names(table: Table) -> list[str]:
    return [column.name for column in table.c]


@contextmanager
def one_trip(connection: Connection) -> Iterator[None]:
    """Send the statements inside in one round trip to a server. Fetch their results afterwards."""
    if connection.dialect.name != "postgresql":
        yield
        return
    own: Any = connection.connection.driver_connection
    with own.pipeline():
        yield


def _found() -> Select[Any]:
    """Select the newest id of a thread's namespace, and next to it the checkpoint with the given id (the newest if
    NULL), once for each task that wrote after it. One statement, so that everything is read from one state."""
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


_AT_MOST = 1 << 14  # parameters of one statement: PostgreSQL allows 65,535


@dataclass(frozen=True, slots=True)
class _Row:
    put: Prepared
    given: tuple[Any, ...]
    where_there: Callable[[Connection], None] | None


class PendingRows:
    """The waiting rows of one transaction at a time. `optimistic`: rows that are not known to exist are inserted as
    new."""

    def __init__(self) -> None:
        self.optimistic = False
        self._rows: list[_Row] = []
        self._takes = 0
        self._only: tuple[Prepared, tuple[Any, ...]] | None = None

    def begin(self, optimistic: bool) -> None:
        self.optimistic = optimistic
        self._only = None
        self._takes = 0
        self._rows.clear()

    def only(self, unless: Prepared, *given: Any) -> None:
        """Add a SELECT that fails if nothing may be written."""
        self._only = unless, given

    def put(self, statement: Prepared, *given: Any, where_there: Callable[[Connection], None] | None = None) -> None:
        """Add a row. `where_there` is called if a row with its key existed. A row with it, or one too many for a
        single statement, is refused in an optimistic transaction."""
        self._takes += len(given)
        if self.optimistic and (where_there is not None or self._takes > _AT_MOST):
            raise NeedsAnswer
        self._rows.append(_Row(statement, given, where_there))

    def write(self, connection: Connection, commit: Callable[[], None]) -> None:
        """Write all rows, and commit."""
        rows, self._rows = self._rows, []
        if self.optimistic:
            self._write_optimistic(connection, rows)
        else:
            with one_trip(connection):
                done = [row.put(connection, *row.given) for row in rows]
            for row, cursor in zip(rows, done, strict=True):
                if row.where_there is not None and cursor.rowcount == 0:
                    row.where_there(connection)
        commit()

    def _write_optimistic(self, connection: Connection, rows: list[_Row]) -> None:
        unless, given = self._only or (None, ())
        statement = combine([row.put for row in rows], unless)
        statement(connection, *(one for row in rows for one in row.given), *given)
