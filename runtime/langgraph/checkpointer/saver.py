"""Saver: LangGraph's checkpoints on SQLite or PostgreSQL, with one fsync per superstep and each value stored once.

A checkpoint names the values of its channels by content. So a value that did not change is stored once, two branches
of a thread cannot mix up their versions of a channel, and a list that grew by one message costs one message
(`values.py`).

LangGraph numbers a channel's values by versions. A version is a counter and a fraction drawn at random, as text:
`f"{counter:032}.{fraction:016}"`. Text orders as the counters do, and two branches of a thread hardly ever draw the
same version. LangGraph's own savers key a channel's values by version, so a thread that has such versions can move to
one of them and go on. Threads that Ramify 0.1 began have plain numbers: they go on with numbers, since LangGraph
compares the versions of a checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection

from ramify.runtime.langgraph.checkpointer import checkpoint_reader, maintenance
from ramify.runtime.langgraph.checkpointer.checkpoint_writes import CheckpointPlace, CheckpointWrites
from ramify.runtime.langgraph.checkpointer.compat import advance_ids_past
from ramify.runtime.langgraph.checkpointer.database import DatabaseClient
from ramify.runtime.langgraph.checkpointer.group_commit import GroupCommitter, WriteMode
from ramify.runtime.langgraph.checkpointer.serializers import Allowed, StrictSerializer
from ramify.runtime.langgraph.checkpointer.statements import statements_for
from ramify.runtime.langgraph.checkpointer.tables import SAVER_TABLES
from ramify.runtime.langgraph.checkpointer.values import Serialised
from ramify.runtime.langgraph.errors import note_channel
from ramify.runtime.store import RunStore
from ramify.runtime.store.engines import looking

Version = int | float | str


def next_version(current: Version | None, fraction: float) -> Version:
    """Return a version greater than `current`. `fraction`, in [0, 1), tells branches apart.

    Raises `ValueError` for text that is not of this form.
    """
    if current is None:
        return text_version(1, fraction)
    if isinstance(current, str):
        return text_version(counter_of(current) + 1, fraction)
    return current + 1


def counter_of(version: Version) -> int:
    """Return the counter of a version. Raises `ValueError` for text of another form than LangGraph's savers write."""
    if not isinstance(version, str):
        return int(version)
    counter = version.partition(".")[0]
    if not (counter.isascii() and counter.isdigit()):
        raise ValueError(
            f"the channel version {version[:40]!r} is not a counter and a fraction, as LangGraph's savers write: the "
            "checkpoint was made by another checkpointer: continue the thread with that one"
        )
    return int(counter)


def text_version(counter: int, fraction: float) -> str:
    return f"{counter:032}.{fraction:016}"


UPKEEP_S = 0.05  # how long one transaction of maintenance may take, if it can be split
_URGENT = frozenset(WRITES_IDX_MAP)  # how a task ended: LangGraph may return to its caller after such a write


