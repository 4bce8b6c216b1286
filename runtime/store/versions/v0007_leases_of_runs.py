"""Who works on a run: a lease that its owner renews, and that a new owner can take from one that does not."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Integer, Text

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    number = BigInteger().with_variant(Integer, "sqlite")
    op.create_table(
        "leases",
        Column("run_id", Text, primary_key=True, nullable=False),
        Column("owner", Text),
        Column("token", number, nullable=False),
        Column("host", Text, nullable=False),
        Column("pid", number, nullable=False),
        Column("lock_folder", Text, nullable=False),
        Column("taken_at", Float, nullable=False),
        Column("renewed_at", Float, nullable=False),
        Column("renewals", number, nullable=False),
        Column("lasts_s", Float, nullable=False),
        Column("stop_until", Float, nullable=False),
    )
