"""A LangGraph checkpointer on disk: SQLite, one file, one transaction and one fsync a call.

A checkpoint names the values of its channels by their sha256, so a value that did not change is stored once, and
two branches of a thread never mistake one's version of a channel for the other's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
    writes_sort_key,
)
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    Table,
    Text,
    create_engine,
    insert,
    select,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from ramify.runtime.store.connect import prepare, sync_folder

_metadata = MetaData()


def _key(*names: str) -> list[Column[str]]:
    return [Column(name, Text, primary_key=True) for name in names]


_checkpoints = Table(
    "checkpoints",
    _metadata,
    *_key("thread", "ns", "id"),
    Column("parent", Text),
    Column("kind", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("metadata_kind", Text, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("channels", Text, nullable=False),  # JSON: channel to the digest of its value
)
_values = Table(
    "channel_values",
    _metadata,
    *_key("thread", "digest"),
    Column("kind", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
_writes = Table(
    "writes",
    _metadata,
    *_key("thread", "ns", "checkpoint", "task"),
    Column("idx", Integer, primary_key=True),
    Column("channel", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("task_path", Text, nullable=False),
)


class Saver(BaseCheckpointSaver[int]):
    """Checkpoints of any number of threads in the file at `path`, made with its folders where it is missing.

    Safe for several threads and processes. Close it, or use it as a context manager.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(**options)
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._engine: Engine = create_engine(URL.create("sqlite", database=str(path)))
        prepare(self._engine)
        with self._engine.execution_options(write=True).begin() as connection:
            _metadata.create_all(connection)
        sync_folder(path.parent)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Durable when this returns."""
        conf = config["configurable"]
        thread, ns = str(conf["thread_id"]), conf.get("checkpoint_ns", "")
        packed = {name: self.serde.dumps_typed(value) for name, value in checkpoint["channel_values"].items()}
        digests = {name: _digest(kind, body) for name, (kind, body) in packed.items()}
        kind, body = self.serde.dumps_typed({**checkpoint, "channel_values": {}})
        metadata_kind, metadata_body = self.serde.dumps_typed(get_checkpoint_metadata(config, metadata))
        values = [
            {"thread": thread, "digest": digests[name], "kind": kind, "body": body}
            for name, (kind, body) in packed.items()
        ]
        row = {
            "thread": thread,
            "ns": ns,
            "id": checkpoint["id"],
            "parent": conf.get("checkpoint_id"),
            "kind": kind,
            "body": body,
            "metadata_kind": metadata_kind,
            "metadata": metadata_body,
            "channels": json.dumps(digests),
        }
        with self._engine.execution_options(write=True).begin() as connection:
            if values:
                connection.execute(upsert(_values).on_conflict_do_nothing(), values)
            connection.execute(insert(_checkpoints).prefix_with("OR REPLACE"), row)
        return _config(thread, ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """A task's writes are kept as they came first; what says how it ended replaces what said so before."""
        conf = config["configurable"]
        place = {
            "thread": str(conf["thread_id"]),
            "ns": conf.get("checkpoint_ns", ""),
            "checkpoint": conf["checkpoint_id"],
            "task": task_id,
            "task_path": task_path,
        }
        with self._engine.execution_options(write=True).begin() as connection:
            for position, (channel, value) in enumerate(writes):
                index = WRITES_IDX_MAP.get(channel, position)
                kind, body = self.serde.dumps_typed(value)
                row = {**place, "idx": index, "channel": channel, "kind": kind, "body": body}
                how = "OR REPLACE" if index < 0 else "OR IGNORE"
                connection.execute(insert(_writes).prefix_with(how), row)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the thread's newest; None where there is none."""
        conf = config["configurable"]
        query = _of(str(conf["thread_id"])).where(_checkpoints.c.ns == conf.get("checkpoint_ns", ""))
        if (wanted := get_checkpoint_id(config)) is not None:
            query = query.where(_checkpoints.c.id == wanted)
        found = self._read(query.limit(1))
        return found[0] if found else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Newest first."""
        conf = config["configurable"] if config is not None else {}
        query = _of(str(conf["thread_id"]) if "thread_id" in conf else None)
        if (ns := conf.get("checkpoint_ns")) is not None:
            query = query.where(_checkpoints.c.ns == ns)
        if config is not None and (wanted := get_checkpoint_id(config)) is not None:
            query = query.where(_checkpoints.c.id == wanted)
        if before is not None and (until := get_checkpoint_id(before)) is not None:
            query = query.where(_checkpoints.c.id < until)
        fits = [one for one in self._read(query) if _matches(one.metadata, filter)]
        yield from fits if limit is None else fits[: max(0, limit)]

    def delete_thread(self, thread_id: str) -> None:
        with self._engine.execution_options(write=True).begin() as connection:
            for table in (_checkpoints, _values, _writes):
                connection.execute(table.delete().where(table.c.thread == str(thread_id)))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

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

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    def _read(self, query: Select[Any]) -> tuple[CheckpointTuple, ...]:
        with self._engine.connect() as connection:
            return tuple(self._tuple(connection, row) for row in connection.execute(query).all())

    def _tuple(self, connection: Connection, row: Row[Any]) -> CheckpointTuple:
        digests: dict[str, str] = json.loads(row.channels)
        wanted = select(_values).where(_values.c.thread == row.thread, _values.c.digest.in_(set(digests.values())))
        stored = {each.digest: (each.kind, each.body) for each in connection.execute(wanted)}
        writes = select(_writes).where(
            _writes.c.thread == row.thread, _writes.c.ns == row.ns, _writes.c.checkpoint == row.id
        )
        ordered = sorted(connection.execute(writes), key=lambda w: writes_sort_key(w.task_path, w.task, w.idx))
        checkpoint = self.serde.loads_typed((row.kind, row.body))
        checkpoint["channel_values"] = {
            name: self.serde.loads_typed(stored[digest]) for name, digest in digests.items()
        }
        return CheckpointTuple(
            config=_config(row.thread, row.ns, row.id),
            checkpoint=checkpoint,
            metadata=self.serde.loads_typed((row.metadata_kind, row.metadata)),
            parent_config=_config(row.thread, row.ns, row.parent) if row.parent else None,
            pending_writes=[(w.task, w.channel, self.serde.loads_typed((w.kind, w.body))) for w in ordered],
        )


def _of(thread: str | None) -> Select[Any]:
    query = select(_checkpoints).order_by(_checkpoints.c.id.desc())  # LangGraph's ids grow with time
    return query if thread is None else query.where(_checkpoints.c.thread == thread)


def _config(thread: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def _digest(kind: str, body: bytes) -> str:
    return hashlib.sha256(kind.encode() + b"\0" + body).hexdigest()


def _matches(metadata: CheckpointMetadata, wanted: dict[str, Any] | None) -> bool:
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())
