"""Fixtures: every test that takes `address` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))
import postgres

WHY_NOT = postgres.why_not()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with postgres.server() as address:
        yield address


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/deep/threads.db"
    return postgres.new_database(request.getfixturevalue("postgres_server"))
