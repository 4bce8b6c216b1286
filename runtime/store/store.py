"""RunStore: what the runtime remembers, on SQLite.

One `commit` is one transaction and one fsync: the rows of an operation, the checkpoint that it made, the model
calls that it used and the run's own row are there together or not at all. The database is in WAL mode, so readers
(`ramify ls` beside a run) never wait for the writer. Writers take the write lock when they begin, so that a
transaction never fails half way for having read something old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import CompoundSelect, Select, Table, bindparam, exists, select, union
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import RunNotFound, StoreError
from ramify.runtime.records import (
    LEGAL_TRANSITIONS,
    CheckpointId,
    CheckpointRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunStatus,
    RunUpdate,
)
from ramify.runtime.store import rows, tables, tallies
from ramify.runtime.store.connect import open_engine, probe, sync_folder, to_its_end
from ramify.runtime.store.failures import in_our_words
from ramify.runtime.store.migrate import check, migrate
from ramify.runtime.store.tallies import Tally

T = TypeVar("T")


BLOB_COLUMNS = tuple(table.c[f"{name}_blob"] for table, names in rows.BLOBS.items() for name in names)

DROP_UNUSED_BLOB = tables.blobs.delete().where(
    tables.blobs.c.digest == bindparam("name"),
    *(~exists().where(column == tables.blobs.c.digest) for column in BLOB_COLUMNS),
)


class RunStore:
    """The database file at `path`, made with its folders where it is missing. Use as an async context manager.

    `clock` gives Unix seconds; it stamps `updated_at` on each commit. Every method raises `StoreError` where the
    file cannot be used, saying what to do.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock
        self._writing = asyncio.Lock()
        self._engine: AsyncEngine | None = None

    async def __aenter__(self) -> Self:
        with in_our_words(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(probe, self.path)
        self._engine = open_engine(self.path)
        try:
            async with self._read() as connection:
                current = await connection.run_sync(check, self.path)
            if not current:
                async with self._write() as connection:
                    await connection.run_sync(migrate, self.path)
                sync_folder(self.path.parent)
        except BaseException:
            await self._engine.dispose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._writing:
            await self._opened().dispose()
            self._engine = None

    # Runs

    async def create_run(self, run: RunRecord, base: CheckpointRecord | None = None) -> None:
        """A new row and its base checkpoint; `StoreError` where a run of that id exists."""

        async def work(connection: AsyncConnection) -> None:
            await _put_blobs(connection, rows.texts(tables.runs, run))
            await _put(connection, tables.runs, [rows.run_row(run)])
            if base is not None:
                await _put(connection, tables.checkpoints, [rows.checkpoint_row(base)])

        await self._transact(work)

    async def run(self, run_id: RunId) -> RunRecord:
        found = await self._fetch(rows.query(tables.runs).where(tables.runs.c.id == run_id), rows.run_record)
        if not found:
            raise _no_run(run_id)
        return found[0]

    async def runs(self, limit: int | None = None) -> list[RunRecord]:
        """Newest first."""
        query = rows.query(tables.runs).order_by(tables.runs.c.n.desc()).limit(limit)
        return await self._fetch(query, rows.run_record)

    async def delete_run(self, run_id: RunId) -> None:
        """Forget a run with all its rows, and the long texts that no other row names."""

        async def work(connection: AsyncConnection) -> None:
            named = [{"name": name} for name in (await connection.execute(_blobs_of(run_id))).scalars() if name]
            gone = await connection.execute(tables.runs.delete().where(tables.runs.c.id == run_id))
            if gone.rowcount == 0:
                raise _no_run(run_id)
            await connection.execute(DROP_UNUSED_BLOB, named)

        await self._transact(work)

    # The journal

    async def commit(
        self,
        run_id: RunId,
        *,
        ops: Sequence[OpRecord] = (),
        llm: Sequence[LLMRecord] = (),
        checkpoints: Sequence[CheckpointRecord] = (),
        update: RunUpdate | None = None,
    ) -> None:
        """All of it in one transaction, or nothing. Durable when this returns.

        A cancelled caller waits for the transaction's end, so that what it knows is what the disk holds. A run that
        goes back to RUNNING loses its error. Raises `RunNotFound`; `StoreError` for an illegal change of status,
        for a row of another run, or a sequence number that is taken.
        """
        owners = {op.run_id for op in ops} | {call.run_id for call in llm} | {one.run_id for one in checkpoints}
        strangers = owners - {run_id}
        if strangers:
            raise StoreError(f"a commit of run {run_id} holds rows of {', '.join(sorted(strangers))}")

        async def work(connection: AsyncConnection) -> None:
            await self._update_run(connection, run_id, update or RunUpdate())
            long_texts = [text for op in ops for text in rows.texts(tables.ops, op)]
            long_texts += [text for call in llm for text in rows.texts(tables.llm, call)]
            await _put_blobs(connection, long_texts)
            await _put(connection, tables.ops, [rows.op_row(op) for op in ops])
            await _put(connection, tables.llm, [rows.llm_row(call) for call in llm])
            await _put(connection, tables.checkpoints, [rows.checkpoint_row(one) for one in checkpoints])

        await self._transact(work)

    async def ops(self, run_id: RunId) -> list[OpRecord]:
        return await self._of_run(tables.ops, run_id, rows.op_record)

    async def llm(self, run_id: RunId) -> list[LLMRecord]:
        return await self._of_run(tables.llm, run_id, rows.llm_record)

    async def checkpoints(self, run_id: RunId) -> list[CheckpointRecord]:
        return await self._of_run(tables.checkpoints, run_id, rows.checkpoint_record)

    async def checkpoint(self, checkpoint_id: CheckpointId) -> CheckpointRecord:
        query = rows.query(tables.checkpoints).where(tables.checkpoints.c.id == checkpoint_id)
        found = await self._fetch(query, rows.checkpoint_record)
        if not found:
            raise RunNotFound(f"no checkpoint {checkpoint_id}: `ramify tree RUN` lists a run's checkpoints")
        return found[0]

    async def reusable(self, lineage_key: str) -> OpRecord | None:
        """The newest row, over all runs, that did the work of that key."""
        ops = tables.ops.c
        query = rows.query(tables.ops).where(ops.lineage_key == lineage_key, ops.status == OpStatus.DONE)
        found = await self._fetch(query.order_by(ops.n.desc()).limit(1), rows.op_record)
        return found[0] if found else None

    async def live_snapshots(self) -> set[SnapshotId]:
        """Every snapshot that a row names."""
        columns = (
            tables.runs.c.base_snapshot,
            tables.ops.c.snapshot_in,
            tables.ops.c.snapshot_out,
            tables.checkpoints.c.snapshot_id,
        )
        async with self._read() as connection:
            found = (await connection.execute(union(*(select(column) for column in columns)))).scalars()
            return {SnapshotId(name) for name in found if name is not None}

    async def tallies(self, run_ids: Sequence[RunId]) -> dict[RunId, Tally]:
        """How much was done in each of these runs."""
        async with self._read() as connection:
            ops = (await connection.execute(tallies.ops_query(run_ids))).mappings().all()
            llm = (await connection.execute(tallies.llm_query(run_ids))).mappings().all()
        done = {row["run_id"]: {name: row[name] for name in row if name != "run_id"} for row in ops}
        calls = {row["run_id"]: row["calls"] for row in llm}
        return {run_id: Tally(**done.get(run_id, {}), llm_calls=calls.get(run_id, 0)) for run_id in run_ids}

    # Below: how it is done

    def _opened(self) -> AsyncEngine:
        if self._engine is None:
            raise StoreError(f"the database {self.path} is not open: use `async with RunStore(…)`")
        return self._engine

    @asynccontextmanager
    async def _read(self) -> AsyncIterator[AsyncConnection]:
        with in_our_words(self.path):
            async with self._opened().connect() as connection:
                yield connection

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[AsyncConnection]:
        async with self._writing:
            with in_our_words(self.path):
                async with self._opened().execution_options(write=True).begin() as connection:
                    yield connection

    async def _transact(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            async with self._write() as connection:
                await work(connection)

        await to_its_end(whole())

    async def _fetch(self, query: Select[Any], make: Callable[[rows.Row], T]) -> list[T]:
        async with self._read() as connection:
            found = (await connection.execute(query)).mappings().all()
        try:
            return [make(row) for row in found]
        except (ValueError, TypeError) as error:
            raise StoreError(f"{self.path} holds a row that this version cannot read: {error}") from error

    async def _of_run(self, table: Table, run_id: RunId, make: Callable[[rows.Row], T]) -> list[T]:
        query = rows.query(table).where(table.c.run_id == run_id).order_by(table.c.seq, table.c.n)
        return await self._fetch(query, make)

    async def _update_run(self, connection: AsyncConnection, run_id: RunId, change: RunUpdate) -> None:
        table = tables.runs
        found = (await connection.execute(select(table.c.status).where(table.c.id == run_id))).scalar_one_or_none()
        if found is None:
            raise _no_run(run_id)
        values: dict[str, object] = {"updated_at": self._clock() if change.updated_at is None else change.updated_at}
        if change.status is not None:
            before = RunStatus(found)
            if change.status not in LEGAL_TRANSITIONS[before]:
                raise StoreError(f"run {run_id} is {before}: it cannot become {change.status}")
            values["status"] = change.status
            if change.status is RunStatus.RUNNING:
                values["error"] = None
        if change.error is not None:
            values["error"] = change.error
        if change.consumed_s is not None:
            values["consumed_s"] = change.consumed_s
        if change.deadline_s is not None:
            values["deadline_s"] = change.deadline_s
        if change.result_json is not None:
            await _put_blobs(connection, [change.result_json])
            values["result_blob"] = rows.digest(change.result_json)
        await connection.execute(table.update().where(table.c.id == run_id).values(values))


async def _put(connection: AsyncConnection, table: Table, values: list[dict[str, Any]]) -> None:
    if values:
        await connection.execute(table.insert(), values)


async def _put_blobs(connection: AsyncConnection, texts: Iterable[str]) -> None:
    values = [{"digest": rows.digest(text), "text": text} for text in texts]
    if values:
        await connection.execute(insert(tables.blobs).on_conflict_do_nothing(), values)


def _blobs_of(run_id: RunId) -> CompoundSelect[Any]:
    """The names of all blobs that rows of this run name."""
    owner = {tables.runs: tables.runs.c.id, tables.ops: tables.ops.c.run_id, tables.llm: tables.llm.c.run_id}
    return union(*(select(column).where(owner[column.table] == run_id) for column in BLOB_COLUMNS))


def _no_run(run_id: RunId) -> RunNotFound:
    return RunNotFound(f"no run {run_id}: `ramify ls` lists the runs")
