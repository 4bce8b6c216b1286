"""LangGraph's cache of node results, on disk."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from langgraph.cache.base import BaseCache, FullKey, Namespace, ValueT
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection, and_, or_, select

from ramify.runtime.langgraph.checkpointer.database import DatabaseClient
from ramify.runtime.langgraph.checkpointer.serializers import Allowed, StrictSerializer
from ramify.runtime.langgraph.checkpointer.tables import CACHE_TABLES, cached, replacing

_AT_ONCE = 200
_SWEEP_S = 60.0  # how often expired entries are deleted, at a `set`


class Cache(DatabaseClient, BaseCache[ValueT]):
    """Node results by LangGraph's `CachePolicy`: `with Cache.open("sqlite:///file.db") as cache`.

    `allow` and `serde` are as for `Saver`. The key is a node's input alone. A graph over worlds does not use it so
    where files matter (see `ramify.compile`).
    """

    _tables = CACHE_TABLES

    def __init__(
        self,
        address: str | Path,
        *,
        allow: Iterable[Allowed] = (),
        serde: SerializerProtocol | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(serde=serde or StrictSerializer(allow))
        self._begin(address, clock)
        self._swept = clock()

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        found: dict[FullKey, ValueT] = {}
        asked = {(_prefix(ns), key): (ns, key) for ns, key in keys}
        for at in range(0, len(asked), _AT_ONCE):
            some = list(asked)[at : at + _AT_ONCE]
            places = or_(*(and_(cached.c.prefix == prefix, cached.c.key == key) for prefix, key in some))
            fresh = or_(cached.c.expires_at.is_(None), cached.c.expires_at > self._clock())
            with self._reading() as connection:
                for row in connection.execute(select(cached).where(places, fresh)):
                    found[asked[row.prefix, row.key]] = self.serde.loads_typed((row.kind, bytes(row.body)))
        return found

    def set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        now = self._clock()
        rows = []
        for (ns, key), (value, ttl) in pairs.items():
            kind, body = self.serde.dumps_typed(value)
            until = None if ttl is None else now + ttl
            rows.append({"prefix": _prefix(ns), "key": key, "kind": kind, "body": body, "expires_at": until})
        rows.sort(key=lambda row: (row["prefix"], row["key"]))  # a fixed order: two callers do not deadlock

        def work(connection: Connection) -> None:
            if now - self._swept >= _SWEEP_S:
                connection.execute(cached.delete().where(cached.c.expires_at <= now))
            connection.execute(replacing(connection, cached), rows)

        if rows:
            self._written(work)
            self._swept = now if now - self._swept >= _SWEEP_S else self._swept

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        gone = cached.delete()
        if namespaces is not None:
            gone = gone.where(cached.c.prefix.in_([_prefix(ns) for ns in namespaces]))
        self._written(lambda connection: connection.execute(gone))

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        return await asyncio.to_thread(self.get, keys)

    async def aset(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        await asyncio.to_thread(self.set, pairs)

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        await asyncio.to_thread(self.clear, namespaces)


def _prefix(namespace: Namespace) -> str:
    return json.dumps(namespace, separators=(",", ":"))
