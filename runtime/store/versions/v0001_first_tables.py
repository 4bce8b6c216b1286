"""Runs, the journal, model calls, checkpoints, and the long texts that they name."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Integer, Text, UniqueConstraint

revision = "0001"
down_revision = None

NUMBER = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "blobs", Column("digest", Text, primary_key=True, nullable=False), Column("text", Text, nullable=False)
    )
    _runs()
    _ops()
    _llm()
    op.create_table(
        "checkpoints",
        _number(),
        Column("id", Text, nullable=False, unique=True),
        _of_run(),
        Column("seq", NUMBER, nullable=False),
        *_texts("branch", "snapshot_id", "content_key", "parents_json"),
        Column("created_at", Float, nullable=False),
        *_texts("label"),
        sqlite_autoincrement=True,
    )
    op.create_index("checkpoints_run", "checkpoints", ["run_id"])


def _runs() -> None:
    op.create_table(
        "runs",
        _number(),
        Column("id", Text, nullable=False, unique=True),
        *_texts("name", "workflow", "frontend", "workspace", "base_snapshot"),
        _blob("plan_blob", nullable=False),
        _blob("args_blob", nullable=False),
        *_texts("settings_json", "status"),
        Column("created_at", Float, nullable=False),
        Column("updated_at", Float, nullable=False),
        Column("deadline_s", Float),
        Column("consumed_s", Float, nullable=False),
        _blob("result_blob", nullable=True),
        Column("error", Text),
        Column("thread_id", Text),
        sqlite_autoincrement=True,
    )


def _ops() -> None:
    op.create_table(
        "ops",
        _number(),
        _of_run(),
        Column("seq", NUMBER, nullable=False),
        *_texts("key", "op_id", "kind", "branch", "status"),
        Column("step", Text),
        *_texts("args_digest"),
        _blob("result_blob", nullable=True),
        *_texts("result_digest"),
        *(Column(name, Text) for name in ("snapshot_in", "snapshot_out", "lineage_key", "reused_from")),
        Column("started_at", Float, nullable=False),
        Column("ended_at", Float, nullable=False),
        *_texts("summary"),
        Column("error", Text),
        *_texts("attrs_json"),
        UniqueConstraint("run_id", "seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("ops_lineage", "ops", ["lineage_key"])
    op.create_index("ops_result_blob", "ops", ["result_blob"])


def _llm() -> None:
    op.create_table(
        "llm",
        _number(),
        _of_run(),
        Column("seq", NUMBER, nullable=False),
        *_texts("key", "op_id", "branch"),
        Column("step_key", Text),
        _blob("request_blob", nullable=False),
        *_texts("request_digest"),
        _blob("result_blob", nullable=False),
        *_texts("result_digest", "tags_json"),
        Column("reused_from", Text),
        Column("started_at", Float, nullable=False),
        Column("ended_at", Float, nullable=False),
        UniqueConstraint("run_id", "seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("llm_request_blob", "llm", ["request_blob"])
    op.create_index("llm_result_blob", "llm", ["result_blob"])


def _number() -> Column[int]:
    return Column("n", NUMBER, primary_key=True, nullable=False)


def _of_run() -> Column[str]:
    return Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False)


def _blob(name: str, *, nullable: bool) -> Column[str]:
    return Column(name, Text, ForeignKey("blobs.digest"), nullable=nullable)


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in names]
