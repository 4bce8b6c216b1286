"""Read what the interrupts of a waiting thread ask from its checkpoints, without the user's program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from sqlalchemy import Connection, select

from ramify.runtime.codec import codec
from ramify.runtime.journal.inbox import INTERRUPT_KEY, OpenQuestion
from ramify.runtime.langgraph.checkpointer.compat import ERROR_SOURCE_NODE
from ramify.runtime.langgraph.checkpointer.database import open_read_only_engine
from ramify.runtime.langgraph.checkpointer.serializers import stored_json
from ramify.runtime.langgraph.checkpointer.tables import writes
from ramify.runtime.langgraph.checkpointer.values import load
from ramify.runtime.langgraph.thread.stored_thread import thread_rows
from ramify.runtime.records import RunRecord

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
