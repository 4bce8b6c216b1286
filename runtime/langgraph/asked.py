"""What the interrupts of a waiting thread ask, as its checkpoints have it."""

from __future__ import annotations

import json
from pathlib import Path

from langgraph._internal._constants import INTERRUPT
from sqlalchemy import select

from ramify.runtime.langgraph.forking import thread_rows
from ramify.runtime.langgraph.saver.engines import engine_to_read
from ramify.runtime.langgraph.saver.tables import writes
from ramify.runtime.langgraph.saver.values import load
from ramify.runtime.langgraph.shown import shown
from ramify.runtime.records import RunRecord


def questions(address: str | Path, record: RunRecord) -> list[object]:
    """As JSON values; none where the thread stops before or after a node by its settings. No class of the user's is
    imported for it. Raises `ThreadElsewhere` where its checkpoints are not in this database."""
    engine = engine_to_read(address)
    try:
        with engine.connect() as connection:
            newest = thread_rows(connection, record)[-1:]
            if not newest:
                return []
            (row,) = newest
            mine = (writes.c.thread == row.thread, writes.c.ns == row.ns, writes.c.checkpoint == row.id)
            rows = connection.execute(select(writes.c.written).where(*mine).order_by(writes.c.path)).scalars()
            written = [one for text in rows for one in json.loads(text)]
            ids = [id for _, channel, id in written if channel == INTERRUPT]
            found = load(connection, ids)
            return [_value(one) for id in ids for one in _several(shown(found[id].kind, found[id].data))]
    finally:
        engine.dispose()


def _several(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _value(interrupt: object) -> object:
    """Of an `Interrupt`, shown by its fields."""
    return interrupt["value"] if isinstance(interrupt, dict) and "value" in interrupt else interrupt
