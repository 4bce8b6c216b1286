"""Reader: the read methods of RunStore, for short commands that only read.

It uses the database driver directly. Importing SQLAlchemy takes several times as long as such a command, and
importing asyncio as long as its queries, so this module loads neither. Rows have the columns that the database
reports, so the tables are not declared again. The methods are coroutines like RunStore's, but they never wait:
`at_once` runs one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import RunNotFound, StoreError
from ramify.runtime.records import (
    DOUBTFUL,
    AnswerRecord,
    CheckpointRecord,
    EffectRecord,
    Lease,
    LLMRecord,
    OpRecord,
    RunId,
    RunRecord,
    RunStatus,
)
from ramify.runtime.store import address as addresses
from ramify.runtime.store import plain_queries, readonly_sqlite, rows
from ramify.runtime.store.address import REVISIONS, SCHEMA, VERSION_TABLE, Address
from ramify.runtime.store.cut_texts import cut_texts
from ramify.runtime.store.database_errors import BUSY_TIMEOUT_S, as_store_errors
from ramify.runtime.store.plain_queries import SERVER_NOW, Tally, leases_query
from ramify.runtime.store.stored_texts import Digest, Packed, unpack

T = TypeVar("T")

_AT_ONCE = 500  # names in one query
_NAMES_SNAPSHOTS = (
    ("runs", "base_snapshot"),
    ("ops", "snapshot_in"),
    ("ops", "snapshot_out"),
    ("checkpoints", "snapshot_id"),
)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits only `Reader` methods, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("the coroutine awaited something other than a Reader")


class OfRun(Protocol):
    """A row of a run."""

    @property
    def run_id(self) -> RunId: ...


Row = TypeVar("Row", bound=OfRun)


def _by_run(found: Iterable[Row]) -> dict[RunId, list[Row]]:
    of = dict[RunId, list[Row]]()
    for row in found:
        of.setdefault(row.run_id, []).append(row)
    return of


class Reader:
    """Reads a database, which must exist and be at the present version, over one connection. cuts: of long arguments
    and results only the beginning is read (`cut_texts`)."""

    def __init__(self, connection: Any, address: Address, *, cuts: bool = False) -> None:
        self.connection, self._cuts = connection, cuts
        self._mark = "?" if address.file is not None else "%s"
        self.address = address

    async def run(self, run_id: RunId) -> RunRecord:
        found = self._records(plain_queries.RUN, (run_id,), rows.run_record)
        if not found:
            raise RunNotFound(f"no run {run_id}: `ramify ls` lists the runs")
        return found[0]

    async def runs(self, limit: int | None = None) -> list[RunRecord]:
        """Newest first."""
        most = "" if limit is None else f" LIMIT {int(limit)}"
        return self._records(f"SELECT * FROM runs ORDER BY n DESC{most}", (), rows.run_record)

    async def latest_runs(
        self, workflow: str, *, among: int, most: int, status: RunStatus | None = None
    ) -> list[RunRecord]:
        """As `RunStore.latest_runs`."""
        query = "SELECT * FROM runs WHERE n > (SELECT max(n) FROM runs) - ? AND workflow = ?"
        values: tuple[object, ...] = (among, workflow)
        if status is not None:
            query, values = f"{query} AND status = ?", (*values, status.value)
        return self._records(f"{query} ORDER BY n DESC LIMIT {most:d}", values, rows.run_record, cuts=True)

    async def journal(self, run_id: RunId, *, cuts: bool = False) -> tuple[list[OpRecord], list[LLMRecord]]:
        """As `RunStore.journal`."""
        ops = self._records(plain_queries.of_run("ops"), plain_queries.since(run_id, 0), rows.op_record, cuts=cuts)
        return ops, await self.llm(run_id)

    async def without_texts(
        self,
    ) -> list[tuple[RunRecord, list[OpRecord], list[CheckpointRecord], list[EffectRecord]]]:
        """Return all runs with their rows, newest first. Their arguments and results are not read."""
        runs = self._records("SELECT * FROM runs ORDER BY n DESC", (), rows.run_record, cuts=True)
        ops = _by_run(self._records("SELECT * FROM ops ORDER BY seq, n", (), rows.op_record, texts=False))
        made = self._records("SELECT * FROM checkpoints ORDER BY seq, n", (), rows.checkpoint_record)
        effects = self._records("SELECT * FROM effects ORDER BY n", (), rows.effect_record, texts=False)
        checkpoints, ledger = _by_run(made), _by_run(effects)
        return [(run, ops.get(run.id, []), checkpoints.get(run.id, []), ledger.get(run.id, [])) for run in runs]

    async def ops(self, run_id: RunId, *, after: int = 0) -> list[OpRecord]:
        return self._of_run("ops", run_id, rows.op_record, after)

    async def llm(self, run_id: RunId, *, after: int = 0) -> list[LLMRecord]:
        return self._of_run("llm", run_id, rows.llm_record, after)

    async def checkpoints(self, run_id: RunId, *, after: int = 0) -> list[CheckpointRecord]:
        return self._of_run("checkpoints", run_id, rows.checkpoint_record, after)

    async def checkpoint_names(self, prefix: str, limit: int) -> list[tuple[str, str]]:
        """Return the ids of checkpoints that begin with `prefix`, of all runs, and their labels."""
        query = f"SELECT id, label FROM checkpoints WHERE id >= ? AND id < ? ORDER BY id LIMIT {int(limit)}"
        return [(row["id"], row["label"]) for row in self._rows(query, (prefix, prefix + "~"))]

    async def effects(self, run_id: RunId, *, earlier: bool = False) -> list[EffectRecord]:
        last = self._ledger("effects", run_id)
        return rows.with_attempts(last, self._ledger("attempts", run_id)) if earlier else last

    async def answers(self, run_id: RunId | None = None) -> list[AnswerRecord]:
        """Like `RunStore.answers`."""
        if run_id is None:
            return self._records(plain_queries.ANSWERS, (), rows.answer_record)
        return self._records(plain_queries.ANSWERS_OF_RUN, (run_id,), rows.answer_record)

    async def interrupts(self, run_id: RunId | None = None) -> list[OpRecord]:
        """Like `RunStore.interrupts`."""
        mine, values = (
            ("= ?", (run_id,)) if run_id is not None else ("IN (SELECT id FROM runs WHERE status <> 'done')", ())
        )
        query = f"SELECT * FROM ops WHERE kind = 'INTERRUPT' AND run_id {mine} ORDER BY n"
        return self._records(query, values, rows.op_record)

    async def doubts(self) -> list[EffectRecord]:
        """Like `RunStore.doubts`."""
        statuses = sorted(status.value for status in DOUBTFUL)
        query = f"SELECT * FROM effects WHERE status IN ({', '.join('?' * len(statuses))}) ORDER BY n"
        return self._records(query, statuses, rows.effect_record)

    async def leases(self, run_ids: Sequence[RunId], now: float) -> dict[RunId, Lease]:
        """Return who works on each of these runs, or did last. `now`: Unix seconds; a server uses its own clock."""
        if not run_ids:
            return {}
        at = SERVER_NOW if self.address.file is None else repr(float(now))
        query = leases_query(at, ", ".join("?" * len(run_ids)))
        return {lease.run: lease for lease in map(Lease.of_row, self._rows(query, tuple(run_ids)))}

    def _ledger(self, table: str, run_id: RunId) -> list[EffectRecord]:
        return self._records(plain_queries.ledger(table), (run_id,), rows.effect_record)

    async def live_snapshots(self, runs: Collection[RunId] | None = None) -> set[SnapshotId]:
        """Return the snapshots that columns of rows name, of all runs or of these.

        A row of a merge also names a snapshot in its attributes (`ours`), which is not among them: `named_snapshots`
        of `journal/run_transfer.py` returns all that the rows of one run name.
        """
        if runs is None:
            query = " UNION ".join(f"SELECT {column} AS name FROM {table}" for table, column in _NAMES_SNAPSHOTS)
            return {SnapshotId(row["name"]) for row in self._rows(query) if row["name"] is not None}
        found = set[SnapshotId]()
        for run in runs:
            for table, column in _NAMES_SNAPSHOTS:
                query = f"SELECT {column} AS name FROM {table} WHERE {'id' if table == 'runs' else 'run_id'} = ?"
                found.update(row["name"] for row in self._rows(query, (run,)) if row["name"] is not None)
        return found

    async def tallies(self, run_ids: Sequence[RunId]) -> dict[RunId, Tally]:
        """Return the counts of each of these runs."""
        if not run_ids:
            return {}
        those = f"({', '.join('?' * len(run_ids))})"
        ops, llm = (self._rows(q(those), tuple(run_ids)) for q in (plain_queries.ops_query, plain_queries.llm_query))
        return plain_queries.counted(run_ids, ops, llm)

    def _of_run(self, table: str, run_id: RunId, make: Callable[[rows.Row], T], after: int) -> list[T]:
        return self._records(plain_queries.of_run(table), plain_queries.since(run_id, after), make)

    def _records(
        self,
        query: str,
        values: Sequence[object],
        make: Callable[[rows.Row], T],
        *,
        cuts: bool = False,
        texts: bool = True,
    ) -> list[T]:
        """`cuts`: of long arguments and results only the beginning is read. `texts`: False puts JSON's null in place
        of each text."""
        left = plain_queries.ATTEMPTS
        try:
            while True:
                found = self._rows(query, values)
                left -= 1
                try:
                    known = self._texts_of(found, cuts=cuts or self._cuts) if texts else _nulls_for(found)
                except KeyError:
                    if left:
                        continue
                    raise
                return [make(row) for row in rows.with_texts(found, known)]
        except (ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
            raise StoreError(f"{self.address} holds a row that this version cannot read: {error}") from error

    def _texts_of(self, found: list[dict[str, Any]], *, cuts: bool) -> Mapping[Digest, str]:
        """Return the texts that the rows of one query name. The rows lose `n`."""
        names = _names_in(found)
        cut: Mapping[Digest, str] = {}
        if cuts:
            cut = cut_texts(names & rows.values_in(found), self._rows, on_server=self.address.file is None)
        return {**self._texts(names - cut.keys()), **cut}

    def _texts(self, names: Collection[Digest]) -> Mapping[Digest, str]:
        """Return texts by digest. Raises `KeyError` for a missing text, `ValueError` for one that was altered."""
        packed: dict[Digest, Packed] = {}
        missing = set(names)
        while missing:
            some = sorted(missing)[:_AT_ONCE]
            for row in self._rows(plain_queries.texts(len(some)), some):
                whole = row["base"] is None
                packed[row["digest"]] = (
                    Packed(row["text"]) if whole else Packed("", row["base"], row["keep"], bytes(row["tail"]))
                )
            if lost := [name for name in some if name not in packed]:
                raise KeyError(f"blob {lost[0]}")
            missing.difference_update(some)
            missing.update(one.base for name in some if (one := packed[name]).base and one.base not in packed)
        return rows.unaltered(unpack(names, packed))

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        self._refresh()
        with as_store_errors(self.address), closing(self.connection.cursor()) as cursor:
            cursor.execute(query.replace("?", self._mark), tuple(values))
            names = [column[0] for column in cursor.description]
            return plain_queries.as_rows(names, cursor.fetchall())

    def _refresh(self) -> None:
        """Replace a connection to a copy by a newer one if the file was written since."""
        if isinstance(self.connection, readonly_sqlite.FrozenConnection) and self.connection.is_old:
            newer = _current(self.address)
            self.connection.close()
            self.connection = newer


def _names_in(found: list[dict[str, Any]]) -> set[Digest]:
    """Return the names of the texts of these rows, and take `n` out of the rows."""
    for row in found:
        del row["n"]
    return rows.names_in(found)


def _nulls_for(found: list[dict[str, Any]]) -> Mapping[Digest, str]:
    return dict.fromkeys(_names_in(found), "null")


@contextmanager
def reading(address: str | Path | Address, *, cuts: bool = False) -> Iterator[Reader]:
    """Open the database for reading; it must exist. A database of an older Ramify is migrated first. `cuts`: see
    `Reader`.

    Raises `StoreError` if it cannot be used.
    """
    where = address if isinstance(address, Address) else addresses.parse(address)
    reader = Reader(_current(where), where, cuts=cuts)
    try:
        yield reader
    finally:
        reader.connection.close()


def _current(address: Address) -> Any:
    """Return a connection to the database at the present version, or to a migrated copy if it cannot be written."""
    connection = _connected(address)
    try:
        if _is_current(connection, address):
            return connection
        copy = None if address.file is None else _copy(address, address.file, connection)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return _connected(address, bring=True) if copy is None else copy


def _copy(address: Address, file: Path, connection: Any) -> readonly_sqlite.FrozenConnection | None:
    from ramify.runtime.store.engines import writer
    from ramify.runtime.store.migrate import migrate

    def upgrade(copy: Path) -> None:
        engine = writer(addresses.parse(copy))
        try:
            with engine.begin() as begun:
                migrate(begun, address)
        finally:
            engine.dispose()

    with as_store_errors(address):
        return readonly_sqlite.upgraded(file, connection, upgrade)


def _connected(address: Address, *, bring: bool = False) -> Any:
    with as_store_errors(address):
        if address.file is not None and not bring:
            # a missing file is not created; each SELECT by itself sees one state
            return readonly_sqlite.connected(address.file, timeout_s=BUSY_TIMEOUT_S)
        from ramify.runtime.store.engines import in_our_schema_now, writer
        from ramify.runtime.store.migrate import bring_up_to_date
        from ramify.runtime.store.pooler_check import shares_sessions

        pooled = address.on_server and shares_sessions(address)
        engine = writer(address, pooled=pooled)
        try:
            if bring:
                bring_up_to_date(engine, address)
            connection = engine.raw_connection()
            connection.detach()  # so that closing it does not return it to the pool
            if pooled:
                in_our_schema_now(connection)  # all reading is one transaction, since nothing ends it
            return connection
        finally:
            engine.dispose()


def _is_current(connection: Any, address: Address) -> bool:
    with as_store_errors(address), closing(connection.cursor()) as cursor:
        if address.file is not None:
            return int(cursor.execute("PRAGMA user_version").fetchone()[0]) == len(REVISIONS)
        cursor.execute(f"SELECT to_regclass('{SCHEMA}.{VERSION_TABLE}')")
        if cursor.fetchone()[0] is None:
            return False
        cursor.execute(f"SELECT version_num FROM {SCHEMA}.{VERSION_TABLE}")
        return bool(cursor.fetchone() == (REVISIONS[-1],))
