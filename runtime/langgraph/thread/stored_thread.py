"""A thread that goes on from the middle of another one, and what its state was there, out of the saver's own tables.

A Ramify checkpoint of a thread's run is where its world stood; the LangGraph checkpoint whose world channel says so
is the state that its graph had there. A fork of the run is a new thread whose checkpoints are the old one's up to
that one, with the new run in their channels. Values are copied as they lie: nothing but the channel is deserialised,
so the user's types need not be importable.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph._internal._constants import INTERRUPT, TASKS
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.constants import START
from sqlalchemy import Connection, Row, inspect, select

from ramify.compiler.plan import OpKind
from ramify.runtime.errors import StoreError
from ramify.runtime.langgraph.checkpointer.checkpoint_reader import read_bodies
from ramify.runtime.langgraph.checkpointer.database import open_read_only_engine, opened
from ramify.runtime.langgraph.checkpointer.delta_encoding import Serialised, ValueId
from ramify.runtime.langgraph.checkpointer.maintenance import thread_id
from ramify.runtime.langgraph.checkpointer.serializers import PLAIN_SERIALIZER
from ramify.runtime.langgraph.checkpointer.statements import Statements
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, threads, values, writes
from ramify.runtime.langgraph.checkpointer.values import ThreadId, Values, closure, insert_copies, load
from ramify.runtime.langgraph.errors import NoStateThere, ThreadElsewhere
from ramify.runtime.langgraph.shown import shown
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition, join_key
from ramify.runtime.records import CheckpointRecord, OpRecord, RunId, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.journal.forked_runs import ForkedRun

_SERDE = JsonPlusSerializer()  # to write with


@dataclass(frozen=True, slots=True)
class Saved:
    """A LangGraph checkpoint of a thread's own graph. `env` is None before the thread's first node."""

    id: str
    env: StoredPosition | None


def new_thread(thread: str, record: RunRecord, new: RunId) -> str:
    """The name of a fork's thread: the first thread's, and the run."""
    return f"{thread.removesuffix(f'-{record.id}')}-{new}"


def fork_thread(address: str | Path, record: RunRecord, at: CheckpointRecord, fork: ForkedRun) -> str:
    """Copy the thread of `record` up to where it stood at `at`; the new thread's name.

    In one transaction of its own, before the run's rows: a thread without its run is nobody's and does no harm.
    Raises `ThreadElsewhere` where the thread is kept by another saver, `NoStateThere` where its graph had no state at
    that checkpoint.
    """
    assert record.thread_id is not None, "only for a thread"
    target = new_thread(record.thread_id, record, fork.run.id)
    engine = opened(address)
    try:
        with engine.execution_options(write=True).begin() as connection:
            saved = standing(connection, record, at, fork.journal)
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


def checkpoint_of(address: str | Path, record: RunRecord, at: CheckpointRecord, journal: Sequence[OpRecord]) -> str:
    """The id of LangGraph's checkpoint that stands there. Raises as `fork_thread`."""
    engine = open_read_only_engine(address)
    try:
        with engine.connect() as connection:
            return standing(connection, record, at, journal).id
    finally:
        engine.dispose()


def channels_at(
    address: str | Path, record: RunRecord, at: CheckpointRecord, journal: Sequence[OpRecord]
) -> Mapping[str, object]:
    """The state of the graph at a checkpoint, as JSON values: each channel that a user named.

    No class of the user's is imported for it: an object is shown by its fields. Raises as `fork_thread`,
    and `StoreError` for a row that is damaged.
    """
    engine = open_read_only_engine(address)
    try:
        with engine.connect() as connection:
            id = standing(connection, record, at, journal).id
            row = next(row for row in thread_rows(connection, record) if row.id == id)
            named = {name: id for name, id in json.loads(row.channels).items() if _is_users(name)}
            found = load(connection, named.values())
            return {name: shown(found[id].kind, found[id].data) for name, id in named.items()}
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise StoreError(f"the checkpoints of run {record.id} hold a row that cannot be read: {error}") from error
    finally:
        engine.dispose()


def standing(connection: Connection, record: RunRecord, at: CheckpointRecord, journal: Sequence[OpRecord]) -> Saved:
    """The first of the thread's checkpoints whose world is that of `at`: what was done later is not in it."""
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
    """The checkpoints of the thread's own graph, oldest first. Raises `ThreadElsewhere`."""
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
    return [Saved(row.id, None if id is None else _env(found[id])) for row, id in zip(rows, ids, strict=True)]


