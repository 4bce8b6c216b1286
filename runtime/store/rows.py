"""Records to rows and back. A row has its record's fields by name, but for long texts (a blob's digest) and for
values that are not scalars (JSON)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import FromClause, Select, Table, select

from ramify.compiler.plan import OpKind
from ramify.runtime.records import (
    CheckpointRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunRecord,
    RunStatus,
    Settings,
)
from ramify.runtime.store import tables

Row = Mapping[str, Any]

BLOBS: Mapping[Table, tuple[str, ...]] = {
    tables.runs: ("plan", "args", "result"),
    tables.ops: ("result",),
    tables.llm: ("request", "result"),
}
"""The fields NAME_json of a record whose text stands in `blobs`; the row's column is NAME_blob."""


def digest(text: str) -> str:
    """A blob's name. Lone surrogates count as they are."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def texts(table: Table, record: RunRecord | OpRecord | LLMRecord) -> list[str]:
    """The long texts that must be in `blobs` before the record's row."""
    found = (getattr(record, f"{name}_json") for name in BLOBS[table])
    return [text for text in found if text is not None]


def _row(record: Any, *left_out: str) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record) if f.name not in left_out}


def _with_blobs(table: Table, record: Any, *left_out: str) -> dict[str, Any]:
    row = _row(record, *left_out, *(f"{name}_json" for name in BLOBS[table]))
    for name in BLOBS[table]:
        text = getattr(record, f"{name}_json")
        row[f"{name}_blob"] = None if text is None else digest(text)
    return row


def run_row(run: RunRecord) -> dict[str, Any]:
    return {**_with_blobs(tables.runs, run, "settings"), "settings_json": json.dumps(asdict(run.settings))}


def op_row(op: OpRecord) -> dict[str, Any]:
    return {**_with_blobs(tables.ops, op, "attrs"), "attrs_json": json.dumps(dict(op.attrs))}


def llm_row(call: LLMRecord) -> dict[str, Any]:
    return _with_blobs(tables.llm, call)


def checkpoint_row(checkpoint: CheckpointRecord) -> dict[str, Any]:
    return {**_row(checkpoint, "parents"), "parents_json": json.dumps(checkpoint.parents)}


def query(table: Table) -> Select[Any]:
    """Every column of a table but its number, each NAME_blob replaced by its text as NAME_json."""
    names = BLOBS.get(table, ())
    source: FromClause = table
    columns: list[Any] = [c for c in table.c if c.name != "n" and c.name not in {f"{name}_blob" for name in names}]
    for name in names:
        blob = tables.blobs.alias(f"{name}_text")
        source = source.outerjoin(blob, table.c[f"{name}_blob"] == blob.c.digest)
        columns.append(blob.c.text.label(f"{name}_json"))
    return select(*columns).select_from(source)


def run_record(row: Row) -> RunRecord:
    values = dict(row)
    settings = Settings(**json.loads(values.pop("settings_json")))
    return RunRecord(**{**values, "settings": settings, "status": RunStatus(row["status"])})


def op_record(row: Row) -> OpRecord:
    values = dict(row)
    attrs = json.loads(values.pop("attrs_json"))
    return OpRecord(**{**values, "attrs": attrs, "kind": OpKind(row["kind"]), "status": OpStatus(row["status"])})


def llm_record(row: Row) -> LLMRecord:
    return LLMRecord(**row)


def checkpoint_record(row: Row) -> CheckpointRecord:
    values = dict(row)
    parents = tuple(json.loads(values.pop("parents_json")))
    return CheckpointRecord(**{**values, "parents": parents})
