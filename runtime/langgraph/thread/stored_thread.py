"""Read a thread from the saver's tables, without the user's program: its state at a checkpoint, whether it has ended,
and what its interrupts ask.

A Ramify checkpoint of a thread's run says where its world stood. The LangGraph checkpoint whose world channel says
the same is the state of the graph there.

A process that is killed between its last commit and its end leaves a run that counts as running. LangGraph's newest
checkpoint tells whether a node is left to run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.serde.types import INTERRUPT, RESUME, TASKS
from langgraph.constants import START
from sqlalchemy import Connection, Row, inspect, select

from ramify.compiler.plan import OpKind
from ramify.runtime.codec import codec
from ramify.runtime.errors import StoreError
from ramify.runtime.journal.inbox import INTERRUPT_KEY, OpenQuestion
from ramify.runtime.langgraph.checkpointer.checkpoint_reader import read_bodies
from ramify.runtime.langgraph.checkpointer.compat import ERROR_SOURCE_NODE
from ramify.runtime.langgraph.checkpointer.database import open_read_only_engine
from ramify.runtime.langgraph.checkpointer.maintenance import thread_id
from ramify.runtime.langgraph.checkpointer.serializers import PLAIN_SERIALIZER, stored_json
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, threads, writes
from ramify.runtime.langgraph.checkpointer.values import Serialised, load
from ramify.runtime.langgraph.errors import NoStateThere, ThreadElsewhere
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition, join_key
from ramify.runtime.records import CheckpointRecord, OpRecord, RunRecord


@dataclass(frozen=True, slots=True)
class Saved:
    """A LangGraph checkpoint of a thread's own graph. `env` is None before the thread's first node."""

    id: str
    env: StoredPosition | None


def checkpoint_of(address: str | Path, record: RunRecord, at: CheckpointRecord, journal: Sequence[OpRecord]) -> str:
    """Return the id of LangGraph's checkpoint with the world of a Ramify checkpoint. Raises as `saved_with_world`."""
    engine = open_read_only_engine(address)
    try:
        with engine.connect() as connection:
            return saved_with_world(connection, record, at, journal).id
    finally:
        engine.dispose()


def channels_at(
    address: str | Path, record: RunRecord, at: CheckpointRecord, journal: Sequence[OpRecord]
) -> Mapping[str, object]:
    """Return the state of the graph at a checkpoint as JSON values, by channel. Only channels that the user named are
    included.

    No class of the user's is imported: an object is shown by its fields. Raises as `saved_with_world`, and
    `StoreError` for a damaged row.
    """
    engine = open_read_only_engine(address)
    try:
        with engine.connect() as connection:
            id = saved_with_world(connection, record, at, journal).id
            row = next(row for row in thread_rows(connection, record) if row.id == id)
            named = {name: id for name, id in json.loads(row.channels).items() if _is_users(name)}
            found = load(connection, named.values())
            return {name: stored_json(found[id].kind, found[id].data) for name, id in named.items()}
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise StoreError(f"the checkpoints of run {record.id} hold a row that cannot be read: {error}") from error
    finally:
        engine.dispose()


def saved_with_world(
    connection: Connection, record: RunRecord, at: CheckpointRecord, journal: Sequence[OpRecord]
) -> Saved:
    """Return the first of the thread's checkpoints whose world is that of `at`; what was done later is not in it.
    Raises `ThreadElsewhere`, and `NoStateThere` if the graph had no state at that checkpoint."""
    saved = _saved(connection, record)
    mine = [(one, one.env) for one in saved if one.env is not None and one.env["run"] == record.id]
    for one, env in mine:
        if env["checkpoint"] == at.id and "join" not in env and not env.get("unsealed"):
            return one
    settled = {row.key for row in journal if row.kind is OpKind.RELEASE and row.attrs.get("checkpoint") == at.id}
    for one, env in mine:
        if "join" in env and f"{join_key(env)}|RELEASE" in settled:
            return one
    raise NoStateThere(at.id, record.thread_id or "")


def thread_rows(connection: Connection, record: RunRecord) -> Sequence[Row[Any]]:
    """Return the checkpoints of the thread's own graph, oldest first. Raises `ThreadElsewhere`."""
    there = inspect(connection).has_table(threads.name)
    thread = thread_id(connection, record.thread_id or "") if there else None
    if thread is None:
        raise ThreadElsewhere(record.id, record.thread_id or "")
    mine = select(checkpoints).where(checkpoints.c.thread == thread, checkpoints.c.ns == "")
    return connection.execute(mine.order_by(checkpoints.c.id)).all()


def _saved(connection: Connection, record: RunRecord) -> list[Saved]:
    rows = thread_rows(connection, record)
    ids = [json.loads(row.channels).get(ENV) for row in rows]
    found = load(connection, [id for id in ids if id is not None])
    return [
        Saved(row.id, None if id is None else stored_position(found[id])) for row, id in zip(rows, ids, strict=True)
    ]


def stored_position(value: Serialised) -> StoredPosition:
    if value.kind != "msgpack":
        raise ThreadElsewhere.serialised(value.kind)
    env: StoredPosition = PLAIN_SERIALIZER.loads_typed((value.kind, value.data))
    return env


def _is_users(channel: str) -> bool:
    """Tell whether the user named the channel. LangGraph and Ramify make others: for edges, joins and the world."""
    return not channel.startswith(("__", "branch:", "join:"))


