"""Copy, prune and delete threads. What a kept checkpoint needs is never deleted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection, Row, Select, select, tuple_

from ramify.runtime.langgraph.checkpointer.checkpoint_reader import read_bodies
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, threads, upsert, values, writes
from ramify.runtime.langgraph.checkpointer.values import ThreadId, closure, insert_copies, reachable

_SINCE = "counters_since_delta_snapshot"
"""In a checkpoint's metadata: the channels whose value is not in it, but in the writes of its ancestors."""

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Rule:
    """What a prune keeps."""

    strategy: str
    keep: int = 1
    made_after: float | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.strategy not in ("keep_latest", "delete"):
            raise ValueError(f"unknown strategy {self.strategy!r}: use 'keep_latest' or 'delete'")
        if self.keep < 1:
            raise ValueError(f"keep={self.keep}: a thread keeps at least one checkpoint; 'delete' deletes all")


def several(given: Sequence[str], what: str) -> list[str]:
    """Return the names of threads, runs or tags as strings. Raises `TypeError` for a single string: its letters would
    be taken for names, and the wrong things deleted."""
    if isinstance(given, str):
        raise TypeError(f"{what}={given!r} is a string: give a list, {what}=[{given!r}]")
    return [str(one) for one in given]


def thread_id(connection: Connection, name: str) -> ThreadId | None:
    found: ThreadId | None = connection.execute(select(threads.c.id).where(threads.c.name == name)).scalar()
    return found


def delete_thread(connection: Connection, name: str) -> None:
    thread = thread_id(connection, name)
    if thread is None:
        return
    for table in (checkpoints, writes, values):
        connection.execute(table.delete().where(table.c.thread == thread))
    connection.execute(threads.delete().where(threads.c.id == thread))


def delete_runs(connection: Connection, runs: Sequence[str], serde: SerializerProtocol) -> None:
    if not runs:
        return
    touched = select(checkpoints.c.thread).where(checkpoints.c.run.in_(runs)).distinct()
    for thread in connection.execute(touched).scalars().all():
        rows = connection.execute(_of(thread)).all()
        kept = [row for row in rows if row.run not in runs]
        _delete(connection, thread, rows, _with_ancestors(connection, kept, rows, serde))


def prune(connection: Connection, names: Sequence[str], rule: Rule, serde: SerializerProtocol) -> None:
    for name in names:
        if rule.strategy == "delete":
            delete_thread(connection, name)
        elif (thread := thread_id(connection, name)) is not None:
            rows = connection.execute(_of(thread)).all()
            kept = _kept(connection, rows, rule, serde)
            _delete(connection, thread, rows, _with_ancestors(connection, kept, rows, serde))


def _of(thread: ThreadId) -> Select[Any]:
    """Select a thread's checkpoints, oldest first."""
    return select(checkpoints).where(checkpoints.c.thread == thread).order_by(checkpoints.c.id)


def _kept(connection: Connection, rows: Sequence[Row[Any]], rule: Rule, serde: SerializerProtocol) -> list[Row[Any]]:
    continued = {(row.ns, row.parent) for row in rows}
    newest = {ns: [row.id for row in rows if row.ns == ns][-rule.keep :] for ns in {row.ns for row in rows}}
    tagged = set()
    if rule.tags:
        bodies = read_bodies(connection, rows, serde)
        tagged = {(r.ns, r.id) for r, (_, meta) in zip(rows, bodies, strict=True) if any(map(meta.get, rule.tags))}
    return [
        row
        for row in rows
        if row.id in newest[row.ns]
        or (row.ns, row.id) not in continued
        or (row.ns, row.id) in tagged
        or (rule.made_after is not None and row.made >= rule.made_after)
    ]


