"""Saver: LangGraph's checkpoints on SQLite or PostgreSQL, one fsync a superstep, what repeats stored once.

A checkpoint names the values of its channels by content, so a value that did not change is stored once, two
branches of a thread never mistake one's version of a channel for the other's, and a list that grew by one message
costs one message (packing.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection, select

from ramify.runtime.langgraph.checkpointer import checkpoint_reader, maintenance
from ramify.runtime.langgraph.checkpointer.compat import advance_ids_past
from ramify.runtime.langgraph.checkpointer.database import Opened
from ramify.runtime.langgraph.checkpointer.deletion_epoch import House
from ramify.runtime.langgraph.checkpointer.delta_encoding import Serialised, ValueId
from ramify.runtime.langgraph.checkpointer.group_commit import WriteMode, Writer
from ramify.runtime.langgraph.checkpointer.serializers import Allowed, StrictSerializer
from ramify.runtime.langgraph.checkpointer.statements import Rows, Statements
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, writes
from ramify.runtime.langgraph.checkpointer.values import New, ThreadId, Values, load
from ramify.runtime.langgraph.errors import note_channel
from ramify.runtime.store import RunStore
from ramify.runtime.store.engines import looking
from ramify.runtime.store.stored_texts import compress, written

UPKEEP_S = 0.05  # how long one transaction of upkeep may take, where it can be more of them
_BRANCHES = 64  # whose last values are kept at hand, so that new ones are written against them
_WRITTEN = 32  # checkpoints whose tasks' writes are dictionaries: LangGraph may be as many ahead of its `put`s
_TASKS = 1024
_WORDS = 4  # values in one dictionary
_URGENT = frozenset(WRITES_IDX_MAP)  # how a task ended: LangGraph may return to its caller after that


@dataclass(frozen=True, slots=True)
class _Place:
    thread: str
    ns: str
    checkpoint: str | None

    @classmethod
    def of(cls, config: RunnableConfig) -> _Place:
        conf = config["configurable"]
        return cls(str(conf["thread_id"]), conf.get("checkpoint_ns", ""), conf.get("checkpoint_id"))


@dataclass(eq=False, slots=True)
class _Branch:
    """What is at hand of the newest checkpoint of a thread's namespace. Used by the writer's thread alone."""

    channels: dict[str, tuple[ValueId, Serialised]]
    written: OrderedDict[str | None, list[tuple[ValueId, Serialised]]]  # by tasks, under the last checkpoints


_Task = tuple[ThreadId, str, str | None, str]
"""Thread, namespace, checkpoint and id of a task, as in the table."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


def _told(names_and_ids: Any) -> str:
    try:
        return orjson.dumps(names_and_ids).decode()
    except orjson.JSONEncodeError:  # half a character in a name: JSON has a form for it, orjson has none
        return _encode(names_and_ids)


