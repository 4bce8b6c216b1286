"""A long text may be written against another: so many bytes of it, and what follows (packing.py)."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, Text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("blobs", Column("base", Text))
    op.add_column("blobs", Column("keep", BigInteger().with_variant(Integer, "sqlite")))
    op.add_column("blobs", Column("tail", LargeBinary))
