"""Checkpoints back out of the database, as LangGraph has them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple, get_checkpoint_id, writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection, Row, Select, select, tuple_

from ramify.runtime.langgraph.saver.packing import Packed, unpack
from ramify.runtime.langgraph.saver.tables import checkpoints, threads, writes
from ramify.runtime.langgraph.saver.values import closure
from ramify.runtime.store.packing import expand

_AT_ONCE = 64  # checkpoints whose values are fetched together


def config_of(thread: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def one(thread: str, ns: str, id: str | None) -> Select[Any]:
    """The checkpoint of that id, or the newest."""
    query = _rows().where(threads.c.name == thread, checkpoints.c.ns == ns)
    return (query if id is None else query.where(checkpoints.c.id == id)).limit(1)


def newest_id(thread: str, ns: str) -> Select[Any]:
    query = select(checkpoints.c.id).join(threads, threads.c.id == checkpoints.c.thread)
    return query.where(threads.c.name == thread, checkpoints.c.ns == ns).order_by(checkpoints.c.id.desc()).limit(1)


def several(config: RunnableConfig | None, before: RunnableConfig | None, limit: int | None) -> Select[Any]:
    conf = config["configurable"] if config is not None else {}
    query = _rows()
    if "thread_id" in conf:
        query = query.where(threads.c.name == str(conf["thread_id"]))
    if (ns := conf.get("checkpoint_ns")) is not None:
        query = query.where(checkpoints.c.ns == ns)
    if config is not None and (wanted := get_checkpoint_id(config)) is not None:
        query = query.where(checkpoints.c.id == wanted)
    if before is not None and (until := get_checkpoint_id(before)) is not None:
        query = query.where(checkpoints.c.id < until)
    return query if limit is None else query.limit(max(0, limit))


def _rows() -> Select[Any]:
    """Newest first: LangGraph's ids grow with time."""
    joined = select(checkpoints, threads.c.name.label("thread_name")).join(
        threads, threads.c.id == checkpoints.c.thread
    )
    return joined.order_by(checkpoints.c.id.desc())


def tuples(
    connection: Connection, query: Select[Any], serde: SerializerProtocol, wanted: Mapping[str, Any] | None = None
) -> Iterator[CheckpointTuple]:
    """What the query finds; with `wanted`, where the metadata has these values."""
    rows = connection.execute(query).all()
    for at in range(0, len(rows), _AT_ONCE):
        some = rows[at : at + _AT_ONCE]
        bodies = read_bodies(connection, some, serde)
        kept = [(row, body) for row, body in zip(some, bodies, strict=True) if _matches(body[1], wanted)]
        yield from _whole(connection, kept, serde)


def read_bodies(connection: Connection, rows: Sequence[Row[Any]], serde: SerializerProtocol) -> list[tuple[Any, Any]]:
    """Each row's checkpoint without its values, and its metadata."""
    words = closure(connection, {row.word for row in rows if row.word is not None})
    return [_body(row, words, serde) for row in rows]


def _body(row: Row[Any], words: Mapping[int, Packed], serde: SerializerProtocol) -> tuple[Any, Any]:
    data = bytes(row.body)
    if row.compressed:
        data = expand(data, b"" if row.word is None else unpack(row.word, words).data)
    checkpoint, metadata = serde.loads_typed((row.kind, data))
    return checkpoint, metadata


def _matches(metadata: CheckpointMetadata, wanted: Mapping[str, Any] | None) -> bool:
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())


def _whole(
    connection: Connection, found: Sequence[tuple[Row[Any], tuple[Any, Any]]], serde: SerializerProtocol
) -> Iterator[CheckpointTuple]:
    channels = [json.loads(row.channels) for row, _ in found]
    pending = _writes(connection, [row for row, _ in found])
    ids = {id for each in channels for id in each.values()}
    ids |= {id for rows in pending.values() for row in rows for _, _, id in json.loads(row.written)}
    packed = closure(connection, ids)

    def value(id: int) -> Any:
        serialised = unpack(id, packed)
        return serde.loads_typed((serialised.kind, serialised.data))

    for (row, (checkpoint, metadata)), ids_by_name in zip(found, channels, strict=True):
        checkpoint["channel_values"] = {name: value(id) for name, id in ids_by_name.items()}
        written = [
            (each.path, each.task, index, channel, id)
            for each in pending.get((row.thread, row.ns, row.id), ())
            for index, channel, id in json.loads(each.written)
        ]
        written.sort(key=lambda w: writes_sort_key(*w[:3]))
        yield CheckpointTuple(
            config=config_of(row.thread_name, row.ns, row.id),
            checkpoint=checkpoint,
            metadata=metadata,
            parent_config=config_of(row.thread_name, row.ns, row.parent) if row.parent else None,
            pending_writes=[(task, channel, value(id)) for _, task, _, channel, id in written],
        )


def _writes(connection: Connection, rows: Sequence[Row[Any]]) -> dict[tuple[int, str, str], list[Row[Any]]]:
    places = [(row.thread, row.ns, row.id) for row in rows]
    if not places:
        return {}
    query = select(writes).where(tuple_(writes.c.thread, writes.c.ns, writes.c.checkpoint).in_(places))
    ordered = sorted(connection.execute(query).all(), key=_place)
    return {place: list(group) for place, group in itertools.groupby(ordered, _place)}


def _place(row: Row[Any]) -> tuple[int, str, str]:
    return (row.thread, row.ns, row.checkpoint)
