"""Fork a stored thread: a new thread whose checkpoints are those of another one up to a certain point.

A Ramify checkpoint of a thread's run says where its world stood. The LangGraph checkpoint whose world channel says
the same is the state of the graph there. The fork gets copies of the checkpoints up to that one, with the new run in
their world channels. Values are copied as they are stored: only the world channel is deserialised, so the user's
types need not be importable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from sqlalchemy import Connection, Row, select

from ramify.runtime.journal.forked_runs import ForkedRun
from ramify.runtime.langgraph.checkpointer.checkpoint_reader import read_bodies
from ramify.runtime.langgraph.checkpointer.database import opened
from ramify.runtime.langgraph.checkpointer.maintenance import thread_id
from ramify.runtime.langgraph.checkpointer.serializers import PLAIN_SERIALIZER
from ramify.runtime.langgraph.checkpointer.statements import statements_for
from ramify.runtime.langgraph.checkpointer.tables import SAVER_TABLES, checkpoints, values, writes
from ramify.runtime.langgraph.checkpointer.values import (
    Serialised,
    ThreadId,
    ValueId,
    Values,
    closure,
    insert_copies,
    load,
)
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition
from ramify.runtime.langgraph.thread.stored_thread import saved_with_world, stored_position
from ramify.runtime.records import CheckpointRecord, RunId, RunRecord

_SERDE = JsonPlusSerializer()  # for writing the world channel


def new_thread(thread: str, record: RunRecord, new: RunId) -> str:
    """Return the name of a fork's thread: the name of the first thread, followed by the run's id."""
    return f"{thread.removesuffix(f'-{record.id}')}-{new}"


def fork_thread(address: str | Path, record: RunRecord, at: CheckpointRecord, fork: ForkedRun) -> str:
    """Copy the thread of `record` up to where it stood at `at`; return the new thread's name.

    The copy is one transaction, before that of the run's rows: a thread without a run does no harm. Raises
    `ThreadElsewhere` if the thread is kept by another saver, `NoStateThere` if its graph had no state at that
    checkpoint.
    """
    assert record.thread_id is not None, "only for a thread"
    target = new_thread(record.thread_id, record, fork.run.id)
    engine = opened(address, SAVER_TABLES)
    try:
        with engine.execution_options(write=True).begin() as connection:
            saved = saved_with_world(connection, record, at, fork.journal)
            assert saved.env is not None, "a world stands there"
            here: StoredPosition = {
                "run": fork.run.id,
                "branch": fork.here.branch,
                "at": saved.env["at"],
                "snapshot": fork.here.snapshot_id,
                "checkpoint": fork.here.id,
            }
            _copy(connection, record.thread_id, target, saved.id, here, lambda env: _moved(env, record, fork))
    finally:
        engine.dispose()
    return target


def _moved(env: StoredPosition, record: RunRecord, fork: ForkedRun) -> StoredPosition:
    """Return the same position in the fork, whose checkpoints have other names; unchanged for a position of another
    run."""
    if env["run"] != record.id:
        return env
    moved: StoredPosition = {**env, "run": fork.run.id, "checkpoint": fork.name(env["checkpoint"])}
    if "join" in env:
        moved["join"] = [[*entry[:3], fork.name(entry[3])] for entry in env["join"]]
    return moved


def _copy(
    connection: Connection,
    source: str,
    target: str,
    last: str,
    here: StoredPosition,
    moved: Callable[[StoredPosition], StoredPosition],
) -> None:
    """Copy the checkpoints from the thread's beginning to `last`, and those of graphs inside its nodes. Writes for
    what ran after the last checkpoint are left out: they are not part of its state."""
    old = thread_id(connection, source)
    assert old is not None, "it was read"
    kept = _kept(connection, old, last)
    done = [row for row in kept if row.id != last]
    written = _written(connection, old, done)
    wanted = _named(kept, written)
    digests = select(values.c.id, values.c.digest).where(values.c.thread == old)
    store = Values(statements_for(connection.dialect))
    new = store.thread(connection, target)
    ids = insert_copies(
        connection, new, closure(connection, wanted), {row.id: row.digest for row in connection.execute(digests)}
    )
    envs = load(connection, [json.loads(row.channels)[ENV] for row in kept if ENV in json.loads(row.channels)])

    def channels(row: Row[Any]) -> str:
        named = {name: ids[id] for name, id in json.loads(row.channels).items() if name != ENV}
        if (id := json.loads(row.channels).get(ENV)) is not None:
            env = here if row.id == last else moved(stored_position(envs[id]))
            named[ENV] = store.put(connection, new, Serialised(*_SERDE.dumps_typed(env)))
        return json.dumps(named, separators=(",", ":"))

    copies = [
        {**row._mapping, "thread": new, "channels": channels(row), "word": row.word and ids[row.word]} for row in kept
    ]
    connection.execute(checkpoints.insert(), copies)
    if written:
        connection.execute(writes.insert(), [_write(row, new, ids) for row in written])


def _kept(connection: Connection, thread: ThreadId, last: str) -> list[Row[Any]]:
    """Return a checkpoint of the thread's own graph and its ancestors, oldest first, and the checkpoints of graphs
    inside the ancestors' nodes."""
    rows = connection.execute(select(checkpoints).where(checkpoints.c.thread == thread)).all()
    own = {row.id: row for row in rows if row.ns == ""}
    line: dict[str, Row[Any]] = {}
    here = own.get(last)
    while here is not None and here.id not in line:  # put again, with another parent, it may be its own ancestor
        line[here.id] = here
        here = own.get(here.parent)
    before = line.keys() - {last}
    inner = [row for row in rows if row.ns]
    metadata = [body[1] for body in read_bodies(connection, inner, PLAIN_SERIALIZER)]
    within = [r for r, said in zip(inner, metadata, strict=True) if said.get("parents", {}).get("") in before]
    return sorted([*line.values(), *within], key=lambda row: row.id)


def _written(connection: Connection, thread: ThreadId, kept: Iterable[Row[Any]]) -> list[Row[Any]]:
    places = {(row.ns, row.id) for row in kept}
    rows = connection.execute(select(writes).where(writes.c.thread == thread)).all()
    return [row for row in rows if (row.ns, row.checkpoint) in places]


def _named(kept: Iterable[Row[Any]], written: Iterable[Row[Any]]) -> set[ValueId]:
    named = {id for row in kept for id in json.loads(row.channels).values()}
    named |= {row.word for row in kept if row.word is not None}
    return named | {id for row in written for _, _, id in json.loads(row.written)}


def _write(row: Row[Any], thread: ThreadId, ids: Mapping[ValueId, ValueId]) -> dict[str, Any]:
    told = [[index, channel, ids[id]] for index, channel, id in json.loads(row.written)]
    return {**row._mapping, "thread": thread, "written": json.dumps(told, separators=(",", ":"))}