class Saver(Opened, BaseCheckpointSaver[int]):
    """Checkpoints of any number of threads: `with Saver.open("sqlite:///file.db") as saver`, or `async with`.

    `address`: `sqlite:///FILE`, a path, or `postgresql://HOST/DATABASE`; what is missing is made. Safe for several
    threads and processes. A checkpoint is durable when `put` returns. The writes of a task that ended well are
    durable with the next checkpoint, and after `linger_s` at the latest: a kill in between runs that task again.
    A server that goes away is waited for, half a minute.

    What is read back are LangGraph's own types and classes of data of modules that the program has loaded; `allow`
    names more, as classes or as (module, name). Any other is refused with `TypeNotAllowed`: nothing that a row names
    is imported or called. `serde`: another serialiser, which then has to see to that itself.

    Raises `ValueError` for an address that is none, and SQLAlchemy's errors where the database cannot be used.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        allow: Iterable[Allowed] = (),
        serde: SerializerProtocol | None = None,
        linger_s: float = 0.02,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(serde=serde or StrictSerializer(allow))
        self._owner = os.getpid()
        self._begin(address, clock)
        self._rows = Rows()
        self._house = House(self._engine.dialect, self._forget)
        self._statements = Statements(self._engine.dialect)
        self._values = Values(self._statements, self._rows)
        self._tasks: OrderedDict[_Task, None] = OrderedDict()  # known to have written
        self._writer = Writer(
            self._engine, linger_s=linger_s, undone=self._undone, begin=self._enter, finish=self._rows.write
        )
        self._branches: OrderedDict[tuple[str, str], _Branch] = OrderedDict()
        self._words: dict[ThreadId, tuple[ValueId, bytes]] = {}  # what the bodies of each thread are packed with

    def join(self, store: RunStore) -> bool:
        """Have the run store commit what this saver writes, in one transaction with what it writes itself, for as
        long as it is open. False, and nothing changes, where their databases are two."""
        lead = store.lead(self.address)
        return lead is not None and self._writer.follow(lead)

    def close(self) -> None:
        """Commit what lingers, and let go of the database."""
        if os.getpid() != self._owner:
            return  # a forked child's copy: its parent closes it
        try:
            self._writer.close()
        finally:
            super().close()

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Durable when this returns."""
        place, work = self._putting(config, checkpoint, metadata)
        self._writer.commit(work, WriteMode.OPTIMISTIC)
        return checkpoint_reader.config_of(place.thread, place.ns, checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        place, work = self._putting(config, checkpoint, metadata)
        await asyncio.wrap_future(self._writer.submit(work, WriteMode.OPTIMISTIC))
        return checkpoint_reader.config_of(place.thread, place.ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """A task's writes are kept as they came first; what says how it ended replaces what said so before."""
        urgent, work = self._writing(config, writes, task_id, task_path)
        if urgent:
            self._writer.commit(work, WriteMode.OPTIMISTIC)
        else:
            self._writer.linger(work, WriteMode.OPTIMISTIC)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        urgent, work = self._writing(config, writes, task_id, task_path)
        if urgent:
            await asyncio.wrap_future(self._writer.submit(work, WriteMode.OPTIMISTIC))
        else:
            self._writer.linger(work, WriteMode.OPTIMISTIC)

    def _serialised(self, value: Any, channel: str = "") -> Serialised:
        try:
            return Serialised(*self.serde.dumps_typed(value))
        except (TypeError, ValueError) as error:
            if channel:
                note_channel(error, channel, value)
            raise

    def _putting(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> tuple[_Place, Callable[[Connection], None]]:
        """What is to be written, serialised now: the caller may change its objects afterwards."""
        place = _Place.of(config)
        channels = {name: self._serialised(value, name) for name, value in checkpoint["channel_values"].items()}
        full = get_checkpoint_metadata(config, metadata)
        body = self._serialised([{**checkpoint, "channel_values": {}}, full])
        run = full.get("run_id")

        def work(connection: Connection) -> None:
            thread = self._values.thread(connection, place.thread)
            branch = self._branch(connection, thread, place)
            ids = self._of_channels(connection, thread, branch, place, channels)
            word = self._dictionary(connection, thread, body)
            squeezed = compress(body.data, word[1])
            row = (
                thread,
                written(place.ns),
                written(checkpoint["id"]),
                place.checkpoint and written(place.checkpoint),
                None if run is None else written(str(run)),
                self._clock(),
                _told(ids),
                body.kind,
                body.data if squeezed is None else squeezed,
                word[0],
                squeezed is not None,
            )
            self._rows.put(self._statements.put_checkpoint, *row)
            branch.channels = {name: (id, channels[name]) for name, id in ids.items()}

        return place, work

    def _writing(
        self, config: RunnableConfig, given: Sequence[tuple[str, Any]], task: str, path: str
    ) -> tuple[bool, Callable[[Connection], None]]:
        place = _Place.of(config)
        new = [(WRITES_IDX_MAP.get(ch, at), ch, self._serialised(value, ch)) for at, (ch, value) in enumerate(given)]

        def work(connection: Connection) -> None:
            thread = self._values.thread(connection, place.thread)
            branch = self._branch(connection, thread, place)
            key = (thread, written(place.ns), place.checkpoint and written(place.checkpoint), written(task))
            ids = self._of_a_task(connection, thread, branch, place, [value for _, _, value in new])
            items = {index: [index, channel, id] for (index, channel, _), id in zip(new, ids, strict=True)}
            row = (*key, written(path), _told(list(items.values())))
            if self._rows.boldly and key not in self._tasks:
                self._rows.put(self._statements.put_new_writes, *row)
            else:
                there = partial(self._add_writes, key=key, path=written(path), items=items)
                self._rows.put(self._statements.put_first_writes, *row, where_there=there)
            self._wrote(key)

        return any(channel in _URGENT for channel, _ in given), work

    def _add_writes(
        self, connection: Connection, *, key: tuple[Any, ...], path: str, items: Mapping[int, list[Any]]
    ) -> None:
        """Put writes beside those that the task has already."""
        row = self._statements.find_writes(connection, *key).fetchone()
        kept = {} if row is None else {index: [index, *rest] for index, *rest in json.loads(row[0])}
        kept |= {index: item for index, item in items.items() if index < 0 or index not in kept}
        self._statements.put_writes(connection, *key, path, _told(list(kept.values())))

    def _wrote(self, task: _Task) -> None:
        self._tasks[task] = None
        self._tasks.move_to_end(task)
        while len(self._tasks) > _TASKS:
            self._tasks.popitem(last=False)

    def _enter(self, connection: Connection, how: WriteMode) -> None:
        self._rows.begin(boldly=how is WriteMode.OPTIMISTIC)
        self._house.enter(connection, self._rows, shared=how is not WriteMode.ALONE)

    def _of_channels(
        self,
        connection: Connection,
        thread: ThreadId,
        branch: _Branch,
        place: _Place,
        channels: Mapping[str, Serialised],
    ) -> dict[str, ValueId]:
        """The ids of channels' values. Most are what they were, or what a task has just written."""
        tasks = branch.written.get(place.checkpoint, [])
        before = branch.channels
        ids = {}
        for name, value in channels.items():  # compared, which is faster than to digest
            known = before.get(name), *tasks
            if (id := next((one[0] for one in known if one is not None and one[1] == value), None)) is not None:
                ids[name] = id
        if left := [name for name in channels if name not in ids]:
            words = [(id, value.data) for id, value in tasks[-_WORDS:]]
            new = [New(channels[name], before.get(name), words) for name in left]
            ids |= zip(left, self._values.put_all(connection, thread, new), strict=True)
        return {name: ids[name] for name in channels}

    def _of_a_task(
        self, connection: Connection, thread: ThreadId, branch: _Branch, place: _Place, found: Sequence[Serialised]
    ) -> list[ValueId]:
        """The ids of values that a task wrote: what the channels' values will be packed with."""
        ids = self._values.put_all(connection, thread, [New(value) for value in found])
        plain = [(id, value) for id, value in zip(ids, found, strict=True) if self._values.is_plain(id)]
        if plain:
            branch.written.setdefault(place.checkpoint, []).extend(plain)
            while len(branch.written) > _WRITTEN:
                branch.written.popitem(last=False)
        return ids

    def _branch(self, connection: Connection, thread: ThreadId, place: _Place) -> _Branch:
        key = (place.thread, place.ns)
        if key not in self._branches:
            self._branches[key] = self._opened(connection, thread, place)
        self._branches.move_to_end(key)
        while len(self._branches) > _BRANCHES:
            self._branches.popitem(last=False)
        return self._branches[key]

    def _opened(self, connection: Connection, thread: ThreadId, place: _Place) -> _Branch:
        """As another process left it."""
        newest = (
            select(checkpoints.c.id, checkpoints.c.channels)
            .where(checkpoints.c.thread == thread, checkpoints.c.ns == place.ns)
            .order_by(checkpoints.c.id.desc())
            .limit(1)
        )
        found = connection.execute(newest).first()
        if found is None:
            return _Branch({}, OrderedDict())
        if self._rows.boldly:
            self._values.recall(connection, thread)
            at = (writes.c.thread == thread, writes.c.ns == place.ns, writes.c.checkpoint == found.id)
            for task in connection.execute(select(writes.c.task).where(*at)).scalars():
                self._wrote((thread, written(place.ns), written(found.id), written(task)))
        ids: dict[str, ValueId] = json.loads(found.channels)
        there = load(connection, ids.values())
        return _Branch({name: (id, there[id]) for name, id in ids.items()}, OrderedDict())

    def _dictionary(self, connection: Connection, thread: ThreadId, body: Serialised) -> tuple[ValueId, bytes]:
        """What the bodies of a thread are compressed with: its first one."""
        if (known := self._words.get(thread)) is not None:
            return known
        there = (checkpoints.c.thread == thread, checkpoints.c.word.is_not(None))
        id = connection.execute(select(checkpoints.c.word).where(*there).limit(1)).scalar()
        if id is None:
            self._words[thread] = (self._values.put(connection, thread, body), body.data)
        else:
            self._words[thread] = (id, load(connection, [id])[id].data)
        return self._words[thread]

    def _undone(self) -> None:
        """A transaction was rolled back."""
        self._house.unsure()
        self._forget()

    def _forget(self) -> None:
        """What is at hand may name what is not there."""
        self._values.forget()
        self._tasks.clear()
        self._branches.clear()
        self._words.clear()

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the thread's newest; None where there is none."""
        place = _Place.of(config)
        at = checkpoint_reader.Place(place.thread, place.ns)
        self._writer.drain()
        with self._reading() as connection, looking(connection):
            found, newest = checkpoint_reader.one(
                connection, self._statements, at, get_checkpoint_id(config), self.serde
            )
        if newest is not None:
            advance_ids_past(newest)
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Newest first."""
        self._writer.drain()
        with self._reading() as connection:
            query = checkpoint_reader.several(config, before, None if filter else limit)
            left = limit
            for found in checkpoint_reader.tuples(connection, query, self.serde, filter):
                if left is not None:
                    if left <= 0:
                        return
                    left -= 1
                yield found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        for one in await asyncio.to_thread(tuple, found):
            yield one

    # Upkeep

    def delete_thread(self, thread_id: str) -> None:
        self._keep_house(lambda connection: maintenance.delete_thread(connection, str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, and their writes. What later checkpoints need of them stays."""
        runs = maintenance.several(run_ids, "run_ids")
        self._keep_house(lambda connection: maintenance.delete_runs(connection, runs, self.serde))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread whole. Raises `ValueError` where the target holds checkpoints already."""
        self._keep_house(
            lambda connection: maintenance.copy_thread(connection, str(source_thread_id), str(target_thread_id)),
            deletes=False,
        )

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep: int = 1,
        older_than_s: float | None = None,
        keep_tags: Sequence[str] = (),
    ) -> None:
        """Delete old checkpoints of these threads.

        "keep_latest" keeps the newest `keep` of each namespace, those made in the last `older_than_s` seconds where
        that is given, those whose metadata has a true value under one of `keep_tags`, the newest of every branch
        (one that no other checkpoint continues), and what the kept ones stand on.
        "delete" deletes all. Many threads are no single transaction, so that who writes meanwhile does not wait for
        all of them: where one fails, those before it are done.
        """
        threads, tags = maintenance.several(thread_ids, "thread_ids"), maintenance.several(keep_tags, "keep_tags")
        rule = maintenance.Rule(strategy, keep, None if older_than_s is None else self._clock() - older_than_s, tags)
        self._thread_by_thread(
            threads, lambda connection, one: maintenance.prune(connection, [one], rule, self.serde)
        )

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", **options: Any) -> None:
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy, **options))

    def _thread_by_thread(self, names: Sequence[str], work: Callable[[Connection, str], None]) -> None:
        """As many threads in one transaction as take `UPKEEP_S`, one at least: who writes waits no longer."""
        left = list(names)
        while left:
            done = 0

            def some(connection: Connection, left: Sequence[str] = tuple(left)) -> None:
                nonlocal done
                done, until = 0, time.monotonic() + UPKEEP_S
                for name in left:
                    work(connection, name)
                    done += 1
                    if time.monotonic() >= until:
                        break

            self._keep_house(some)
            del left[:done]

    def _keep_house(self, work: Callable[[Connection], None], *, deletes: bool = True) -> None:
        def alone(connection: Connection) -> None:
            self._rows.write(connection, lambda: None)
            if deletes:
                self._house.alone(connection)
            work(connection)

        self._writer.commit(alone, WriteMode.ALONE)
