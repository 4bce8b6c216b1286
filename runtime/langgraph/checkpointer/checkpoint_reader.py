"""Read checkpoints from the database as LangGraph's tuples."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection, Select, select, tuple_

from ramify.runtime.langgraph.checkpointer.database import value_at
from ramify.runtime.langgraph.checkpointer.statements import Statements, one_trip
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, threads, writes
from ramify.runtime.langgraph.checkpointer.values import Packed, ValueId, closure, unpack
from ramify.runtime.store.engines import driver_errors
from ramify.runtime.store.stored_texts import expand, unescape_text, written

_AT_ONCE = 64  # checkpoints whose values are fetched combine


def config_of(thread: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


class Row(Protocol):
    """A row of the table of checkpoints."""

    @property
    def id(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def channels(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def word(self) -> ValueId | None: ...
    @property
    def compressed(self) -> bool: ...


class _Found(NamedTuple):
    id: str
    parent: str | None
    channels: str
    kind: str
    body: bytes
    word: ValueId | None
    compressed: bool


class Written(NamedTuple):
    """What one task wrote after a checkpoint. `items` is JSON, as in the table."""

    task: str
    path: str
    items: str


class ThreadNamespace(NamedTuple):
    thread: str
    ns: str


class Ancestors(BaseCheckpointSaver[Any]):
    """A walk from a checkpoint to its ancestors. It ends where one comes again, as that of LangGraph's savers: a
    checkpoint that was put again, with another parent, may be its own ancestor."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._passed = set[str]()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return None for a checkpoint that the walk has passed."""
        found = self._saver.get_tuple(config)
        if found is None or found.checkpoint["id"] in self._passed:
            return None
        self._passed.add(found.checkpoint["id"])
        return found


def one(
    connection: Connection, statements: Statements, place: ThreadNamespace, id: str | None, serde: SerializerProtocol
) -> tuple[CheckpointTuple | None, str | None]:
    """Return the checkpoint with that id, or the newest; and the id of the newest."""
    wanted = None if id is None else written(id)
    with driver_errors(connection):
        with one_trip(connection):  # shares the round trip with BEGIN
            found = statements.find(connection, written(place.thread), written(place.ns), wanted)
        rows = found.fetchall()
    newest, thread, at, parent, *rest = rows[0][:-3]
    newest = None if newest is None else unescape_text(newest)
    if thread is None:
        return None, newest
    row = _Found(unescape_text(at), None if parent is None else unescape_text(parent), *rest)
    tasks = [
        Written(unescape_text(task), unescape_text(path), items) for *_, task, path, items in rows if task is not None
    ]
    words = () if row.word is None else (row.word,)
    packed = closure(connection, {*_named(row, tasks), *words})
    return _whole(place, row, _body(row, packed, serde), tasks, packed, serde), newest


def several(config: RunnableConfig | None, before: RunnableConfig | None, limit: int | None) -> Select[Any]:
    """Select the checkpoints of one thread; without a config, of all. Raises `KeyError` for a config without a
    thread, as LangGraph's savers do: a forgotten id must not list the threads of others."""
    query = _rows()
    if config:
        conf = config["configurable"]
        query = query.where(threads.c.name == str(conf["thread_id"]))
        if (ns := conf.get("checkpoint_ns")) is not None:
            query = query.where(checkpoints.c.ns == str(ns))
        if wanted := get_checkpoint_id(config):
            query = query.where(checkpoints.c.id == str(wanted))
    if before is not None and (until := get_checkpoint_id(before)):
        query = query.where(checkpoints.c.id < str(until))
    return query if limit is None else query.limit(max(0, limit))


def _rows() -> Select[Any]:
    """Select checkpoints, newest first: LangGraph's ids grow with time."""
    joined = select(checkpoints, threads.c.name.label("thread_name")).join(
        threads, threads.c.id == checkpoints.c.thread
    )
    return joined.order_by(checkpoints.c.id.desc())


def tuples(
    connection: Connection, query: Select[Any], serde: SerializerProtocol, wanted: Mapping[str, Any] | None = None
) -> Iterator[CheckpointTuple]:
    """Yield the checkpoints that the query finds. With `wanted`, only those whose metadata has these values."""
    rows = connection.execute(query).all()
    for at in range(0, len(rows), _AT_ONCE):
        some = rows[at : at + _AT_ONCE]
        bodies = read_bodies(connection, some, serde)
        kept = [(row, body) for row, body in zip(some, bodies, strict=True) if _matches(body[1], wanted)]
        tasks = _tasks(connection, [row for row, _ in kept])
        of = {place: [Written(each.task, each.path, each.written) for each in rows] for place, rows in tasks.items()}
        places = [(row.thread, row.ns, row.id) for row, _ in kept]
        ids = {id for (row, _), place in zip(kept, places, strict=True) for id in _named(row, of.get(place, ()))}
        packed = closure(connection, ids)
        for (row, body), place in zip(kept, places, strict=True):
            yield _whole(ThreadNamespace(row.thread_name, row.ns), row, body, of.get(place, ()), packed, serde)


def read_bodies(connection: Connection, rows: Sequence[Row], serde: SerializerProtocol) -> list[tuple[Any, Any]]:
    """Return, for each row, the checkpoint without its values, and its metadata."""
    words = closure(connection, {row.word for row in rows if row.word is not None})
    return [_body(row, words, serde) for row in rows]


def _body(row: Row, words: Mapping[int, Packed], serde: SerializerProtocol) -> tuple[Any, Any]:
    data = bytes(row.body)
    if row.compressed:
        data = expand(data, b"" if row.word is None else unpack(row.word, words).data)
    checkpoint, metadata = serde.loads_typed((row.kind, data))
    return checkpoint, metadata


def _matches(metadata: CheckpointMetadata, wanted: Mapping[str, Any] | None) -> bool:
    return all(value_at(metadata, name) == value for name, value in (wanted or {}).items())


def _named(row: Row, tasks: Iterable[Written]) -> set[ValueId]:
    """Return the ids of the values that a checkpoint and its tasks' writes contain."""
    return {*json.loads(row.channels).values(), *(id for one in tasks for _, _, id in json.loads(one.items))}


def _whole(
    place: ThreadNamespace,
    row: Row,
    body: tuple[Any, Any],
    tasks: Iterable[Written],
    packed: Mapping[ValueId, Packed],
    serde: SerializerProtocol,
) -> CheckpointTuple:
    def value(id: ValueId) -> Any:
        serialised = unpack(id, packed)
        return serde.loads_typed((serialised.kind, serialised.data))

    checkpoint, metadata = body
    checkpoint["channel_values"] = {name: value(id) for name, id in json.loads(row.channels).items()}
    made = [(one.path, one.task, index, channel, id) for one in tasks for index, channel, id in json.loads(one.items)]
    made.sort(key=lambda w: writes_sort_key(*w[:3]))
    return CheckpointTuple(
        config=config_of(*place, row.id),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=config_of(*place, row.parent) if row.parent else None,
        pending_writes=[(task, channel, value(id)) for _, task, _, channel, id in made],
    )


def _tasks(connection: Connection, rows: Sequence[Any]) -> dict[tuple[int, str, str], list[Any]]:
    places = [(row.thread, row.ns, row.id) for row in rows]
    if not places:
        return {}
    query = select(writes).where(tuple_(writes.c.thread, writes.c.ns, writes.c.checkpoint).in_(places))
    ordered = sorted(connection.execute(query).all(), key=_place)
    return {place: list(group) for place, group in itertools.groupby(ordered, _place)}


def _place(row: Any) -> tuple[int, str, str]:
    return (row.thread, row.ns, row.checkpoint)
