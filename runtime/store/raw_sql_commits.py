"""Write the usual commits of a run by SQL of our own. SQLAlchemy's overhead would be longer than the database's time.

Almost every commit of a run adds rows and touches the run's own row. On PostgreSQL a whole batch of such commits is
one statement: its own transaction, and one round trip. A count that is not as it should be (a lease that is lost, a
batch that was committed before, a run that is gone) divides by zero there, so that nothing is written. The committer
then writes the batch in the general way, which says what is wrong.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Table

from ramify.runtime.records import RunId, RunStatus
from ramify.runtime.store import blobs, leases, tables
from ramify.runtime.store.engines import driver_errors, transaction
from ramify.runtime.store.leases import Owner
from ramify.runtime.store.plain_queries import SERVER_NOW
from ramify.runtime.store.stored_texts import ESCAPED, Digest, Packed

Row: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

INSERTED = (tables.runs, tables.ops, tables.llm, tables.checkpoints)


@dataclass(frozen=True, slots=True)
class SimpleCommit:
    """What a commit of a run writes that only adds rows and touches, begins or ends the run.

    rows: new rows, by table. touched: `updated_at` and `consumed_s` of the run's own row. ended: if the run ends
    without an error, its status, and the digest of its result or None. taken: the folder of the run's file lock, if
    the run is new and its lease is taken. left: the lease is given back.
    """

    run: RunId
    rows: Mapping[Table, Sequence[Row]]
    touched: tuple[float, float] | None = None
    ended: tuple[str, Digest | None] | None = None
    taken: str | None = None
    left: bool = False


_MOST_VALUES = 20_000  # of one statement: PostgreSQL takes 65,535


class Refused(Exception):
    """The batch was not written; the general way says why."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The values of a batch, in the order in which both databases write them."""

    texts: Mapping[Digest, Packed]
    rows: Sequence[tuple[Table, Sequence[Row]]]
    touched: Mapping[RunId, tuple[float, float]]
    ended: Mapping[RunId, tuple[float, float, str, Digest | None]]
    taken: Mapping[RunId, str]
    fenced: Mapping[RunId, int]
    left: Mapping[RunId, int]


def _batch(found: Sequence[SimpleCommit], texts: Mapping[Digest, Packed], tokens: Mapping[RunId, int]) -> _Batch:
    begun = {one.run for one in found if one.rows.get(tables.runs)}
    if any(one.run in begun and one.touched is not None for one in found):
        raise Refused  # one statement does not see its own new rows
    rows = [(table, [row for one in found for row in one.rows.get(table, ())]) for table in INSERTED]
    ended = {
        one.run: (*one.touched, *one.ended) for one in found if one.touched is not None and one.ended is not None
    }
    leaving = {one.run for one in found if one.left}
    return _Batch(
        texts,
        [(table, those) for table, those in rows if those],
        {one.run: one.touched for one in found if one.touched is not None and one.run not in ended},
        ended,
        {one.run: one.taken for one in found if one.taken is not None},
        {run: token for run, token in tokens.items() if run not in leaving},
        {run: token for run, token in tokens.items() if run in leaving},
    )


def write_to_file(
    connection: Connection,
    found: Sequence[SimpleCommit],
    texts: Mapping[Digest, Packed],
    tokens: Mapping[RunId, int],
    owner: Owner,
    now: float,
    written: Callable[[], None],
) -> None:
    """Write a batch to SQLite. written: called before the commit. Raises `Refused`."""
    batch = _batch(found, texts, tokens)
    own: Any = connection.connection.driver_connection
    assert isinstance(own, sqlite3.Connection)
    with transaction(connection) as commit, driver_errors(connection):
        if tokens and len(own.execute(*leases.fence(owner, tokens)).fetchall()) < len(tokens):
            raise Refused
        new = _insert(tables.blobs, 1, "?", _ONCE)
        if blobs.are_long(batch.texts):
            blobs.put_in_pieces(batch.texts, lambda row: own.execute(new, _stored_text(row)).rowcount == 1)
        elif batch.texts:
            own.executemany(new, map(_stored_text, blobs.in_rows(batch.texts)))
        for table, rows in batch.rows:
            for some in _pieces(_each(table, rows)):
                own.execute(_insert(table, len(some), "?"), tuple(chain.from_iterable(some)))
        for run, at in batch.touched.items():
            _one(own.execute(f"{_TOUCH} WHERE id = ?", (*at, run)))
        for run, end in batch.ended.items():
            _one(own.execute(f"{_TOUCH}, {_END} WHERE id = ? AND status = '{RunStatus.RUNNING}'", (*end, run)))
        for run, folder in batch.taken.items():
            mine = (owner.writer, owner.host, owner.pid, folder)
            own.execute(_taking("?", "?"), (run, *mine, now, now, owner.lasts_s))
        for run, token in batch.left.items():
            own.execute(f"UPDATE leases SET owner = NULL WHERE {_MINE_IN_FILE}", (run, owner.writer, token))
        written()
        commit()


