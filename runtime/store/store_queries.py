"""The queries of RunStore: everything that is read, on an async engine."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, String, Table, bindparam, func, select, text, union
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import RunNotFound, StoreError
from ramify.runtime.records import (
    DOUBTFUL,
    AnswerRecord,
    CheckpointId,
    CheckpointRecord,
    EffectRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunRows,
    RunStatus,
    Settings,
)
from ramify.runtime.store import blobs, plain_queries, rows, statements, tables
from ramify.runtime.store.address import Address
from ramify.runtime.store.database_errors import Retries, as_store_errors
from ramify.runtime.store.engines import finish_despite_cancel
from ramify.runtime.store.plain_queries import Tally
from ramify.runtime.store.stored_texts import TextMissing

T = TypeVar("T")

_IDS = bindparam("ids", type_=String(), expanding=True)


class StoreQueries:
    """Reads the records at `address`. RunStore opens and closes the engine.

    patience_s: for how many seconds a lost connection to a server is retried.
    """

    def __init__(self, address: Address, patience_s: float) -> None:
        self.address = address
        self._patience_s = patience_s
        self._reader: AsyncEngine | None = None

    def _refuse_when_closed(self) -> None:
        raise NotImplementedError

    async def run(self, run_id: RunId) -> RunRecord:
        found = await self._records(plain_queries.RUN, (tables.stored(run_id),), rows.run_record)
        if not found:
            raise statements.no_run(run_id)
        return found[0]

    async def runs(self, limit: int | None = None) -> list[RunRecord]:
        """Newest first."""
        query = tables.query(tables.runs).order_by(tables.runs.c.n.desc()).limit(limit)
        return await self._fetch(query, rows.run_record)

    async def latest_runs(
        self, workflow: str, *, among: int, most: int, status: RunStatus | None = None
    ) -> list[RunRecord]:
        """Return the newest runs of a workflow, at most `most`, found among the `among` newest of all. Of long
        arguments and results they have only the beginning (`cut_texts`).

        status: only runs that have it.
        """
        n = tables.runs.c.n
        query = tables.query(tables.runs).where(n > select(func.max(n)).scalar_subquery() - among)
        query = query.where(tables.runs.c.workflow == workflow)
        if status is not None:
            query = query.where(tables.runs.c.status == status)
        return await self._fetch(query.order_by(n.desc()).limit(most), rows.run_record, cuts=True)

    async def ops(self, run_id: RunId, *, after: int = 0) -> list[OpRecord]:
        """Return a run's journal, or only the rows after number `after`."""
        return await self._of_run(tables.ops, run_id, rows.op_record, after)

    async def llm(self, run_id: RunId, *, after: int = 0) -> list[LLMRecord]:
        return await self._of_run(tables.llm, run_id, rows.llm_record, after)

    async def journal(self, run_id: RunId, *, cuts: bool = False) -> tuple[list[OpRecord], list[LLMRecord]]:
        """Return a run's journal and its model calls, as `ops` and `llm` do, over one connection. cuts: of long
        results of operations, only the beginning (`cut_texts`)."""
        values = plain_queries.since(run_id, 0)

        async def ask(connection: AsyncConnection) -> tuple[list[rows.Row], list[rows.Row]]:
            ops = await connection.run_sync(_plain, plain_queries.of_run("ops"), values, cuts)
            return ops, await connection.run_sync(_plain, plain_queries.of_run("llm"), values)

        with self._readable():
            ops, llm = await self._read(ask)
            return [rows.op_record(row) for row in ops], [rows.llm_record(row) for row in llm]

    async def rows_of(self, run_id: RunId) -> RunRows:
        """Return all rows of a run, over one connection. Raises `RunNotFound`."""
        numbered, named = plain_queries.since(run_id, 0), (run_id,)

        def ask(connection: Connection) -> list[list[rows.Row]]:
            found = [_plain(connection, plain_queries.RUN, named)]
            found += [
                _plain(connection, plain_queries.of_run(one), numbered) for one in ("ops", "llm", "checkpoints")
            ]
            found += [_plain(connection, plain_queries.ledger(one), named) for one in ("effects", "attempts")]
            return [*found, _plain(connection, plain_queries.ANSWERS_OF_RUN, named)]

        with self._readable():
            run, ops, llm, checkpoints, last, earlier, answers = await self._read(lambda one: one.run_sync(ask))
            if not run:
                raise statements.no_run(run_id)
            effects = tuple(map(rows.effect_record, last))
            newest = {one.key: one.attempt for one in effects}
            attempts = map(rows.effect_record, earlier)
            return RunRows(
                rows.run_record(run[0]),
                tuple(map(rows.op_record, ops)),
                tuple(map(rows.llm_record, llm)),
                tuple(map(rows.checkpoint_record, checkpoints)),
                effects,
                tuple(one for one in attempts if one.attempt < newest[one.key]),
                tuple(map(rows.answer_record, answers)),
            )

    async def effects(self, run_id: RunId, *, earlier: bool = False) -> list[EffectRecord]:
        """Return the ledger of a run in the order of the first intents: the last attempt of each effect. `earlier`:
        include the earlier attempts."""
        last = await self._ledger(tables.effects, run_id)
        return rows.with_attempts(last, await self._ledger(tables.attempts, run_id)) if earlier else last

    async def _ledger(self, table: Table, run_id: RunId) -> list[EffectRecord]:
        return await self._records(plain_queries.ledger(table.name), (run_id,), rows.effect_record)

    async def answers(self, run_id: RunId | None = None) -> list[AnswerRecord]:
        """Return the answers to the questions of a run, or of all runs, in the order in which they were given."""
        if run_id is None:
            return await self._records(plain_queries.ANSWERS, (), rows.answer_record)
        return await self._records(plain_queries.ANSWERS_OF_RUN, (run_id,), rows.answer_record)

    async def interrupts(self, run_id: RunId | None = None) -> list[OpRecord]:
        """Return the question and answer rows of a run's journal, or of all runs that are not done."""
        return await self._fetch(statements.interrupts(run_id), rows.op_record)

    async def doubts(self) -> list[EffectRecord]:
        """Return the effects of all runs that were begun and did not end. If the run is being worked on, its effect
        may still end."""
        table = tables.effects
        query = tables.query(table).where(table.c.status.in_(sorted(DOUBTFUL))).order_by(table.c.n)
        return await self._fetch(query, rows.effect_record)

    async def checkpoints(self, run_id: RunId, *, after: int = 0) -> list[CheckpointRecord]:
        return await self._of_run(tables.checkpoints, run_id, rows.checkpoint_record, after)

    async def checkpoint(self, checkpoint_id: CheckpointId) -> CheckpointRecord:
        query = tables.query(tables.checkpoints).where(tables.checkpoints.c.id == checkpoint_id)
        found = await self._fetch(query, rows.checkpoint_record)
        if not found:
            raise RunNotFound(f"no checkpoint {checkpoint_id}: `ramify tree RUN` lists a run's checkpoints")
        return found[0]

    async def reusable(self, lineage_key: str) -> OpRecord | None:
        """Return the newest DONE row of any run with that lineage key, or None."""
        ops = tables.ops.c
        query = tables.query(tables.ops).where(ops.lineage_key == lineage_key, ops.status == OpStatus.DONE)
        found = await self._fetch(query.order_by(ops.n.desc()).limit(1), rows.op_record)
        return found[0] if found else None

    async def equal_calls(self, request_json: str) -> list[tuple[LLMRecord, RunId, Settings]]:
        """Return the model calls of all runs with exactly this request, newest first, with run ids and settings."""
        llm, runs = tables.llm, tables.runs
        query = tables.query(llm).add_columns(runs.c.settings_json.label("settings_of"))
        query = query.join(runs, runs.c.id == llm.c.run_id).where(llm.c.request_blob == rows.digest(request_json))
        return await self._fetch(query.order_by(llm.c.n.desc()).limit(20), rows.llm_record_and_settings)

    async def live_snapshots(self) -> set[SnapshotId]:
        """Return every snapshot that a column of a row names (the state before a merge, `attrs["ours"]`, is not
        among them)."""
        columns = (
            tables.runs.c.base_snapshot,
            tables.ops.c.snapshot_in,
            tables.ops.c.snapshot_out,
            tables.checkpoints.c.snapshot_id,
        )
        found = await self._read(_scalars(union(*(select(column) for column in columns))))
        return {SnapshotId(name) for name in found if name is not None}

    async def tallies(self, run_ids: Sequence[RunId]) -> dict[RunId, Tally]:
        """Return the counts of each of these runs."""
        ops, llm = (text(q(":ids")).bindparams(_IDS) for q in (plain_queries.ops_query, plain_queries.llm_query))
        ids = list(run_ids)
        return plain_queries.counted(
            run_ids, await self._read(_mappings(ops, ids=ids)), await self._read(_mappings(llm, ids=ids))
        )

    async def _read(self, ask: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run a query; retry for up to `patience_s` if the connection to a server is lost, and a few times if a run
        was deleted meanwhile."""
        self._refuse_when_closed()
        retries, left = Retries(self._patience_s), plain_queries.ATTEMPTS
        with as_store_errors(self.address):
            while True:
                assert self._reader is not None
                try:
                    return await _whole(self._reader, ask)
                except TextMissing:
                    pause_s, left = 0.0, left - 1
                    if not left:
                        raise
                except DBAPIError as error:
                    pause_s = retries.pause_after(error)
                await asyncio.sleep(pause_s)

    async def _fetch(self, query: Select[Any], make: Callable[[rows.Row], T], *, cuts: bool = False) -> list[T]:
        with self._readable():
            return [make(row) for row in await self._read(_with_texts(query, cuts))]

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn errors in the rows that a query found into `StoreError`."""
        try:
            yield
        except (ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
            raise StoreError(f"{self.address} holds a row that this version cannot read: {error}") from error

    async def _of_run(self, table: Table, run_id: RunId, make: Callable[[rows.Row], T], after: int = 0) -> list[T]:
        return await self._records(plain_queries.of_run(table.name), plain_queries.since(run_id, after), make)

    async def _records(self, query: str, values: Sequence[object], make: Callable[[rows.Row], T]) -> list[T]:
        async def ask(connection: AsyncConnection) -> list[rows.Row]:
            return await connection.run_sync(_plain, query, values)

        with self._readable():
            return [make(row) for row in await self._read(ask)]


async def _whole(reader: AsyncEngine, ask: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    """Return the result of `ask`. A driver that is cancelled while it connects leaks the connection, so a cancelled
    caller waits until the query ends and the connection is back in the pool."""

    async def asked() -> T:
        async with reader.connect() as connection:
            return await ask(connection)

    asking = asyncio.ensure_future(asked())
    await finish_despite_cancel(asking)
    return asking.result()


def _mappings(query: Any, **values: object) -> Callable[[AsyncConnection], Awaitable[list[rows.Row]]]:
    async def ask(connection: AsyncConnection) -> list[rows.Row]:
        return [dict(row) for row in (await connection.execute(query, values)).mappings()]

    return ask


def _plain(connection: Connection, query: str, values: Sequence[object], cuts: bool = False) -> list[rows.Row]:
    """Return the rows of a plain query, with their texts."""
    found = blobs.plain(connection, query, values)
    for row in found:
        del row["n"]
    return _completed(connection, found, cuts)


def _completed(connection: Connection, found: list[dict[str, Any]], cuts: bool) -> list[rows.Row]:
    names = rows.names_in(found)
    try:
        cut = blobs.cut(connection, rows.values_in(found)) if cuts else {}
        texts = {**blobs.load(connection, names - cut.keys()), **cut}
    except KeyError as error:
        raise TextMissing(*error.args) from error
    return rows.with_texts(found, texts)


def _with_texts(query: Select[Any], cuts: bool) -> Callable[[AsyncConnection], Awaitable[list[rows.Row]]]:
    async def ask(connection: AsyncConnection) -> list[rows.Row]:
        result = await connection.execute(query)
        names = tuple(result.keys())  # faster than its mappings, which matters for the journal of a long run
        found = [dict(zip(names, row, strict=True)) for row in result.all()]
        return await connection.run_sync(_completed, found, cuts)

    return ask


def _scalars(query: Any) -> Callable[[AsyncConnection], Awaitable[Sequence[str | None]]]:
    async def ask(connection: AsyncConnection) -> Sequence[str | None]:
        return (await connection.execute(query)).scalars().all()

    return ask
