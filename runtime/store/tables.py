"""The present tables. The migrations under `versions/` create them; a test checks that both agree.

Each table has a column `n` that grows with each insert. "Newest" means the highest `n`, so a clock that was set back
changes nothing. Long texts (plans, arguments, requests, results) are stored once, in `blobs`, under the sha256 of
their bytes, and rows refer to them by that digest. A text that extends another one is stored as the difference
(`stored_texts.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    Table,
    TypeDecorator,
    UniqueConstraint,
    select,
)
from sqlalchemy import Text as PlainText

from ramify.runtime.store.stored_texts import ESCAPED, unescape_text, written


class Text(TypeDecorator[str]):
    """Any Python string. Strings that a database cannot store (with a surrogate from a file name that is not UTF-8,
    or a NUL) are escaped behind a mark; all others are stored unchanged, readable by other tools."""

    impl = PlainText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return stored(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return _given(value)

    # Without the calls that SQLAlchemy puts around the methods above: a row of a journal has seventeen texts.

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str | None]:
        return stored

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None]:
        return _given


def stored(value: Any) -> str | None:
    if type(value) is str and value.isascii() and "\0" not in value and value[:1] != ESCAPED:
        return value  # most texts, without further calls
    return None if value is None else written(value if type(value) is str else str(value))  # str() of StrEnum members


def _given(value: Any) -> str | None:
    if type(value) is str and value[:1] != ESCAPED:
        return value
    return None if value is None else unescape_text(str(value))


metadata = MetaData()

NUMBER = BigInteger().with_variant(Integer, "sqlite")

blobs = Table(
    "blobs",
    metadata,
    Column("digest", PlainText, primary_key=True),
    Column("text", Text, nullable=False),  # the whole text; empty if it is a difference to a base:
    Column("base", PlainText),  # the digest of the base
    Column("keep", NUMBER),  # how many bytes of the base the text begins with
    Column("tail", LargeBinary),  # the bytes after them
)
LONG = 256
"""The minimal number of characters of a text that is stored as a difference."""


def _number() -> Column[int]:
    return Column("n", NUMBER, primary_key=True)


def _blob(name: str, *, nullable: bool = True) -> Column[str]:
    return Column(name, PlainText, ForeignKey("blobs.digest"), nullable=nullable)


def _run_id() -> Column[str]:
    return Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False)


runs = Table(
    "runs",
    metadata,
    _number(),
    Column("id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("frontend", Text, nullable=False),
    Column("workspace", Text, nullable=False),
    Column("base_snapshot", Text, nullable=False),
    _blob("plan_blob", nullable=False),
    _blob("args_blob", nullable=False),
    Column("settings_json", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("deadline_s", Float),
    Column("consumed_s", Float, nullable=False),
    _blob("result_blob"),
    Column("error", Text),
    Column("thread_id", Text),
    sqlite_autoincrement=True,
)

ops = Table(
    "ops",
    metadata,
    _number(),
    _run_id(),
    Column("seq", NUMBER, nullable=False),
    Column("key", Text, nullable=False),
    Column("op_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("branch", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("step", Text),
    Column("args_digest", Text, nullable=False),
    _blob("result_blob"),
    Column("result_digest", Text, nullable=False),
    Column("snapshot_in", Text),
    Column("snapshot_out", Text),
    Column("lineage_key", Text),
    Column("reused_from", Text),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float, nullable=False),
    Column("summary", Text, nullable=False),
    Column("error", Text),
    Column("attrs_json", Text, nullable=False),
    UniqueConstraint("run_id", "seq"),
    Index("ops_lineage", "lineage_key"),
    Index("ops_result_blob", "result_blob"),
    sqlite_autoincrement=True,
)

llm = Table(
    "llm",
    metadata,
    _number(),
    _run_id(),
    Column("seq", NUMBER, nullable=False),
    Column("key", Text, nullable=False),
    Column("op_id", Text, nullable=False),
    Column("branch", Text, nullable=False),
    Column("step_key", Text),
    _blob("request_blob", nullable=False),
    Column("request_digest", Text, nullable=False),
    _blob("result_blob", nullable=False),
    Column("result_digest", Text, nullable=False),
    Column("tags_json", Text, nullable=False),
    Column("reused_from", Text),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float, nullable=False),
    UniqueConstraint("run_id", "seq"),
    Index("llm_request_blob", "request_blob"),
    Index("llm_result_blob", "result_blob"),
    sqlite_autoincrement=True,
)


def _effect_columns() -> list[Column[Any]]:
    return [
        _number(),
        _run_id(),
        Column("key", Text, nullable=False),
        Column("step", Text, nullable=False),
        Column("branch", Text, nullable=False),
        Column("status", Text, nullable=False),
        Column("idempotency_key", Text, nullable=False),
        _blob("args_blob", nullable=False),
        _blob("result_blob"),
        Column("intended_at", Float, nullable=False),
        Column("settled_at", Float),
        Column("note", Text, nullable=False),
        Column("attempt", NUMBER, nullable=False, server_default="1"),
    ]


effects = Table(
    "effects",
    metadata,
    *_effect_columns(),
    UniqueConstraint("run_id", "key"),
    Index("effects_args_blob", "args_blob"),
    Index("effects_result_blob", "result_blob"),
    sqlite_autoincrement=True,
)

attempts = Table(
    "attempts",
    metadata,
    *_effect_columns(),
    UniqueConstraint("run_id", "key", "attempt"),
    Index("attempts_args_blob", "args_blob"),
    Index("attempts_result_blob", "result_blob"),
    sqlite_autoincrement=True,
)
"""Earlier attempts at effects. The last attempt of each effect is in `effects`."""

answers = Table(
    "answers",
    metadata,
    _number(),
    _run_id(),
    Column("key", Text, nullable=False),
    _blob("answer_blob", nullable=False),
    Column("answered_at", Float, nullable=False),
    Column("answered_by", Text, nullable=False),
    UniqueConstraint("run_id", "key"),
    Index("answers_answer_blob", "answer_blob"),
    sqlite_autoincrement=True,
)
"""The answers of people, by the key of the question. Each question has one answer, the first."""

checkpoints = Table(
    "checkpoints",
    metadata,
    _number(),
    Column("id", Text, nullable=False, unique=True),
    _run_id(),
    Column("seq", NUMBER, nullable=False),
    Column("branch", Text, nullable=False),
    Column("snapshot_id", Text, nullable=False),
    Column("content_key", Text, nullable=False),
    Column("parents_json", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("label", Text, nullable=False),
    Index("checkpoints_run", "run_id"),
    sqlite_autoincrement=True,
)

writers = Table(
    "writers",
    metadata,
    Column("id", PlainText, primary_key=True),
    Column("batch", NUMBER, nullable=False),
    Column("at", Float, nullable=False),  # Unix seconds, by the writer's clock
)
"""On PostgreSQL, the number of the last batch that each writing process committed."""

leases = Table(
    "leases",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("owner", PlainText),  # the id of the writer that works on the run; NULL: nobody does
    Column("token", NUMBER, nullable=False),  # grows with each owner
    Column("host", Text, nullable=False),  # of the last owner, as its pid
    Column("pid", NUMBER, nullable=False),
    Column("lock_folder", PlainText, nullable=False),  # identifies the folder of the owner's file lock; may be empty
    Column("taken_at", Float, nullable=False),  # Unix seconds: the server's clock, or with SQLite the owner's
    Column("renewed_at", Float, nullable=False),
    Column("renewals", NUMBER, nullable=False),
    Column("lasts_s", Float, nullable=False),  # without a renewal
    Column("stop_until", Float, nullable=False),  # until then, somebody asks the owner to cancel the run
)
"""Who works on which run (`leases.py`). The row stays when the run ends, so that tokens never repeat."""


def query(table: Table) -> Select[Any]:
    """Select every column of a table except `n`. Long texts are selected as digests: `rows.with_texts` replaces
    them."""
    return select(*(column for column in table.c if column.name != "n"))