def _one(cursor: sqlite3.Cursor) -> None:
    if cursor.rowcount != 1:
        raise Refused


_AT_ONCE = (64, 8, 1)
"""How many rows one statement writes to a file. Python leaves its lock for each statement, and if other threads
compute, gets it back up to 5 ms later."""


def _pieces(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Divide the rows by numbers for which a statement is prepared once."""
    at = 0
    for size in _AT_ONCE:
        while len(rows) - at >= size:
            yield rows[at : at + size]
            at += size


def write_to_server(
    connection: Connection,
    found: Sequence[SimpleCommit],
    texts: Mapping[Digest, Packed],
    tokens: Mapping[RunId, int],
    owner: Owner,
    numbered: tuple[str, int, float],
) -> int:
    """Write a batch to PostgreSQL, in one statement. numbered: the writer, the number of the batch, and the time.
    Returns the session that wrote it. Raises `Refused`, and a `DBAPIError` if a count is not as it should be."""
    batch = _batch(found, texts, tokens)
    shape = (
        len(batch.fenced),
        len(batch.left),
        len(batch.texts),
        tuple((table.name, len(rows)) for table, rows in batch.rows),
        len(batch.touched),
        len(batch.ended),
        len(batch.taken),
    )
    values: list[object] = [*numbered]
    for held in (batch.fenced, batch.left):
        if held:
            values.append(owner.writer)
            values += [value for pair in held.items() for value in pair]
    values += [value for row in blobs.in_rows(batch.texts) for value in _stored_text(row)]
    values += [value for table, rows in batch.rows for row in _each(table, rows) for value in row]
    values += [value for run, at in batch.touched.items() for value in (run, *at)]
    values += [value for run, end in batch.ended.items() for value in (run, *end)]
    for run, folder in batch.taken.items():
        values += (run, owner.writer, owner.host, owner.pid, folder, owner.lasts_s)
    if len(values) > _MOST_VALUES:
        raise Refused
    own: Any = connection.connection.driver_connection
    with driver_errors(connection):
        if not own.autocommit:
            own.autocommit = True
        session: int = own.execute(_statement(shape), values).fetchone()[0]
    return session


def in_transactions(connection: Connection) -> None:
    """Let statements on this connection to a server begin a transaction again, as SQLAlchemy expects."""
    own: Any = connection.connection.driver_connection
    if own.autocommit:
        own.autocommit = False


_Shape: TypeAlias = tuple[int, int, int, tuple[tuple[str, int], ...], int, int, int]

_ONCE = " ON CONFLICT DO NOTHING"
_TOUCH = "UPDATE runs SET updated_at = ?, consumed_s = ?"
_END = "status = ?, error = '', result_blob = COALESCE(?, result_blob)"
_MINE_IN_FILE = "run_id = ? AND owner = ? AND token = ?"


@lru_cache(maxsize=256)
def _statement(shape: _Shape) -> str:
    """Return the statement for a batch with so many values of each kind."""
    fenced, left, texts, rows, touched, ended, taken = shape
    parts = {
        "numbered": (
            "INSERT INTO writers (id, batch, at) VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
            "batch = excluded.batch, at = excluded.at WHERE writers.batch < excluded.batch "
            "RETURNING pg_backend_pid() AS session"
        )
    }
    counts = {"numbered": 1}
    if fenced:
        parts["fenced"] = f"SELECT 1 FROM leases WHERE {_mine(fenced)} FOR SHARE"
        counts["fenced"] = fenced
    if left:
        parts["left_"] = f"UPDATE leases SET owner = NULL WHERE {_mine(left)} RETURNING 1"
        counts["left_"] = left
    if texts:
        parts["texts"] = _insert(tables.blobs, texts, "%s", _ONCE)
    for name, count in rows:
        parts[f"new_{name}"] = _insert(tables.metadata.tables[name], count, "%s")
    if touched:
        given = ", ".join(["(%s::text, %s::float8, %s::float8)"] * touched)
        parts["touched"] = (
            f"UPDATE runs SET updated_at = v.at, consumed_s = v.used FROM (VALUES {given}) AS v (id, at, used) "
            "WHERE runs.id = v.id RETURNING 1"
        )
        counts["touched"] = touched
    if ended:
        given = ", ".join(["(%s::text, %s::float8, %s::float8, %s::text, %s::text)"] * ended)
        parts["ended"] = (
            "UPDATE runs SET status = v.status, error = '', updated_at = v.at, consumed_s = v.used, "
            f"result_blob = COALESCE(v.result, runs.result_blob) FROM (VALUES {given}) "
            "AS v (id, at, used, status, result) "
            f"WHERE runs.id = v.id AND runs.status = '{RunStatus.RUNNING}' RETURNING 1"
        )
        counts["ended"] = ended
    for number in range(taken):
        parts[f"taken_{number}"] = _taking("%s", SERVER_NOW)
    right = " AND ".join(f"(SELECT count(*) FROM {name}) = {count}" for name, count in counts.items())
    before = ", ".join(f"{name} AS ({query})" for name, query in parts.items())
    return f"WITH {before} SELECT (SELECT session FROM numbered), 1 / (CASE WHEN {right} THEN 1 ELSE 0 END)"


def _mine(count: int) -> str:
    return f"owner = %s AND ({' OR '.join(['(run_id = %s AND token = %s)'] * count)})"


def _taking(mark: str, now: str) -> str:
    """The insert of the lease of a new run. Its token is 1."""
    return (
        "INSERT INTO leases (run_id, owner, token, host, pid, lock_folder, taken_at, renewed_at, renewals, lasts_s, "
        f"stop_until) VALUES ({mark}, {mark}, 1, {mark}, {mark}, {mark}, {now}, {now}, 0, {mark}, 0)"
    )


@cache
def _insert(table: Table, count: int, mark: str, more: str = "") -> str:
    names = [f'"{name}"' for name, _ in _columns(table)]
    row = f"({', '.join([mark] * len(names))})"
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {', '.join([row] * count)}{more}"


def _each(table: Table, rows: Sequence[Row]) -> Sequence[tuple[object, ...]]:
    """Return the values of rows as the database stores them."""
    columns = _columns(table)
    found: list[tuple[object, ...]] = list(map(itemgetter(*(name for name, _ in columns)), rows))
    if _are_plain(found):
        return found
    stores = [store for _, store in columns]
    return [tuple(v if store is None else store(v) for store, v in zip(stores, row, strict=True)) for row in found]


def _stored_text(row: Row) -> tuple[object, ...]:
    """Return the values of a row of `blobs` as the database stores them. Long texts are not copied."""
    return tuple(row[name] if store is None else store(row[name]) for name, store in _columns(tables.blobs))


def _are_plain(rows: Sequence[Sequence[object]]) -> bool:
    """Whether all values are stored as they are, which almost all are: one look, in place of one at each text."""
    if not _PLAIN.issuperset(map(type, chain.from_iterable(rows))):
        return False
    text = "".join([one for row in rows for one in row if type(one) is str])
    return text.isascii() and "\0" not in text and ESCAPED not in text


_PLAIN = frozenset((str, int, float, bytes, NoneType))


@cache
def _columns(table: Table) -> tuple[tuple[str, Callable[[Any], str | None] | None], ...]:
    """The columns of a table except `n`, each with the function that makes a value storable, if it needs one."""
    found = (column for column in table.c if column.name != "n")
    return tuple((one.name, tables.stored if isinstance(one.type, tables.Text) else None) for one in found)
