"""An effect that is attempted again keeps what became of the attempt before."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, ForeignKey, Integer, Text, UniqueConstraint

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    number = BigInteger().with_variant(Integer, "sqlite")
    op.add_column("effects", Column("attempt", number, nullable=False, server_default="1"))
    op.create_table(
        "attempts",
        Column("n", number, primary_key=True, nullable=False),
        Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        *(Column(name, Text, nullable=False) for name in ("key", "step", "branch", "status", "idempotency_key")),
        Column("args_blob", Text, ForeignKey("blobs.digest"), nullable=False),
        Column("result_blob", Text, ForeignKey("blobs.digest")),
        Column("intended_at", Float, nullable=False),
        Column("settled_at", Float),
        Column("note", Text, nullable=False),
        Column("attempt", number, nullable=False, server_default="1"),
        UniqueConstraint("run_id", "key", "attempt"),
        sqlite_autoincrement=True,
    )
    op.create_index("attempts_args_blob", "attempts", ["args_blob"])
    op.create_index("attempts_result_blob", "attempts", ["result_blob"])
