"""Whether a thread has anything left to run, as far as its newest checkpoint tells without its program.

A process that is killed between its last commit and its end leaves a run that counts as running; LangGraph's own
checkpoint says that it was done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langgraph._internal._constants import INTERRUPT, TASKS
from langgraph.constants import START
from sqlalchemy import select

from ramify.runtime.langgraph.errors import ThreadElsewhere
from ramify.runtime.langgraph.forking import thread_rows
from ramify.runtime.langgraph.saver.engines import engine_to_read
from ramify.runtime.langgraph.saver.inert import INERT
from ramify.runtime.langgraph.saver.reading import read_bodies
from ramify.runtime.langgraph.saver.tables import writes
from ramify.runtime.langgraph.saver.values import load
from ramify.runtime.records import RunRecord


def has_ended(address: str | Path, record: RunRecord) -> bool:
    """False also where that cannot be told: its checkpoints are elsewhere, or its graph was built by hand, of
    channels that say nothing by their names."""
    engine = engine_to_read(address)
    try:
        with engine.connect() as connection:
            newest = thread_rows(connection, record)[-1:]
            if not newest:
                return False
            (row,) = newest
            mine = (writes.c.thread == row.thread, writes.c.ns == row.ns, writes.c.checkpoint == row.id)
            if connection.execute(select(writes.c.task).where(*mine).limit(1)).first() is not None:
                return False  # half a superstep was done after it
            ((body, _),) = read_bodies(connection, [row], INERT)
            names = json.loads(row.channels)
            asked = {name for node, seen in body["versions_seen"].items() if node != INTERRUPT for name in seen}
            if not all(_says(name) for name in asked):
                return False
            joins = {name: id for name, id in names.items() if name.startswith("join:") or name == TASKS}
            held = {name: INERT.loads_typed((v.kind, v.data)) for name, v in _values(connection, joins).items()}
            return not any(_waits(name, held.get(name)) for name in names)
    except ThreadElsewhere:
        return False
    finally:
        engine.dispose()


def _values(connection: Any, ids: Mapping[str, int]) -> Mapping[str, Any]:
    found = load(connection, ids.values())
    return {name: found[id] for name, id in ids.items()}


def _says(channel: str) -> bool:
    """Whether a channel's name tells what it is for."""
    return channel in (START, TASKS) or channel.startswith(("branch:to:", "join:"))


def _waits(channel: str, value: Any) -> bool:
    """Whether a channel that holds something has a node run next. What was taken is not held any more."""
    if not _says(channel):
        return False
    if channel == TASKS:
        return bool(value)
    if not channel.startswith("join:"):
        return True
    deferred = len(value) == 2 and isinstance(value[0], list)  # with `defer`, whether the rest is over, too
    arrived = value[0] if deferred else value  # the names of nodes
    return len(arrived) == len(channel.split(":")[1].split("+"))
