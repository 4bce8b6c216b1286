"""Copy threads from one checkpointer to another, with all that LangGraph needs to go on: checkpoints, their parents,
metadata, and the writes of tasks that have finished or interrupted.

Any two checkpointers will do: only LangGraph's own interface is used. A copy that was killed is finished by the same
call, since what is there already is written again unchanged.

`saver_threads` and `langgraph_threads` open the databases of `ramify.Saver` and of LangGraph's own savers by their
address. The async savers of LangGraph have the tables of the others.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple
from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from ramify.runtime.langgraph.checkpointer.checkpoint_reader import config_of
from ramify.runtime.langgraph.checkpointer.database import open_read_only_engine
from ramify.runtime.langgraph.checkpointer.saver import Saver, Version, counter_of, text_version
from ramify.runtime.langgraph.checkpointer.serializers import PortableSerializer
from ramify.runtime.langgraph.checkpointer.tables import checkpoints, threads, writes
from ramify.runtime.langgraph.errors import ThreadNotCopied
from ramify.runtime.store.address import Address, parse
from ramify.runtime.store.database_errors import as_store_errors
from ramify.runtime.store.engines import use_write_ahead_log
from ramify.runtime.store.files_beside import refuse_planted

_CHECKPOINT_KEYS = {"id", "channel_values", "channel_versions", "versions_seen"}


class CheckpointId(NamedTuple):
    ns: str
    id: str


class TaskId(NamedTuple):
    ns: str
    checkpoint: str
    task: str


class Threads(Protocol):
    """A checkpointer, and what LangGraph's interface tells only at great cost, or not at all."""

    @property
    def saver(self) -> BaseCheckpointSaver[Any]: ...
    def names(self) -> list[str]: ...
    def checkpoints(self, thread: str) -> list[CheckpointId]:
        """Return a thread's checkpoints, oldest first."""

    def task_paths(self, thread: str) -> Mapping[TaskId, str]:
        """Return where in the graph each task stands, which orders the writes of a superstep. Empty: unknown."""


@dataclass(frozen=True)
class ListedThreads:
    """The threads of any checkpointer, from its lists. It reads them whole."""

    saver: BaseCheckpointSaver[Any]

    def names(self) -> list[str]:
        return sorted({str(one.config["configurable"]["thread_id"]) for one in self.saver.list(None)})

    def checkpoints(self, thread: str) -> list[CheckpointId]:
        found = (one.config["configurable"] for one in self.saver.list({"configurable": {"thread_id": thread}}))
        return sorted((CheckpointId(one["checkpoint_ns"], one["checkpoint_id"]) for one in found), key=lambda c: c.id)

    def task_paths(self, thread: str) -> Mapping[TaskId, str]:
        return {}


@dataclass(frozen=True)
class CopiedThread:
    """A thread that was copied: how many checkpoints, of which `new` were not in the target before."""

    thread: str
    checkpoints: int
    new: int


def copy_threads(
    source: BaseCheckpointSaver[Any], target: BaseCheckpointSaver[Any], threads: Iterable[str] | None = None
) -> list[CopiedThread]:
    """Copy these threads, or all, from one checkpointer to another, such as LangGraph's savers and `ramify.Saver`.

    Both are used through their methods that are not async. No program may run the threads meanwhile. A copy that was
    cut off is finished by the same call. The target's threads are never overwritten.

    Raises `ThreadNotCopied`, before anything is written, if the source has no such thread, or the target's thread of
    that name has checkpoints that the source does not have.
    """
    return copy_all(ListedThreads(source), ListedThreads(target), threads)


def copy_all(source: Threads, target: Threads, names: Iterable[str] | None = None) -> list[CopiedThread]:
    """As `copy_threads`."""
    there = source.names()
    wanted = there if names is None else list(dict.fromkeys(names))
    if missing := sorted(set(wanted) - set(there)):
        raise ThreadNotCopied.unknown(missing)
    known = set(target.names())
    before = {name: set(target.checkpoints(name)) if name in known else set() for name in wanted}
    if grown := [name for name in wanted if before[name] - set(source.checkpoints(name))]:
        raise ThreadNotCopied.elsewhere(grown)
    return [_copy(source, target, name, before[name]) for name in wanted]


def _copy(source: Threads, target: Threads, thread: str, before: set[CheckpointId]) -> CopiedThread:
    checkpoints, paths = source.checkpoints(thread), source.task_paths(thread)
    versions = _Versions(target.saver)
    for place in checkpoints:
        saved = _read(source.saver, thread, place)
        _put(target.saver, thread, place, saved, versions)
        _put_writes(target.saver, thread, place, saved, paths)
    return CopiedThread(thread, len(checkpoints), len(set(checkpoints) - before))