def _with_ancestors(
    connection: Connection, kept: Iterable[Row[Any]], rows: Sequence[Row[Any]], serde: SerializerProtocol
) -> set[tuple[str, str]]:
    """Return (namespace, id) of the checkpoints and of the ancestors that hold the parts of their delta channels."""
    by_id = {(row.ns, row.id): row for row in rows}
    places: set[tuple[str, str]] = set()
    for row in kept:
        here: Row[Any] | None = row
        open_channels: set[str] | None = None
        passed = set[str]()  # a checkpoint that was put again, with another parent, may be its own ancestor
        while here is not None and here.id not in passed:
            passed.add(here.id)
            places.add((here.ns, here.id))
            if open_channels is None:
                (body,) = read_bodies(connection, [here], serde)
                open_channels = set(body[1].get(_SINCE) or ())
            open_channels -= json.loads(here.channels).keys()
            here = by_id.get((here.ns, here.parent)) if open_channels else None
    return places


def _delete(connection: Connection, thread: ThreadId, rows: Sequence[Row[Any]], kept: set[tuple[str, str]]) -> None:
    gone = [row for row in rows if (row.ns, row.id) not in kept]
    for at in range(0, len(gone), _AT_ONCE):  # few statements: others wait for them on a server
        places = [(thread, row.ns, row.id) for row in gone[at : at + _AT_ONCE]]
        for table, id in ((checkpoints, checkpoints.c.id), (writes, writes.c.checkpoint)):
            connection.execute(table.delete().where(tuple_(table.c.thread, table.c.ns, id).in_(places)))
    if gone:
        _sweep(connection, thread)


def _sweep(connection: Connection, thread: ThreadId) -> None:
    """Delete the values that no checkpoint and no write of the thread uses."""
    used = reachable(connection, _named(connection, thread))
    there = set(connection.execute(select(values.c.id).where(values.c.thread == thread)).scalars())
    unused = sorted(there - used)
    for at in range(0, len(unused), _AT_ONCE):
        connection.execute(values.delete().where(values.c.id.in_(unused[at : at + _AT_ONCE])))


def _named(connection: Connection, thread: ThreadId) -> set[int]:
    named: set[int] = set()
    for row in connection.execute(_of(thread)):
        named |= set(json.loads(row.channels).values()) | ({row.word} if row.word is not None else set())
    for items in connection.execute(select(writes.c.written).where(writes.c.thread == thread)).scalars():
        named |= {id for _, _, id in json.loads(items)}
    return named


def copy_thread(connection: Connection, source: str, target: str) -> None:
    old = thread_id(connection, source)
    if old is None:
        return
    connection.execute(upsert(connection, threads).values(name=target).on_conflict_do_nothing())
    new = thread_id(connection, target)
    assert new is not None
    if connection.execute(select(checkpoints.c.id).where(checkpoints.c.thread == new).limit(1)).scalar() is not None:
        raise ValueError(f"thread {target!r} holds checkpoints already: copy to a new one, or delete it first")
    found = closure(connection, _named(connection, old))
    named = select(values.c.id, values.c.digest).where(values.c.thread == old)
    digests = {row.id: row.digest for row in connection.execute(named)}
    renamed = insert_copies(connection, new, found, digests)
    _copy_rows(connection, old, new, renamed)


def _copy_rows(connection: Connection, old: ThreadId, new: ThreadId, renamed: Mapping[int, int]) -> None:
    copies = []
    for row in connection.execute(_of(old)).mappings():
        channels = {name: renamed[id] for name, id in json.loads(row["channels"]).items()}
        word = None if row["word"] is None else renamed[row["word"]]
        copies.append({**row, "thread": new, "channels": json.dumps(channels, separators=(",", ":")), "word": word})
    if copies:
        connection.execute(checkpoints.insert(), copies)
    copies = []
    for row in connection.execute(select(writes).where(writes.c.thread == old)).mappings():
        items = [[index, channel, renamed[id]] for index, channel, id in json.loads(row["written"])]
        copies.append({**row, "thread": new, "written": json.dumps(items, separators=(",", ":"))})
    if copies:
        connection.execute(writes.insert(), copies)