class Saver(DatabaseClient, BaseCheckpointSaver[Any]):
    """Checkpoints of any number of threads: `with Saver.open("sqlite:///file.db") as saver`, or `async with`.

    `address`: `sqlite:///FILE`, a path, or `postgresql://HOST/DATABASE`; what is missing is created. Safe for several
    threads and processes. A checkpoint is durable when `put` returns. The writes of a task that ended well are
    durable with the next checkpoint, and after `linger_s` at the latest; a kill in between runs that task again. With
    `linger_s=0` they are durable when `put_writes` returns. If the server is gone, calls retry for half a minute.

    Reading builds LangGraph's own types, and data classes of modules that the program has loaded. `allow` names more,
    as classes or as (module, name). Any other type is refused with `TypeNotAllowed`: nothing that a row names is
    imported or called. `serde`: another serialiser, which is then responsible for that itself.

    Raises `ValueError` for an invalid address, and SQLAlchemy's errors if the database cannot be used.
    """

    _tables = SAVER_TABLES

    def __init__(
        self,
        address: str | Path,
        *,
        allow: Iterable[Allowed] = (),
        serde: SerializerProtocol | None = None,
        linger_s: float = 0.02,
        clock: Callable[[], float] = time.time,
        rng: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(serde=serde or StrictSerializer(allow))
        self._rng = rng
        self._at_once = linger_s == 0
        self._owner = os.getpid()
        self._begin(address, clock)
        self._statements = statements_for(self._engine.dialect)
        self._writes = CheckpointWrites(self._engine.dialect, self._statements, clock)
        self._writer = GroupCommitter(
            self._engine,
            linger_s=linger_s,
            undone=self._writes.undone,
            begin=self._writes.begin,
            finish=self._writes.finish,
        )

    def join(self, store: RunStore) -> bool:
        """Let the run store commit what this saver writes, in one transaction with its own rows, for as long as it is
        open. Return False and change nothing if they use different databases."""
        lead = store.lead(self.address)
        return lead is not None and self._writer.follow(lead)

    def close(self) -> None:
        """Commit what lingers, and close the database."""
        if os.getpid() != self._owner:
            return  # this is the copy in a forked child: the parent closes it
        try:
            self._writer.close()
        finally:
            super().close()

    # Writing

    def get_next_version(self, current: Version | None, channel: None) -> Version:
        """Return the version after `current`, in the form of LangGraph's own savers."""
        return next_version(current, self._rng())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint; it is durable when this returns."""
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
        """Write what a task wrote. The first writes of a task are kept; a write that says how it ended replaces an
        earlier one."""
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
    ) -> tuple[CheckpointPlace, Callable[[Connection], None]]:
        """Serialise a checkpoint now, since the caller may change its objects afterwards, and return what writes
        it."""
        place = CheckpointPlace.of(config, "checkpoint_ns")
        channels = {name: self._serialised(value, name) for name, value in checkpoint["channel_values"].items()}
        full = get_checkpoint_metadata(config, metadata)
        body = self._serialised([{**checkpoint, "channel_values": {}}, full])
        run = full.get("run_id")

        def work(connection: Connection) -> None:
            self._writes.put_checkpoint(connection, place, str(checkpoint["id"]), channels, body, run)

        return place, work

    def _writing(
        self, config: RunnableConfig, given: Sequence[tuple[str, Any]], task: str, path: str
    ) -> tuple[bool, Callable[[Connection], None]]:
        place, task = CheckpointPlace.of(config, "checkpoint_ns", "checkpoint_id"), str(task)
        new = [(WRITES_IDX_MAP.get(ch, at), ch, self._serialised(value, ch)) for at, (ch, value) in enumerate(given)]

        def work(connection: Connection) -> None:
            self._writes.put_writes(connection, place, task, path, new)

        return self._at_once or any(channel in _URGENT for channel, _ in given), work

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the thread's newest; None if there is none."""
        place = CheckpointPlace.of(config)
        at = checkpoint_reader.ThreadNamespace(place.thread, place.ns)
        self._writer.drain()
        with self._reading() as connection, looking(connection):
            found, newest = checkpoint_reader.one(
                connection, self._statements, at, place.checkpoint or None, self.serde
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
        """Yield checkpoints, newest first."""
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

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As LangGraph's."""
        ancestors = checkpoint_reader.Ancestors(self)
        return ancestors.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await asyncio.to_thread(self.get_delta_channel_history, config=config, channels=channels)

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

    # Maintenance

    def delete_thread(self, thread_id: str) -> None:
        self._maintain(lambda connection: maintenance.delete_thread(connection, str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs and their writes. What later checkpoints need of them stays."""
        runs = maintenance.several(run_ids, "run_ids")
        self._maintain(lambda connection: maintenance.delete_runs(connection, runs, self.serde))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread. Raises `ValueError` if the target holds checkpoints already."""
        self._maintain(
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

        "keep_latest" keeps the newest `keep` of each namespace, those made in the last `older_than_s` seconds if that
        is given, those whose metadata has a true value under one of `keep_tags`, the newest of every branch (one that
        no other checkpoint continues), and what the kept ones need. "delete" deletes all.

        Many threads take several transactions, so that writers need not wait for all of them. If one fails, the
        threads before it are done.
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
        """Do as many threads in one transaction as fit into `UPKEEP_S`, at least one, so that writers wait no
        longer."""
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

            self._maintain(some)
            del left[:done]

    def _maintain(self, work: Callable[[Connection], None], *, deletes: bool = True) -> None:
        def alone(connection: Connection) -> None:
            self._writes.before_deletion(connection, deletes=deletes)
            work(connection)

        self._writer.commit(alone, WriteMode.EXCLUSIVE)
