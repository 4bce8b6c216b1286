"""Convert records to database rows and back. A row has the fields of its record by name. Long texts are replaced by
their digest in `blobs`, and values that are not scalars by JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Any

from ramify.compiler.plan import OpKind
from ramify.runtime.records import (
    AnswerRecord,
    CheckpointRecord,
    EffectRecord,
    EffectStatus,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunStatus,
    Settings,
)
from ramify.runtime.store.stored_texts import Named, named

if TYPE_CHECKING:
    from sqlalchemy import Table

Row = Mapping[str, Any]
Name = Callable[[str], str]
"""Returns the digest that names a text in `blobs`."""

BLOBS: Mapping[str, tuple[str, ...]] = {
    "runs": ("plan", "args", "result"),
    "ops": ("result",),
    "llm": ("request", "result"),
    "effects": ("args", "result"),
    "attempts": ("args", "result"),
    "answers": ("answer",),
}
"""By table: the fields NAME_json of a record whose text is in `blobs`. The row's column is NAME_blob."""
_BLOB = "_blob"
_TEXTS = {table: tuple(f"{name}_json" for name in names) for table, names in BLOBS.items()}


NUMBERS = frozenset({"seq", "attempt"})
TIMES = frozenset(
    {"created_at", "updated_at", "started_at", "ended_at", "intended_at", "settled_at", "answered_at"}
    | {"deadline_s", "consumed_s"}
)
NULLABLE = frozenset(
    {"deadline_s", "settled_at", "error", "thread_id", "step", "step_key", "snapshot_in", "snapshot_out"}
    | {"lineage_key", "reused_from", "result_blob"}
)
"""The columns that hold integers, floats, and perhaps NULL; all others hold texts. SQLite stores a value of any type
in any column, so the types of what a file holds are checked."""

_SHORT = 32  # characters


def digest(text: str) -> str:
    """Return the digest that names a text in `blobs`. Lone surrogates are encoded as they are."""
    return _digest_of_short(text) if len(text) <= _SHORT else _digest(text)


def _digest(text: str) -> str:
    return named(text).name


_digest_of_short = lru_cache(maxsize=1024)(_digest)  # `null`, `true`: many rows name the same few texts


class Names:
    """Names the texts of one commit: each is digested once."""

    def __init__(self) -> None:
        self._found: dict[int, Named] = {}  # by the id of the text, which is kept

    def __call__(self, text: str) -> str:
        return _digest_of_short(text) if len(text) <= _SHORT else self.of(text).name

    def of(self, text: str) -> Named:
        if len(text) <= _SHORT:
            return Named(text, _digest_of_short(text))
        if (found := self._found.get(id(text))) is None:
            found = self._found[id(text)] = named(text)
        return found


def unaltered(texts: Mapping[str, str]) -> Mapping[str, str]:
    """Return the texts. Raises `ValueError` if the digest of one is not its name."""
    if altered := next((name for name, text in texts.items() if digest(text) != name), None):
        raise ValueError(f"the text {altered[:12]} was altered or damaged: its digest differs")
    return texts


def texts(table: Table, record: RunRecord | OpRecord | LLMRecord | EffectRecord | AnswerRecord) -> list[str]:
    """Return the texts that must be in `blobs` before the record's row."""
    found = (getattr(record, f"{name}_json") for name in BLOBS[table.name])
    return [text for text in found if text is not None]


def _row(record: Any, *left_out: str) -> dict[str, Any]:
    names, values = _columns(record.__class__, left_out)
    return dict(zip(names, values(record), strict=True))


def _columns(kind: Any, left_out: tuple[str, ...]) -> _Columns:
    """Return the names of the fields that are columns, and what reads them from a record."""
    if (kind, left_out) not in _known_columns:
        names = tuple(f.name for f in fields(kind) if f.name not in left_out)
        _known_columns[kind, left_out] = names, attrgetter(*names)
    return _known_columns[kind, left_out]


_Columns = tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]
_known_columns: dict[tuple[Any, tuple[str, ...]], _Columns] = {}


def _with_blobs(table: str, record: Any, name: Name, *left_out: str) -> dict[str, Any]:
    row = _row(record, *left_out, *_TEXTS[table])
    for field in BLOBS[table]:
        text = getattr(record, f"{field}_json")
        row[f"{field}_blob"] = None if text is None else name(text)
    return row


def run_row(run: RunRecord, name: Name = digest) -> dict[str, Any]:
    return {**_with_blobs("runs", run, name, "settings"), "settings_json": settings_json(run.settings)}


def settings_json(settings: Settings) -> str:
    """Encode settings without unset values, so that an older Ramify that works in the same home can read them."""
    return json.dumps({name: value for name, value in asdict(settings).items() if value not in (None, False)})


def op_row(op: OpRecord, name: Name = digest) -> dict[str, Any]:
    """Written out, since every step has one."""
    return {
        "run_id": op.run_id,
        "seq": op.seq,
        "key": op.key,
        "op_id": op.op_id,
        "kind": str(op.kind),
        "branch": op.branch,
        "status": str(op.status),
        "step": op.step,
        "args_digest": op.args_digest,
        "result_digest": op.result_digest,
        "snapshot_in": op.snapshot_in,
        "snapshot_out": op.snapshot_out,
        "lineage_key": op.lineage_key,
        "reused_from": op.reused_from,
        "started_at": op.started_at,
        "ended_at": op.ended_at,
        "summary": op.summary,
        "error": op.error,
        "result_blob": None if op.result_json is None else name(op.result_json),
        "attrs_json": _attrs(op.attrs) if op.attrs else "{}",
    }


