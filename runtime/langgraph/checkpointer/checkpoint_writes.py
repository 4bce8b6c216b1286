"""How checkpoints and writes become rows, and what is remembered of the database to write new values against.

Only the committing thread uses this. After a rollback, or a deletion by another process, what it remembers may be
wrong: then it forgets everything.

It notices deletions by other processes, so that no writer names rows that are gone. A writer remembers ids of the
threads and values that it wrote. Each deletion increments a number in the database, the deletion epoch. Each writing
transaction first checks that the epoch is the one it knows; otherwise the writer forgets what it remembers. SQLite
has one writer at a time. On a server, writers share a lock on the number, and a deleting transaction waits for them
and locks it alone (decision 017).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from langchain_core.runnables import RunnableConfig
from sqlalchemy import Connection, Dialect, select, text

from ramify.runtime.langgraph.checkpointer.group_commit import WriteMode
from ramify.runtime.langgraph.checkpointer.statements import PendingRows, Prepared, Statements
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, deletion_epoch_table, writes
from ramify.runtime.langgraph.checkpointer.values import New, Serialised, ThreadId, ValueId, Values, load
from ramify.runtime.store.stored_texts import compress, written


class DeletionEpoch:
    """One writer's view of the epoch. `forget` is called when another process deleted something."""

    def __init__(self, dialect: Dialect, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._number: int | None = None
        look = select(deletion_epoch_table.c.number)
        self._look = {read: Prepared(look.with_for_update(read=read), dialect, ()) for read in (True, False)}
        shared = f"SELECT 1 FROM {deletion_epoch_table.name} WHERE number = :number FOR SHARE"
        self._still = Prepared(text(f"SELECT 1 / count(*) FROM ({shared}) AS still"), dialect, ("number",))

    def enter(self, connection: Connection, rows: PendingRows, *, shared: bool) -> None:
        """Check the epoch before anything is written. Rows that are put into `rows` optimistically are refused if
        something was deleted. Maintenance reads with several statements or deletes, so it passes `shared=False`:
        nobody else writes meanwhile."""
        if not rows.optimistic or self._number is None:
            found = self._look[shared](connection).fetchone()
            assert found is not None, "`tables.make` put it there"
            if found[0] != self._number:
                self._forget()
                self._number = found[0]
        if rows.optimistic:
            rows.only(self._still, self._number)

    def read_again(self) -> None:
        """Read the epoch again next time, because a transaction was rolled back."""
        self._number = None

    def begin_deleting(self, connection: Connection) -> None:
        """Let the rest of the transaction delete: other writers wait for its end, then forget."""
        connection.execute(deletion_epoch_table.update().values(number=deletion_epoch_table.c.number + 1))
        self._number = None
        self._forget()


_BRANCHES = 64  # whose last values are remembered, so that new values are stored as differences to them
_WRITTEN = 32  # checkpoints whose tasks' writes serve as dictionaries: LangGraph may be as many ahead of its `put`s
_TASKS = 1024
_WORDS = 4  # values in one dictionary


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    thread: str
    ns: str
    checkpoint: str | None

    @classmethod
    def of(cls, config: RunnableConfig, *needed: str) -> CheckpointPlace:
        """Raises `KeyError` for a config without a thread or one of the needed keys, as LangGraph's savers do, and
        `TypeError` for a namespace that is None: PostgreSQL's refuse it, and SQLite's would never find it again."""
        conf = config["configurable"]
        for key in needed:
            if conf[key] is None:
                raise TypeError(f"the config's {key} is None: name one, as in the config that `put` returned")
        at = conf.get("checkpoint_id")
        return cls(str(conf["thread_id"]), str(conf.get("checkpoint_ns", "")), None if at is None else str(at))


@dataclass(eq=False, slots=True)
class _NamespaceHead:
    """What is remembered of the newest checkpoint in a namespace of a thread."""

    channels: dict[str, tuple[ValueId, Serialised]]
    # values that tasks wrote, by checkpoint, for the last checkpoints
    written: OrderedDict[str | None, list[tuple[ValueId, Serialised]]]


_Task = tuple[ThreadId, str, str | None, str]
"""Thread, namespace, checkpoint and id of a task, as in the table."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


def _to_json(names_and_ids: Any) -> str:
    try:
        return orjson.dumps(names_and_ids).decode()
    except orjson.JSONEncodeError:  # a lone surrogate in a name: the json module can write it, orjson cannot
        if isinstance(names_and_ids, dict) and not all(isinstance(name, str) for name in names_and_ids):
            raise TypeError(f"names of channels must be text: {list(names_and_ids)}") from None
        return _encode(names_and_ids)


class CheckpointWrites:
    """Writes checkpoints and tasks' writes in a transaction that the caller begins with `begin` and ends with
    `finish`.

    `clock` returns Unix seconds.
    """

    def __init__(self, dialect: Dialect, statements: Statements, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._statements = statements
        self._rows = PendingRows()
        self._epoch = DeletionEpoch(dialect, self._forget)
        self._values = Values(self._statements, self._rows)
        self._tasks: OrderedDict[_Task, None] = OrderedDict()  # tasks known to have written
        self._branches: OrderedDict[tuple[str, str], _NamespaceHead] = OrderedDict()
        # the dictionary for the checkpoint bodies of each thread
        self._words: dict[ThreadId, tuple[ValueId, bytes]] = {}

    @property
    def finish(self) -> Callable[[Connection, Callable[[], None]], None]:
        """Writes the waiting rows and commits."""
        return self._rows.write

    def before_deletion(self, connection: Connection, *, deletes: bool) -> None:
        """Write the waiting rows. If the rest of the transaction deletes something, make all other writers forget
        what they remember."""
        self._rows.write(connection, lambda: None)
        if deletes:
            self._epoch.begin_deleting(connection)

    def put_checkpoint(
        self,
        connection: Connection,
        place: CheckpointPlace,
        id: str,
        channels: Mapping[str, Serialised],
        body: Serialised,
        run: object,
    ) -> None:
        """Write a checkpoint. `place` names its parent; `body` is the checkpoint without its values."""
        thread = self._values.thread(connection, place.thread)
        branch = self._branch(connection, thread, place)
        ids = self._of_channels(connection, thread, branch, place, channels)
        word = self._dictionary(connection, thread, body)
        squeezed = compress(body.data, word[1])
        row = (
            thread,
            written(place.ns),
            written(id),
            place.checkpoint and written(place.checkpoint),
            None if run is None else written(str(run)),
            self._clock(),
            _to_json(ids),
            body.kind,
            body.data if squeezed is None else squeezed,
            word[0],
            squeezed is not None,
        )
        self._rows.put(self._statements.put_checkpoint, *row)
        branch.channels = {name: (id, channels[name]) for name, id in ids.items()}

    def put_writes(
        self,
        connection: Connection,
        place: CheckpointPlace,
        task: str,
        path: str,
        new: Sequence[tuple[int, str, Serialised]],
    ) -> None:
        """Write what a task wrote after the checkpoint of `place`, as (index, channel, value)."""
        thread = self._values.thread(connection, place.thread)
        branch = self._branch(connection, thread, place)
        key = (thread, written(place.ns), place.checkpoint and written(place.checkpoint), written(task))
        ids = self._of_a_task(connection, thread, branch, place, [value for _, _, value in new])
        items = {index: [index, channel, id] for (index, channel, _), id in zip(new, ids, strict=True)}
        row = (*key, written(path), _to_json(list(items.values())))
        if self._rows.optimistic and key not in self._tasks:
            self._rows.put(self._statements.put_new_writes, *row)
        else:
            there = partial(self._add_writes, key=key, path=written(path), items=items)
            self._rows.put(self._statements.put_first_writes, *row, where_there=there)
        self._wrote(key)

    def _add_writes(
        self, connection: Connection, *, key: tuple[Any, ...], path: str, items: Mapping[int, list[Any]]
    ) -> None:
        """Add writes to those that the task has already."""
        row = self._statements.find_writes(connection, *key).fetchone()
        kept = {} if row is None else {index: [index, *rest] for index, *rest in json.loads(row[0])}
        kept |= {index: item for index, item in items.items() if index < 0 or index not in kept}
        self._statements.put_writes(connection, *key, path, _to_json(list(kept.values())))

    def _wrote(self, task: _Task) -> None:
        self._tasks[task] = None
        self._tasks.move_to_end(task)
        while len(self._tasks) > _TASKS:
            self._tasks.popitem(last=False)

    def begin(self, connection: Connection, how: WriteMode) -> None:
        self._rows.begin(optimistic=how is WriteMode.OPTIMISTIC)
        self._epoch.enter(connection, self._rows, shared=how is not WriteMode.EXCLUSIVE)

    def _of_channels(
        self,
        connection: Connection,
        thread: ThreadId,
        branch: _NamespaceHead,
        place: CheckpointPlace,
        channels: Mapping[str, Serialised],
    ) -> dict[str, ValueId]:
        """Return the ids of channels' values. Most equal the previous value, or one that a task has just written."""
        tasks = branch.written.get(place.checkpoint, [])
        before = branch.channels
        ids = {}
        for name, value in channels.items():  # comparing is faster than computing a digest
            known = before.get(name), *tasks
            if (id := next((one[0] for one in known if one is not None and one[1] == value), None)) is not None:
                ids[name] = id
        if left := [name for name in channels if name not in ids]:
            words = [(id, value.data) for id, value in tasks[-_WORDS:]]
            new = [New(channels[name], before.get(name), words) for name in left]
            ids |= zip(left, self._values.put_all(connection, thread, new), strict=True)
        return {name: ids[name] for name in channels}

    def _of_a_task(
        self,
        connection: Connection,
        thread: ThreadId,
        branch: _NamespaceHead,
        place: CheckpointPlace,
        found: Sequence[Serialised],
    ) -> list[ValueId]:
        """Return the ids of values that a task wrote. The channels' values will be packed with them."""
        ids = self._values.put_all(connection, thread, [New(value) for value in found])
        plain = [(id, value) for id, value in zip(ids, found, strict=True) if self._values.is_plain(id)]
        if plain:
            branch.written.setdefault(place.checkpoint, []).extend(plain)
            while len(branch.written) > _WRITTEN:
                branch.written.popitem(last=False)
        return ids

    def _branch(self, connection: Connection, thread: ThreadId, place: CheckpointPlace) -> _NamespaceHead:
        key = (place.thread, place.ns)
        if key not in self._branches:
            self._branches[key] = self._opened(connection, thread, place)
        self._branches.move_to_end(key)
        while len(self._branches) > _BRANCHES:
            self._branches.popitem(last=False)
        return self._branches[key]

    def _opened(self, connection: Connection, thread: ThreadId, place: CheckpointPlace) -> _NamespaceHead:
        """Read the newest checkpoint of the namespace, which another process may have written."""
        newest = (
            select(checkpoints.c.id, checkpoints.c.channels)
            .where(checkpoints.c.thread == thread, checkpoints.c.ns == place.ns)
            .order_by(checkpoints.c.id.desc())
            .limit(1)
        )
        found = connection.execute(newest).first()
        if found is None:
            return _NamespaceHead({}, OrderedDict())
        if self._rows.optimistic:
            self._values.recall(connection, thread)
            at = (writes.c.thread == thread, writes.c.ns == place.ns, writes.c.checkpoint == found.id)
            for task in connection.execute(select(writes.c.task).where(*at)).scalars():
                self._wrote((thread, written(place.ns), written(found.id), written(task)))
        ids: dict[str, ValueId] = json.loads(found.channels)
        there = load(connection, ids.values())
        return _NamespaceHead({name: (id, there[id]) for name, id in ids.items()}, OrderedDict())

    def _dictionary(self, connection: Connection, thread: ThreadId, body: Serialised) -> tuple[ValueId, bytes]:
        """Return the dictionary with which the checkpoint bodies of a thread are compressed: its first body."""
        if (known := self._words.get(thread)) is not None:
            return known
        there = (checkpoints.c.thread == thread, checkpoints.c.word.is_not(None))
        id = connection.execute(select(checkpoints.c.word).where(*there).limit(1)).scalar()
        if id is None:
            self._words[thread] = (self._values.put(connection, thread, body), body.data)
        else:
            self._words[thread] = (id, load(connection, [id])[id].data)
        return self._words[thread]

    def undone(self) -> None:
        """Forget everything: a transaction was rolled back."""
        self._epoch.read_again()
        self._forget()

    def _forget(self) -> None:
        """Forget everything: what is remembered may name rows that do not exist."""
        self._values.forget()
        self._tasks.clear()
        self._branches.clear()
        self._words.clear()
