"""The last batch of each process that writes: whether a commit whose answer was lost took place (committer.py)."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Integer, Text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "writers",
        Column("id", Text, primary_key=True, nullable=False),
        Column("batch", BigInteger().with_variant(Integer, "sqlite"), nullable=False),
        Column("at", Float, nullable=False),
    )
