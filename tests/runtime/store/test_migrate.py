from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect

from ramify.runtime.errors import StoreError
from ramify.runtime.store import RunStore
from ramify.runtime.store.migrate import MIGRATIONS
from ramify.runtime.store.tables import metadata


def foreign_keys(engine: Engine, table: str) -> list[tuple[str, ...]]:
    """Asked of SQLite: the inspector overlooks ON DELETE behind a column."""
    with engine.connect() as connection:
        return sorted(tuple(row)[2:] for row in connection.exec_driver_sql(f"PRAGMA foreign_key_list({table})"))


def shape(engine: Engine) -> dict[str, Any]:
    """What a schema is, without how its statements were written."""
    seen = inspect(engine)
    return {
        table: {
            "columns": {c["name"]: (str(c["type"]), c["nullable"]) for c in seen.get_columns(table)},
            "key": seen.get_pk_constraint(table)["constrained_columns"],
            "unique": sorted(u["column_names"] for u in seen.get_unique_constraints(table)),
            "indexes": {i["name"]: i["column_names"] for i in seen.get_indexes(table)},
            "foreign": foreign_keys(engine, table),
        }
        for table in seen.get_table_names()
    }


async def test_the_migrations_make_the_tables_that_the_code_declares(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "migrated.db", clock=lambda: 0.0):
        pass
    declared = create_engine(f"sqlite:///{tmp_path}/declared.db")
    metadata.create_all(declared)
    migrated = create_engine(f"sqlite:///{tmp_path}/migrated.db")
    assert shape(migrated) == shape(declared)
    declared.dispose()
    migrated.dispose()


def version(path: Path, new: int | None = None) -> int:
    database = sqlite3.connect(path)
    if new is not None:
        database.execute(f"PRAGMA user_version = {new}")
    found: int = database.execute("PRAGMA user_version").fetchone()[0]
    database.close()
    return found


async def test_the_version_stands_in_the_database(tmp_path: Path) -> None:
    path = tmp_path / "ramify.db"
    for _ in range(2):
        async with RunStore(path, clock=lambda: 0.0):
            pass
        assert version(path) == len(MIGRATIONS)


async def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ramify.db"
    async with RunStore(path, clock=lambda: 0.0):
        pass
    version(path, len(MIGRATIONS) + 1)
    with pytest.raises(StoreError, match=r"newer ramify.*upgrade"):
        async with RunStore(path, clock=lambda: 0.0):
            pass
    assert version(path) == len(MIGRATIONS) + 1


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ramify.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.commit()
    database.close()
    with pytest.raises(StoreError, match="another program"):
        async with RunStore(path, clock=lambda: 0.0):
            pass