def _attrs(attrs: Mapping[str, str]) -> str:
    if len(attrs) == 1:  # many rows have the same one
        ((name, value),) = attrs.items()
        if len(value) <= _SHORT:
            return _one_attr(name, value)
    return json.dumps(dict(attrs))


@lru_cache(maxsize=1024)
def _one_attr(name: str, value: str) -> str:
    return json.dumps({name: value})


def llm_row(call: LLMRecord, name: Name = digest) -> dict[str, Any]:
    return _with_blobs("llm", call, name)


def effect_row(effect: EffectRecord) -> dict[str, Any]:
    return _with_blobs("effects", effect, digest)


def answer_row(answer: AnswerRecord) -> dict[str, Any]:
    return _with_blobs("answers", answer, digest)


def checkpoint_row(checkpoint: CheckpointRecord) -> dict[str, Any]:
    return {**_row(checkpoint, "parents"), "parents_json": json.dumps(checkpoint.parents)}


def names_in(found: Sequence[Row]) -> set[str]:
    """Return the digests of the texts that the rows of one query name.

    The rows have the same columns, without `n`, the order in which they were written. Raises `TypeError` if a value
    in one of them has another type than its column.
    """
    _check_types(found)
    columns = _blob_columns(found)
    return {row[column] for row in found for column in columns if row[column] is not None}


def values_in(found: Sequence[Row]) -> set[str]:
    """Return the digests of those texts that are values of users: arguments, results and answers. The rows are not
    those of model calls, whose results must be whole to be read."""
    columns = [] if found and "request_blob" in found[0] else [c for c in _blob_columns(found) if c != "plan_blob"]
    return {row[column] for row in found for column in columns if row[column] is not None}


def _check_types(found: Sequence[Row]) -> None:
    for name in found[0] if found else ():
        kinds = set(map(type, map(itemgetter(name), found)))
        if name in NULLABLE:
            kinds.discard(NoneType)
        right: set[type] = {int} if name in NUMBERS else {int, float} if name in TIMES else {str}
        if wrong := kinds - right:
            raise TypeError(f"column {name} holds a value of type {wrong.pop().__name__}")


def with_texts(found: Sequence[dict[str, Any]], texts: Mapping[str, str]) -> list[Row]:
    """Replace each NAME_blob by NAME_json, in place, in the rows of one query."""
    columns = [(column, f"{column.removesuffix(_BLOB)}_json") for column in _blob_columns(found)]
    if not columns:
        return list(found)
    for column, name in columns:
        for row in found:
            blob = row.pop(column)
            row[name] = None if blob is None else texts[blob]
    return list(found)


def _blob_columns(found: Sequence[Row]) -> list[str]:
    return [column for column in found[0] if column.endswith(_BLOB)] if found else []


def run_record(row: Row) -> RunRecord:
    values = dict(row)
    settings = Settings(**json.loads(values.pop("settings_json")))
    return RunRecord(**{**values, "settings": settings, "status": RunStatus(row["status"])})


_KINDS = {kind.value: kind for kind in OpKind}
_STATUSES = {status.value: status for status in OpStatus}


def op_record(row: Row) -> OpRecord:
    values = dict(row)
    values["attrs"] = json.loads(said) if (said := values.pop("attrs_json")) != "{}" else {}
    if not isinstance(values["attrs"], dict):
        raise TypeError("the attributes of an operation are not an object")
    kind, status = row["kind"], row["status"]  # looked up: a call of an enum takes ten times as long
    values["kind"], values["status"] = _KINDS.get(kind) or OpKind(kind), _STATUSES.get(status) or OpStatus(status)
    return OpRecord(**values)


def llm_record_and_settings(row: Row) -> tuple[LLMRecord, RunId, Settings]:
    values = dict(row)
    settings = Settings(**json.loads(values.pop("settings_of")))
    call = llm_record(values)
    return call, call.run_id, settings


def llm_record(row: Row) -> LLMRecord:
    return LLMRecord(**row)


def effect_record(row: Row) -> EffectRecord:
    return EffectRecord(**{**row, "status": EffectStatus(row["status"])})


def with_attempts(last: Sequence[EffectRecord], earlier: Iterable[EffectRecord]) -> list[EffectRecord]:
    """Return the ledger in the order of the first intents, with all attempts of each effect up to the one in `last`.
    Attempts that were written after `last` was read are left out."""
    attempts: dict[str, list[EffectRecord]] = {}
    for one in earlier:
        attempts.setdefault(one.key, []).append(one)
    before = ([one for one in attempts.get(effect.key, ()) if one.attempt < effect.attempt] for effect in last)
    return [one for effect, those in zip(last, before, strict=True) for one in (*those, effect)]


def answer_record(row: Row) -> AnswerRecord:
    return AnswerRecord(**row)


def checkpoint_record(row: Row) -> CheckpointRecord:
    values = dict(row)
    values["parents"] = tuple(json.loads(values.pop("parents_json")))
    return CheckpointRecord(**values)
