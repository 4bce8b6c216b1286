"""LangGraph's long-term store on disk: JSON objects by namespace and key, without semantic search."""

from __future__ import annotations

import asyncio
import json
import math
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import orjson
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)
from sqlalchemy import ColumnElement, Connection, Dialect, Row, and_, or_, select, true, type_coerce
from sqlalchemy import Text as PlainText

from ramify.runtime.langgraph.checkpointer.database import DatabaseClient, ReadyCount, value_at
from ramify.runtime.langgraph.checkpointer.tables import STORE_TABLES, items, upsert
from ramify.runtime.langgraph.checkpointer.ttl_sweeper import Sweeping, TTLSweeper
from ramify.runtime.store.stored_texts import escaped, written

_MINUTE = 60.0

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda a, b: a == b,
    "$ne": lambda a, b: a != b,
    "$gt": lambda a, b: _ordered(a, b, operator.gt),
    "$gte": lambda a, b: _ordered(a, b, operator.ge),
    "$lt": lambda a, b: _ordered(a, b, operator.lt),
    "$lte": lambda a, b: _ordered(a, b, operator.le),
}


class Store(DatabaseClient, BaseStore):
    """Use `with Store.open("sqlite:///file.db") as store`, also with PostgreSQL and `async with`.

    A search returns the items that were put last first, as LangGraph's stores on databases do.

    Values are JSON objects. Times, UUIDs, enums and dataclasses are stored as LangGraph's own stores do: as text and
    objects. The `query` of a search has no effect, as in any LangGraph store without an index.
    """

    supports_ttl = True
    _tables = STORE_TABLES

    def __init__(
        self,
        address: str | Path,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`ttl`: LangGraph's, with `default_ttl` and `sweep_interval_minutes` in minutes. Raises `ValueError` for an
        `index`: this store has no semantic search."""
        if index is not None:
            raise ValueError(
                "this store has no vector index, so a search by meaning would not be one: use LangGraph's "
                "PostgresStore or SqliteStore with index=, or leave index out"
            )
        self.ttl_config = ttl
        self._begin(address, clock)
        self._sweeper = TTLSweeper(self._sweep)

    @classmethod
    def from_conn_string(
        cls, conn_string: str, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None
    ) -> Self:
        """Open a connection string, as LangGraph's own stores do."""
        return cls.open(conn_string, index=index, ttl=ttl)

    def close(self) -> None:
        self._sweeper.stop()
        super().close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run all operations in one transaction. As in LangGraph's own store, reads see the state before the
        batch."""
        given = list(ops)
        for op in given:
            _validate(op)

        def work(connection: Connection) -> list[Result]:
            results = [self._read(connection, op) for op in given]
            last = {(op.namespace, op.key): op for op in given if isinstance(op, PutOp)}
            for place in sorted(last):  # a fixed order: two batches that put the same items do not deadlock
                self._put(connection, last[place])
            return results

        if any(isinstance(op, PutOp) or getattr(op, "refresh_ttl", False) for op in given):
            return self._written(work)
        with self._reading() as connection:
            return work(connection)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, list(ops))

    def sweep_ttl(self) -> ReadyCount:
        """Delete expired items; return how many. It may be awaited, as that of LangGraph's async stores. Reads skip
        expired items whether or not they are deleted."""
        return ReadyCount(self._sweep())

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Sweeping:
        """Delete expired items every `sweep_interval_minutes` (default: the `ttl`'s, or 5), on a thread, until the
        store closes, `stop_ttl_sweeper` is called or the returned future is cancelled. Without `ttl` it does nothing,
        as in LangGraph's stores. It may be awaited, which does not wait for the end."""
        if self.ttl_config is None:
            return Sweeping.none()
        minutes = sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes") or 5
        return self._sweeper.start(minutes * _MINUTE)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> ReadyCount:
        """Stop the sweeper. `timeout`: seconds to wait. Return whether it has stopped, as 1 or 0."""
        return ReadyCount(self._sweeper.stop(timeout))

    def _sweep(self) -> int:
        gone = items.delete().where(items.c.expires_at <= self._clock())
        return self._written(lambda connection: connection.execute(gone).rowcount)

    def _read(self, connection: Connection, op: Op) -> Result:
        if isinstance(op, GetOp):
            found = self._rows(connection, _at(op.namespace, op.key))
            if op.refresh_ttl:
                self._refresh(connection, found)
            return _item(found[0]) if found else None
        if isinstance(op, SearchOp):
            return self._search(connection, op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(connection, op)
        return None

    def _rows(self, connection: Connection, where: ColumnElement[bool]) -> list[Row[Any]]:
        fresh = or_(items.c.expires_at.is_(None), items.c.expires_at > self._clock())
        query = select(items).where(where, fresh).order_by(items.c.updated_at.desc(), items.c.key)
        return list(connection.execute(query))

    def _refresh(self, connection: Connection, rows: Iterable[Row[Any]]) -> None:
        now = self._clock()
        for row in rows:
            if row.ttl is not None:
                same = and_(items.c.prefix == row.prefix, items.c.key == row.key)
                connection.execute(items.update().where(same).values(expires_at=now + row.ttl * _MINUTE))

    def _search(self, connection: Connection, op: SearchOp) -> list[SearchItem]:
        rows = self._rows(connection, _under(connection.dialect, op.namespace_prefix))
        fits = [row for row in rows if _matches(json.loads(row.value), op.filter)]
        shown = fits[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            self._refresh(connection, shown)
        return [SearchItem(**_fields(row)) for row in shown]

    def _namespaces(self, connection: Connection, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        now = self._clock()
        fresh = or_(items.c.expires_at.is_(None), items.c.expires_at > now)
        names = connection.execute(select(items.c.prefix).where(fresh).distinct()).scalars()
        spaces = {_space(name) for name in names}
        fits = (space for space in spaces if all(_fits(space, c) for c in op.match_conditions or ()))
        cut = sorted({space[: op.max_depth] if op.max_depth is not None else space for space in fits})
        return cut[op.offset : op.offset + op.limit]

    def _put(self, connection: Connection, op: PutOp) -> None:
        if op.value is None:
            connection.execute(items.delete().where(_at(op.namespace, op.key)))
            return
        now = self._clock()
        row = {
            "prefix": _name(op.namespace),
            "key": op.key,
            "value": _written_value(op.key, op.value),
            "created_at": now,
            "updated_at": now,
            "ttl": op.ttl,
            "expires_at": None if op.ttl is None else now + op.ttl * _MINUTE,
        }
        put = upsert(connection, items).values(row)
        changed = {name: put.excluded[name] for name in ("value", "updated_at", "ttl", "expires_at")}
        connection.execute(put.on_conflict_do_update(index_elements=["prefix", "key"], set_=changed))


def _validate(op: Op) -> None:
    """Raise `InvalidNamespaceError` for what no store of LangGraph's takes: two namespaces would have one name. Raise
    `ValueError` for an operation, a TTL or a condition of no known kind."""
    spaces: list[tuple[Any, ...]]
    match op:
        case GetOp() | PutOp():
            spaces = [op.namespace]
            if isinstance(op, PutOp) and op.ttl is not None:
                _validate_ttl(op.ttl)
        case SearchOp():
            spaces = [op.namespace_prefix]
        case ListNamespacesOp():
            for condition in op.match_conditions or ():
                if condition.match_type not in ("prefix", "suffix"):
                    raise ValueError(f"unknown match type {condition.match_type!r}: use 'prefix' or 'suffix'")
            spaces = [condition.path for condition in op.match_conditions or ()]
        case _:
            raise ValueError(f"unknown operation of type {type(op).__name__}: a store gets, puts, searches and lists")
    for space in spaces:
        for label in space:
            if not isinstance(label, str) or not label or "." in label or "\0" in label:
                raise InvalidNamespaceError(
                    f"namespace {space!r}: its label {label!r} must be text without dots or NUL, and not empty"
                )


def _validate_ttl(minutes: Any) -> None:
    if isinstance(minutes, bool) or not isinstance(minutes, int | float):
        raise TypeError(f"the ttl {minutes!r} is not a number of minutes")
    if not math.isfinite(minutes):
        raise ValueError(f"the ttl {minutes} is not a finite number of minutes: for no end, use None")


def _name(namespace: tuple[str, ...]) -> str:
    """Return the stored name of a namespace."""
    return ".".join(namespace)


def _space(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")) if name else ()


def _written_value(key: str, value: Any) -> str:
    """Return the JSON of a value: of whatever `dict` makes an object of, as in LangGraph's stores."""
    try:
        fields = value if isinstance(value, dict) else dict(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the value of {key!r} is a {type(value).__name__}: a store keeps JSON objects") from error
    return json.dumps(fields, default=_plain)


def _plain(value: Any) -> Any:
    """Return what JSON cannot express in the form that LangGraph's own stores give it."""
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))


def _at(namespace: tuple[str, ...], key: str) -> ColumnElement[bool]:
    return and_(items.c.prefix == _name(namespace), items.c.key == key)


def _under(dialect: Dialect, prefix: tuple[str, ...]) -> ColumnElement[bool]:
    """Match the namespace and those below it, compared byte by byte, since LIKE differs between databases."""
    name = _name(prefix)
    if not name:
        return true()
    raw = type_coerce(items.c.prefix, PlainText()).collate("C" if dialect.name == "postgresql" else "BINARY")
    # a name below a storable one may itself need escaping
    beginnings = {written(f"{name}."), escaped(f"{name}.")}
    after = chr(ord(".") + 1)
    below = (and_(raw >= beginning, raw < beginning[:-1] + after) for beginning in sorted(beginnings))
    return or_(items.c.prefix == name, *below)


def _fields(row: Row[Any]) -> dict[str, Any]:
    return {
        "namespace": _space(row.prefix),
        "key": row.key,
        "value": json.loads(row.value),
        "created_at": datetime.fromtimestamp(row.created_at, UTC),
        "updated_at": datetime.fromtimestamp(row.updated_at, UTC),
    }


def _item(row: Row[Any]) -> Item:
    return Item(**_fields(row))


def _matches(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return all(_compare(value_at(value, key), given) for key, given in (wanted or {}).items())


def _compare(value: Any, wanted: Any) -> bool:
    """Compare by LangGraph's rules: an object in a filter must match some of the value's keys, and operators may be
    at any depth."""
    if isinstance(wanted, dict):
        if not any(key.startswith("$") for key in wanted):
            return isinstance(value, dict) and _matches(value, wanted)
        unknown = wanted.keys() - _COMPARE.keys()
        if unknown:
            raise ValueError(f"unknown operator {', '.join(sorted(unknown))}: use one of {', '.join(_COMPARE)}")
        return all(_COMPARE[name](value, given) for name, given in wanted.items())
    if isinstance(wanted, list | tuple):
        same = isinstance(value, list) and len(value) == len(wanted)
        return same and all(map(_compare, value, wanted))
    return bool(value == wanted)


def _ordered(value: Any, wanted: Any, holds: Callable[[Any, Any], bool]) -> bool:
    """Compare as numbers, and texts that are none as texts, such as dates. What has no order does not match, such as
    an item without the key: LangGraph's stores on databases pass it over, too."""
    try:
        return holds(float(value), float(wanted))
    except (TypeError, ValueError, OverflowError):
        return isinstance(value, str) and isinstance(wanted, str) and holds(value, wanted)


def _fits(space: tuple[str, ...], condition: MatchCondition) -> bool:
    path = condition.path
    if len(space) < len(path):
        return False
    part = space[: len(path)] if condition.match_type == "prefix" else space[len(space) - len(path) :]
    return all(want in ("*", label) for label, want in zip(part, path, strict=True))