def _read(saver: BaseCheckpointSaver[Any], thread: str, place: CheckpointId) -> CheckpointTuple:
    try:
        saved = saver.get_tuple(config_of(thread, *place))
        if saved is None:
            raise ThreadNotCopied.changed(thread)
        if missing := _CHECKPOINT_KEYS - set(saved.checkpoint):
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
    except (ValueError, TypeError, LookupError) as error:  # what serialisers raise for bytes that are not theirs
        raise ThreadNotCopied.damaged(thread, place.id, error) from error
    return saved


def _put(
    saver: BaseCheckpointSaver[Any], thread: str, place: CheckpointId, saved: CheckpointTuple, versions: _Versions
) -> None:
    parent = None if saved.parent_config is None else saved.parent_config["configurable"]["checkpoint_id"]
    above: RunnableConfig = {
        "configurable": {"thread_id": thread, "checkpoint_ns": place.ns, "checkpoint_id": parent}
    }
    checkpoint = versions.adapted(saved.checkpoint)
    saver.put(above, checkpoint, saved.metadata, checkpoint["channel_versions"])


def _put_writes(
    saver: BaseCheckpointSaver[Any],
    thread: str,
    place: CheckpointId,
    saved: CheckpointTuple,
    paths: Mapping[TaskId, str],
) -> None:
    by_task: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for task, channel, value in saved.pending_writes or ():
        by_task[task].append((channel, value))
    for rank, (task, written) in enumerate(by_task.items()):
        path = paths.get(TaskId(*place, task), f"{rank:08}")  # without paths, the order in which they were read
        saver.put_writes(config_of(thread, *place), written, task, path)


class _Versions:
    """Channel versions in the form that a checkpointer goes on with."""

    def __init__(self, target: BaseCheckpointSaver[Any]) -> None:
        self._target = target

    def adapted(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with versions that the target can compare with its next one.

        A number becomes the same count as text. Two branches of a thread may have given one number to different
        values, which savers that store values by their version would mix up: so its fraction is the value's digest.
        Raises `ThreadNotCopied` if the target counts in numbers, and the versions are text.
        """
        versions = checkpoint["channel_versions"]
        newest = max(versions.values(), default=None)
        if newest is None or self._goes_on(newest):
            return checkpoint
        if isinstance(newest, str):
            raise ThreadNotCopied.numbered()
        values = checkpoint["channel_values"]
        named: dict[str, Version] = {
            channel: _as_text(version, self._fraction(values, channel)) for channel, version in versions.items()
        }
        seen: dict[str, dict[str, Version]] = {
            node: {
                channel: named[channel] if versions.get(channel) == version else _as_text(version, 0.0)
                for channel, version in channels.items()
            }
            for node, channels in checkpoint["versions_seen"].items()
        }
        return {**checkpoint, "channel_versions": named, "versions_seen": seen}

    def _goes_on(self, version: Version) -> bool:
        """Tell whether the target's next version is of the same type."""
        try:
            return isinstance(self._target.get_next_version(version, None), str) == isinstance(version, str)
        except NotImplementedError:  # LangGraph's base class, for text
            return False

    def _fraction(self, values: Mapping[str, Any], channel: str) -> float:
        if channel not in values:
            return 0.0
        kind, data = self._target.serde.dumps_typed(values[channel])
        digest = hashlib.sha256(kind.encode() + data).digest()
        return (int.from_bytes(digest[:6]) + 1) / 2**49  # never 0, which is no value


def _as_text(version: Version, fraction: float) -> str:
    return version if isinstance(version, str) else text_version(counter_of(version), fraction)


_CHECKPOINTS = {"thread_id", "checkpoint_ns", "checkpoint_id"}
"""Columns of LangGraph's table `checkpoints`. Its shallow savers, which keep no history, have no `checkpoint_id`."""


@dataclass(frozen=True)
class SaverThreads:
    """The threads of a `ramify.Saver`."""

    saver: Saver
    engine: Engine

    def names(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(threads.c.name).order_by(threads.c.name)).scalars())

    def checkpoints(self, thread: str) -> list[CheckpointId]:
        query = select(checkpoints.c.ns, checkpoints.c.id).join(threads, threads.c.id == checkpoints.c.thread)
        with self.engine.connect() as connection:
            rows = connection.execute(query.where(threads.c.name == thread)).all()
        return sorted((CheckpointId(*row) for row in rows), key=lambda place: place.id)

    def task_paths(self, thread: str) -> Mapping[TaskId, str]:
        query = select(writes.c.ns, writes.c.checkpoint, writes.c.task, writes.c.path)
        query = query.join(threads, threads.c.id == writes.c.thread).where(threads.c.name == thread)
        with self.engine.connect() as connection:
            return {TaskId(*task): path for *task, path in connection.execute(query)}


