"""What steps do to the outside: an intent, and what became of it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Integer, Text, UniqueConstraint

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "effects",
        Column("n", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, nullable=False),
        Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        *(Column(name, Text, nullable=False) for name in ("key", "step", "branch", "status", "idempotency_key")),
        Column("args_blob", Text, ForeignKey("blobs.digest"), nullable=False),
        Column("result_blob", Text, ForeignKey("blobs.digest")),
        Column("intended_at", Float, nullable=False),
        Column("settled_at", Float),
        Column("note", Text, nullable=False),
        UniqueConstraint("run_id", "key"),
        sqlite_autoincrement=True,
    )
    op.create_index("effects_args_blob", "effects", ["args_blob"])
    op.create_index("effects_result_blob", "effects", ["result_blob"])