def has_ended(address: str | Path, record: RunRecord) -> bool:
    """Tell whether a thread has nothing left to run. Return False if that is unknown, too: its checkpoints are
    elsewhere, or its graph was built by hand with channels whose names tell nothing."""
    engine = open_read_only_engine(address)
    try:
        with engine.connect() as connection:
            newest = thread_rows(connection, record)[-1:]
            if not newest:
                return False
            (row,) = newest
            mine = (writes.c.thread == row.thread, writes.c.ns == row.ns, writes.c.checkpoint == row.id)
            if connection.execute(select(writes.c.task).where(*mine).limit(1)).first() is not None:
                return False  # half of the next superstep was done
            ((body, _),) = read_bodies(connection, [row], PLAIN_SERIALIZER)
            names = json.loads(row.channels)
            asked = {name for node, seen in body["versions_seen"].items() if node != INTERRUPT for name in seen}
            if not all(_has_known_name(name) for name in asked):
                return False
            joins = {name: id for name, id in names.items() if name.startswith("join:") or name == TASKS}
            held = {
                name: PLAIN_SERIALIZER.loads_typed((v.kind, v.data)) for name, v in _values(connection, joins).items()
            }
            return not any(_starts_a_node(name, held.get(name)) for name in names)
    except ThreadElsewhere:
        return False
    finally:
        engine.dispose()


def _values(connection: Any, ids: Mapping[str, int]) -> Mapping[str, Any]:
    found = load(connection, ids.values())
    return {name: found[id] for name, id in ids.items()}


def _has_known_name(channel: str) -> bool:
    """Tell whether a channel's name says what the channel is for."""
    return channel in (START, TASKS) or channel.startswith(("branch:to:", "join:"))


def _starts_a_node(channel: str, value: Any) -> bool:
    """Tell whether a channel's value makes a node run next. A channel is emptied when its value was taken."""
    if not _has_known_name(channel):
        return False
    if channel == TASKS:
        return bool(value)
    if not channel.startswith("join:"):
        return True
    deferred = len(value) == 2 and isinstance(value[0], list)  # with `defer`, also whether the rest is over
    arrived = value[0] if deferred else value  # the names of nodes
    return len(arrived) == len(channel.split(":")[1].split("+"))


_Row = list[tuple[int, str, int]]  # writes of a task: number, channel, id of the value


def questions(address: str | Path, record: RunRecord) -> list[object]:
    """Return the questions as JSON values; empty if the thread stops before or after a node by its settings. No class
    of the user's is imported. Raises `ThreadElsewhere` if its checkpoints are not in this database."""
    return [value for _, value, _ in _interrupts(address, record)]


def open_interrupts(address: str | Path, record: RunRecord) -> list[OpenQuestion]:
    """Return the questions with the ids that LangGraph gave them, answered or not. Raises `ThreadElsewhere`."""
    return [
        as_question(record, id, value, taken) for id, value, taken in _interrupts(address, record) if id is not None
    ]


def as_question(record: RunRecord, id: str, value: object, taken: int = 0) -> OpenQuestion:
    """Return the question for an interrupt. `value` is what was asked, as a JSON value. `taken` is how many answers
    the task has taken: a task that failed after an answer still shows the interrupt and asks the next one."""
    summary = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).partition("\n")[0][:80]
    key = f"{INTERRUPT_KEY}{id}|{taken}"
    return OpenQuestion(record.id, key, codec.encode(value), record.updated_at, summary, native=id)


def _interrupts(address: str | Path, record: RunRecord) -> list[tuple[str | None, object, int]]:
    engine = open_read_only_engine(address)
    try:
        with engine.connect() as connection:
            newest = thread_rows(connection, record)[-1:]
            if not newest:
                return []
            (row,) = newest
            mine = (writes.c.thread == row.thread, writes.c.ns == row.ns, writes.c.checkpoint == row.id)
            rows = connection.execute(select(writes.c.written).where(*mine).order_by(writes.c.path)).scalars()
            asked = _written(connection, [row for row in map(json.loads, rows) if not _has_ended(row)])
            both = [writes.c.written.contains(f'"{channel}"') for channel in (INTERRUPT, RESUME)]
            rows = connection.execute(select(writes.c.written).where(writes.c.thread == row.thread, *both)).scalars()
            resumed = _written(connection, [json.loads(row) for row in rows])
            taken: dict[str | None, int] = {}
            for values in resumed:
                count = max(len(value) if isinstance(value, list) else 1 for value in values[RESUME])
                for id, _ in _named(values[INTERRUPT]):
                    taken[id] = max(count, taken.get(id, 0))
            return [(id, value, taken.get(id, 0)) for one in asked for id, value in _named(one.get(INTERRUPT, ()))]
    finally:
        engine.dispose()


def _has_ended(row: _Row) -> bool:
    """Tell whether the task wrote its results, so that it asks no more. It may wait for the others of its step, and
    until they end its interrupt is kept with the results. LangGraph numbers results from 0; the only other write
    with such a number is the name of the node whose error a handler takes."""
    return any(number >= 0 and channel != ERROR_SOURCE_NODE for number, channel, _ in row)


def _written(connection: Connection, rows: Sequence[_Row]) -> list[dict[str, list[object]]]:
    """Return, for each task, the values of its interrupts by channel."""
    named = [[(channel, id) for _, channel, id in row if channel in (INTERRUPT, RESUME)] for row in rows]
    found = load(connection, [id for row in named for _, id in row])
    made: list[dict[str, list[object]]] = []
    for row in named:
        values: dict[str, list[object]] = {}
        for channel, id in row:
            values.setdefault(channel, []).append(stored_json(found[id].kind, found[id].data))
        made.append(values)
    return made


def _named(values: Iterable[object]) -> list[tuple[str | None, object]]:
    """Return the id and the value of each `Interrupt`, which is stored as its fields."""
    found: list[tuple[str | None, object]] = []
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and "value" in one:
                id = one.get("id")
                found.append((id if isinstance(id, str) else None, one["value"]))
            else:
                found.append((None, one))
    return found