def _env(value: Serialised) -> StoredPosition:
    if value.kind != "msgpack":
        raise ThreadElsewhere.serialised(value.kind)
    env: StoredPosition = PLAIN_SERIALIZER.loads_typed((value.kind, value.data))
    return env


def _moved(env: StoredPosition, record: RunRecord, fork: ForkedRun) -> StoredPosition:
    """The same state in the fork, whose checkpoints have names of their own; as it is where it is another run's."""
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
    """Checkpoints from the thread's beginning to `last`, with what ran inside nodes on the way. What ran after the
    last one is not part of its state, so what was written for it is left."""
    old = thread_id(connection, source)
    assert old is not None, "it was read"
    kept = _kept(connection, old, last)
    done = [row for row in kept if row.id != last]
    written = _written(connection, old, done)
    wanted = _named(kept, written)
    digests = select(values.c.id, values.c.digest).where(values.c.thread == old)
    store = Values(Statements(connection.dialect))
    new = store.thread(connection, target)
    ids = insert_copies(
        connection, new, closure(connection, wanted), {row.id: row.digest for row in connection.execute(digests)}
    )
    envs = load(connection, [json.loads(row.channels)[ENV] for row in kept if ENV in json.loads(row.channels)])

    def channels(row: Row[Any]) -> str:
        named = {name: ids[id] for name, id in json.loads(row.channels).items() if name != ENV}
        if (id := json.loads(row.channels).get(ENV)) is not None:
            env = here if row.id == last else moved(_env(envs[id]))
            named[ENV] = store.put(connection, new, Serialised(*_SERDE.dumps_typed(env)))
        return json.dumps(named, separators=(",", ":"))

    copies = [
        {**row._mapping, "thread": new, "channels": channels(row), "word": row.word and ids[row.word]} for row in kept
    ]
    connection.execute(checkpoints.insert(), copies)
    if written:
        connection.execute(writes.insert(), [_write(row, new, ids) for row in written])


def _kept(connection: Connection, thread: ThreadId, last: str) -> list[Row[Any]]:
    """A checkpoint of the thread's own graph and its ancestry, oldest first, with those of graphs inside that
    ancestry's nodes."""
    rows = connection.execute(select(checkpoints).where(checkpoints.c.thread == thread)).all()
    own = {row.id: row for row in rows if row.ns == ""}
    line: list[Row[Any]] = []
    here = own.get(last)
    while here is not None:
        line.append(here)
        here = own.get(here.parent)
    before = {row.id for row in line} - {last}
    inner = [row for row in rows if row.ns]
    metadata = [body[1] for body in read_bodies(connection, inner, PLAIN_SERIALIZER)]
    within = [r for r, said in zip(inner, metadata, strict=True) if said.get("parents", {}).get("") in before]
    return sorted([*line, *within], key=lambda row: row.id)


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


def _is_users(channel: str) -> bool:
    """Not one that LangGraph or Ramify made for itself: edges, joins, the world."""
    return not channel.startswith(("__", "branch:", "join:"))


def has_ended(address: str | Path, record: RunRecord) -> bool:
    """False also where that cannot be told: its checkpoints are elsewhere, or its graph was built by hand, of
    channels that say nothing by their names."""
    engine = open_read_only_engine(address)
    try:
        with engine.connect() as connection:
            newest = thread_rows(connection, record)[-1:]
            if not newest:
                return False
            (row,) = newest
            mine = (writes.c.thread == row.thread, writes.c.ns == row.ns, writes.c.checkpoint == row.id)
            if connection.execute(select(writes.c.task).where(*mine).limit(1)).first() is not None:
                return False  # half a superstep was done after it
            ((body, _),) = read_bodies(connection, [row], PLAIN_SERIALIZER)
            names = json.loads(row.channels)
            asked = {name for node, seen in body["versions_seen"].items() if node != INTERRUPT for name in seen}
            if not all(_says(name) for name in asked):
                return False
            joins = {name: id for name, id in names.items() if name.startswith("join:") or name == TASKS}
            held = {
                name: PLAIN_SERIALIZER.loads_typed((v.kind, v.data)) for name, v in _values(connection, joins).items()
            }
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
