"""A person's answer to a question is stored before the run goes on."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Integer, Text, UniqueConstraint

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    number = BigInteger().with_variant(Integer, "sqlite")
    op.create_table(
        "answers",
        Column("n", number, primary_key=True, nullable=False),
        Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        Column("key", Text, nullable=False),
        Column("answer_blob", Text, ForeignKey("blobs.digest"), nullable=False),
        Column("answered_at", Float, nullable=False),
        Column("answered_by", Text, nullable=False),
        UniqueConstraint("run_id", "key"),
        sqlite_autoincrement=True,
    )
    op.create_index("answers_answer_blob", "answers", ["answer_blob"])
