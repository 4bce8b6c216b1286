"""Write statements for SQLite and PostgreSQL. The committer runs them inside its transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import CompoundSelect, Connection, Insert, Select, Table, Update, cast, select, type_coerce, union
from sqlalchemy import Text as PlainText
from sqlalchemy.dialects import postgresql, sqlite

from ramify.compiler.plan import OpKind
from ramify.runtime.errors import RunNotFound, StoreError
from ramify.runtime.records import (
    LEGAL_TRANSITIONS,
    VOID,
    AnswerRecord,
    EffectRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRows,
    RunStatus,
    RunUpdate,
)
from ramify.runtime.store import blobs, rows, tables
from ramify.runtime.store.stored_texts import Packed

BLOB_COLUMNS = tuple(
    tables.metadata.tables[table].c[f"{name}_blob"] for table, names in rows.BLOBS.items() for name in names
)

_SETTLING = ("idempotency_key", "status", "result_blob", "intended_at", "settled_at", "note", "attempt")


def insert(connection: Connection, table: Table) -> Any:
    """Return an insert that supports `on_conflict_…`, which both databases have."""
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def put(connection: Connection, table: Table, values: Sequence[dict[str, Any]]) -> None:
    if values:
        connection.execute(table.insert(), values)


def put_blobs(connection: Connection, packed: Mapping[str, Packed]) -> None:
    """Insert missing texts."""
    if not packed:
        return
    new = insert(connection, tables.blobs).on_conflict_do_nothing()
    if connection.dialect.name == "postgresql" or not blobs.are_long(packed):
        connection.execute(new, list(blobs.in_rows(packed)))
    else:
        blobs.put_in_pieces(packed, lambda row: connection.execute(new, row).rowcount == 1)


def all_texts(found: RunRows) -> list[str]:
    """Return the texts that must be in `blobs` before all rows of a run."""
    named = rows.texts(tables.runs, found.run)
    for table, records in (
        (tables.ops, found.ops),
        (tables.llm, found.llm),
        (tables.effects, (*found.effects, *found.attempts)),
        (tables.answers, found.answers),
    ):
        named += [text for one in records for text in rows.texts(table, one)]
    return named


def put_rows(connection: Connection, found: RunRows) -> None:
    """Insert all rows of a run that this database does not have. The texts that they name are there."""
    put(connection, tables.runs, [rows.run_row(found.run)])
    put(connection, tables.ops, [rows.op_row(one) for one in found.ops])
    put(connection, tables.llm, [rows.llm_row(one) for one in found.llm])
    put(connection, tables.checkpoints, [rows.checkpoint_row(one) for one in found.checkpoints])
    put(connection, tables.effects, [rows.effect_row(one) for one in found.effects])
    put(connection, tables.attempts, [rows.effect_row(one) for one in found.attempts])
    put(connection, tables.answers, [rows.answer_row(one) for one in found.answers])


def put_effects(connection: Connection, effects: Sequence[EffectRecord]) -> None:
    """Insert effects, or update existing rows. A row of an earlier attempt is copied to `attempts` first."""
    for effect in effects:
        if effect.attempt > 1:
            connection.execute(_followed(effect))
        new = insert(connection, tables.effects).values(rows.effect_row(effect))
        changing = {name: new.excluded[name] for name in _SETTLING}
        connection.execute(new.on_conflict_do_update(index_elements=["run_id", "key"], set_=changing))


def _followed(effect: EffectRecord) -> Insert:
    """Return the insert that copies the earlier attempt to `attempts`."""
    there = tables.effects.c
    names = [column.name for column in there if column.name != "n"]
    earlier = (there.run_id == effect.run_id, there.key == effect.key, there.attempt < effect.attempt)
    return tables.attempts.insert().from_select(names, select(*(there[name] for name in names)).where(*earlier))


def update_run(connection: Connection, run_id: RunId, change: RunUpdate, clock: Callable[[], float]) -> None:
    """Update a run's row. A run that becomes RUNNING loses its error. Raises `RunNotFound`, and `StoreError` for an
    illegal change of status."""
    table = tables.runs
    values: dict[str, object] = {"updated_at": clock() if change.updated_at is None else change.updated_at}
    if change.status is not None:
        _check_transition(connection, run_id, change.status)
        values["status"] = change.status
        if change.status is RunStatus.RUNNING:
            values["error"] = None
    for name in ("error", "consumed_s", "deadline_s"):
        if (value := getattr(change, name)) is not None:
            values[name] = value
    if change.settings is not None:
        values["settings_json"] = rows.settings_json(change.settings)
    if change.result_json is not None:
        values["result_blob"] = rows.digest(change.result_json)
    before = None
    if change.plan_json is not None:
        values["plan_blob"] = rows.digest(change.plan_json)
        if connection.dialect.name == "postgresql":  # a concurrent writer may have inserted a text, not yet its row
            connection.exec_driver_sql("LOCK TABLE blobs IN SHARE ROW EXCLUSIVE MODE")
        before = connection.execute(select(table.c.plan_blob).where(table.c.id == run_id)).scalar_one_or_none()
    if connection.execute(table.update().where(table.c.id == run_id).values(values)).rowcount == 0:
        raise no_run(run_id)
    if before is not None and before != values["plan_blob"]:
        blobs.delete_unused(connection, {before}, BLOB_COLUMNS)


def _check_transition(connection: Connection, run_id: RunId, status: RunStatus) -> None:
    query = select(tables.runs.c.status).where(tables.runs.c.id == run_id).with_for_update()
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        raise no_run(run_id)
    before = RunStatus(found)
    if status not in LEGAL_TRANSITIONS[before]:
        raise StoreError(f"run {run_id} is {before}: it cannot become {status}")


def delete_run(connection: Connection, run_id: RunId) -> None:
    """Delete a run with all its rows, and the texts that no other row names."""
    if connection.dialect.name == "postgresql":  # a concurrent writer may have inserted a text, but not yet its row
        connection.exec_driver_sql("LOCK TABLE blobs IN SHARE ROW EXCLUSIVE MODE")
    named = {name for name in connection.execute(_blobs_of(run_id)).scalars() if name}
    if connection.execute(tables.runs.delete().where(tables.runs.c.id == run_id)).rowcount == 0:
        raise no_run(run_id)
    blobs.delete_unused(connection, named, BLOB_COLUMNS)


def put_answer(connection: Connection, answer: AnswerRecord) -> bool:
    """Insert an answer. Returns False, and changes nothing, if the question has an answer already."""
    new = insert(connection, tables.answers).values(rows.answer_row(answer))
    new = new.on_conflict_do_nothing(index_elements=["run_id", "key"])
    return connection.execute(new.returning(tables.answers.c.n)).first() is not None


def void_answers_after(run_id: RunId, after: int) -> Update:
    """Void the answers to questions that a run asked, or answered, after the row with that number."""
    ops = tables.ops.c
    return void_answers(
        run_id, select(ops.key).where(ops.run_id == run_id, ops.seq > after, ops.kind == OpKind.INTERRUPT)
    )


def void_answers(run_id: RunId, keys: Sequence[str] | Select[Any]) -> Update:
    """Void answers: they do not count any more. The rows stay, under keys that no question has."""
    answers = tables.answers.c
    key = type_coerce(answers.key, PlainText) + VOID + cast(answers.n, PlainText)
    return tables.answers.update().where(answers.run_id == run_id, answers.key.in_(keys)).values(key=key)


def unask(run_id: RunId, keys: Sequence[str]) -> Update:
    """Close questions that the run did not reach again."""
    ops = tables.ops
    asked = (ops.c.run_id == run_id, ops.c.status == OpStatus.ASKED, ops.c.key.in_(keys))
    return ops.update().where(*asked).values(status=OpStatus.UNASKED)


def amend(op: OpRecord) -> Update:
    """Give a recorded row its attributes of now."""
    ops = tables.ops
    mine = (ops.c.run_id == op.run_id, ops.c.seq == op.seq)
    return ops.update().where(*mine).values(attrs_json=rows.op_row(op)["attrs_json"])


def interrupts(run_id: RunId | None) -> Select[Any]:
    """Select the question and answer rows of a run, or of all runs that are not done."""
    ops, runs = tables.ops.c, tables.runs.c
    mine = (
        ops.run_id.in_(select(runs.id).where(runs.status != RunStatus.DONE))
        if run_id is None
        else ops.run_id == run_id
    )
    return tables.query(tables.ops).where(ops.kind == OpKind.INTERRUPT, mine).order_by(ops.n)


def undo(run_id: RunId, after: int) -> Update:
    """Set the DONE and READ rows with a higher number to UNDONE."""
    ops = tables.ops
    later = (ops.c.run_id == run_id, ops.c.seq > after, ops.c.status.in_((OpStatus.DONE, OpStatus.READ)))
    return ops.update().where(*later).values(status=OpStatus.UNDONE)


def no_run(run_id: RunId) -> RunNotFound:
    return RunNotFound(f"no run {run_id}: `ramify ls` lists the runs")


def named_texts(connection: Connection, run_id: RunId, among: Sequence[str]) -> set[str]:
    """Return those of these digests of texts that rows of this run name."""
    return set(connection.execute(_blobs_of(run_id, among)).scalars())


def _blobs_of(run_id: RunId, among: Sequence[str] | None = None) -> CompoundSelect[Any]:
    """Select the digests of all texts that rows of this run name. among: only of these."""
    owners = (column.table.c["id" if column.table is tables.runs else "run_id"] for column in BLOB_COLUMNS)
    found = (select(c).where(owner == run_id) for c, owner in zip(BLOB_COLUMNS, owners, strict=True))
    if among is None:
        return union(*found)
    return union(*(each.where(c.in_(among)) for each, c in zip(found, BLOB_COLUMNS, strict=True)))