@dataclass(frozen=True)
class LangGraphThreads:
    """The threads of a saver of LangGraph's. `rows` runs a query with `?` for each value."""

    saver: BaseCheckpointSaver[Any]
    rows: Callable[[str, Sequence[str]], list[tuple[str, ...]]]
    writes: str  # the table
    has_paths: bool

    def names(self) -> list[str]:
        return [name for (name,) in self.rows("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id", ())]

    def checkpoints(self, thread: str) -> list[CheckpointId]:
        query = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_id"
        return [CheckpointId(*row) for row in self.rows(query, (thread,))]

    def task_paths(self, thread: str) -> Mapping[TaskId, str]:
        if not self.has_paths:  # the saver reads the writes in the order of the tasks' ids, and so will the target
            return {}
        query = (
            f"SELECT DISTINCT checkpoint_ns, checkpoint_id, task_id, task_path FROM {self.writes} WHERE thread_id = ?"
        )
        return {TaskId(*task): path for *task, path in self.rows(query, (thread,))}


@contextmanager
def saver_threads(address: str | Path, *, keep_exact: bool, create: bool = False) -> Iterator[SaverThreads]:
    """Open the database of a `ramify.Saver`. `create`: make what is missing; otherwise raises `ThreadNotCopied`.

    Raises `StoreError` if the database cannot be used."""
    where = parse(address)
    if not create and where.file is not None and not where.file.exists():
        raise ThreadNotCopied.no_file(str(where))
    with _store_errors(where), Saver(address, serde=PortableSerializer(keep_exact=keep_exact)) as saver:
        engine = open_read_only_engine(address)
        try:
            yield SaverThreads(saver, engine)
        finally:
            engine.dispose()


@contextmanager
def _store_errors(where: Address) -> Iterator[None]:
    """Raise SQLAlchemy's errors as `StoreError`. Only our own savers use it; other errors are not of our database."""
    try:
        yield
    except SQLAlchemyError:
        with as_store_errors(where):
            raise


@contextmanager
def langgraph_threads(address: str | Path, *, create: bool = False) -> Iterator[LangGraphThreads]:
    """Open the database of a `SqliteSaver` or a `PostgresSaver`. `create`: make its tables if they are missing;
    otherwise the database is only read, and `ThreadNotCopied` says that they are missing."""
    where = parse(address)
    opened = _sqlite(where.file, create) if where.file is not None else _postgres(where, create)
    with opened as found:
        yield found


@contextmanager
def _sqlite(file: Path, create: bool) -> Iterator[LangGraphThreads]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ModuleNotFoundError as error:
        raise ThreadNotCopied.not_installed("langgraph-checkpoint-sqlite") from error
    if not create and not file.exists():
        raise ThreadNotCopied.no_file(str(file))
    if file.is_dir():
        raise ThreadNotCopied.database(str(file), "it is a folder")
    refuse_planted(file)  # the database may come from somebody else
    mode = "rwc" if create else "ro"
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", uri=True, check_same_thread=False)
        with closing(connection):
            saver = SqliteSaver(connection, serde=PortableSerializer(keep_exact=False))
            if create:
                use_write_ahead_log(connection.cursor())  # `setup` would not wait for another process that does it
                saver.setup()

            def rows(query: str, values: Sequence[str]) -> list[tuple[str, ...]]:
                return connection.execute(query, values).fetchall()

            def columns(table: str) -> set[str]:
                return {name for (name,) in rows("SELECT name FROM pragma_table_info(?)", (table,))}

            _require_tables(columns("checkpoints"), str(file))
            yield LangGraphThreads(saver, rows, "writes", "task_path" in columns("writes"))
    except sqlite3.Error as error:
        raise ThreadNotCopied.database(str(file), str(error)) from error


@contextmanager
def _postgres(where: Address, create: bool) -> Iterator[LangGraphThreads]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError as error:
        raise ThreadNotCopied.not_installed("langgraph-checkpoint-postgres") from error
    address = where.url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with (
            psycopg.connect(address, autocommit=True) as connection,
            PostgresSaver.from_conn_string(address) as saver,
        ):
            saver.serde = PortableSerializer(keep_exact=False)
            if create:
                saver.setup()

            def rows(query: str, values: Sequence[str]) -> list[tuple[str, ...]]:
                return connection.execute(query.replace("?", "%s").encode(), values).fetchall()

            def columns(table: str) -> set[str]:
                found = rows(
                    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0", (table,)
                )
                return {name for (name,) in found}

            _require_tables(columns("checkpoints"), str(where))
            if "task_path" not in columns("checkpoint_writes"):  # LangGraph's queries need it
                raise ThreadNotCopied.outdated(str(where))
            yield LangGraphThreads(saver, rows, "checkpoint_writes", has_paths=True)
    except psycopg.Error as error:
        raise ThreadNotCopied.database(str(where), str(error)) from error


def _require_tables(columns: set[str], where: str) -> None:
    if not columns:
        raise ThreadNotCopied.nothing_there(where)
    if missing := _CHECKPOINTS - columns:
        raise ThreadNotCopied.database(where, f"its table `checkpoints` has no {', '.join(sorted(missing))}")
