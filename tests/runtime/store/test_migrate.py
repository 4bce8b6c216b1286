from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, inspect

from ramify.runtime.errors import StoreError
from ramify.runtime.records import RunId
from ramify.runtime.store import RunStore, migrate
from ramify.runtime.store.address import parse
from ramify.runtime.store.engines import SCHEMA, writer
from ramify.runtime.store.tables import metadata

OLD_HOMES = Path(__file__).with_name("old_homes")


def shape(connection: Connection) -> dict[str, Any]:
    """A schema, independent of how its statements are written."""
    seen = inspect(connection)
    return {
        table: {
            "columns": {c["name"]: (str(c["type"]), c["nullable"]) for c in seen.get_columns(table)},
            "key": seen.get_pk_constraint(table)["constrained_columns"],
            "unique": sorted(u["column_names"] for u in seen.get_unique_constraints(table)),
            "indexes": {
                i["name"]: i["column_names"] for i in seen.get_indexes(table) if "duplicates_constraint" not in i
            },
            "foreign": foreign_keys(connection, table),
        }
        for table in seen.get_table_names()
        if table != migrate.VERSION_TABLE
    }


def foreign_keys(connection: Connection, table: str) -> list[tuple[str, ...]]:
    if connection.dialect.name == "sqlite":  # the inspector overlooks ON DELETE behind a column
        return sorted(tuple(row)[2:] for row in connection.exec_driver_sql(f"PRAGMA foreign_key_list({table})"))
    keys = inspect(connection).get_foreign_keys(table)
    return sorted((k["referred_table"], *k["constrained_columns"], str(k["options"])) for k in keys)


async def test_the_migrations_make_the_declared_tables(address: str, tmp_path: Path) -> None:
    async with RunStore(address, clock=lambda: 0.0):
        pass
    made = writer(parse(address))
    with made.begin() as connection:
        migrated = shape(connection)
    with made.begin() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
        assert migrated == shape(connection)
    made.dispose()


def version(path: Path, new: int | None = None) -> int:
    database = sqlite3.connect(path)
    if new is not None:
        database.execute(f"PRAGMA user_version = {new}")
    found: int = database.execute("PRAGMA user_version").fetchone()[0]
    database.close()
    return found


async def test_the_database_stores_its_version(address: str) -> None:
    for _ in range(2):
        async with RunStore(address, clock=lambda: 0.0):
            pass
        engine = writer(parse(address))
        with engine.begin() as connection:
            assert migrate.version_of(connection) == len(migrate.REVISIONS)
        engine.dispose()


NO_ALEMBIC = """
import asyncio, sys
from ramify.runtime.store import RunStore

async def main():
    async with RunStore(sys.argv[1], clock=lambda: 0.0) as store:
        assert await store.runs() == []

asyncio.run(main())
assert "alembic" not in sys.modules
"""


async def test_alembic_is_not_imported_without_migrations(address: str) -> None:
    async with RunStore(address, clock=lambda: 0.0):
        pass
    command = [sys.executable, "-c", NO_ALEMBIC, address]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)


@pytest.mark.parametrize("old", [1, 2, 3, 4])
async def test_an_old_home_is_migrated(tmp_path: Path, old: int) -> None:
    """Databases as earlier versions made them, each with a finished run."""
    path = tmp_path / "ramify.db"
    database = sqlite3.connect(path)
    database.executescript((OLD_HOMES / f"version{old}.sql").read_text())
    database.close()
    assert version(path) == old
    async with RunStore(path, clock=lambda: 0.0) as store:
        run = await store.run(RunId("old"))
        assert (run.name, run.result_json, run.error) == ("repair", '"done"', None)
        assert [op.summary for op in await store.ops(run.id)] == ["it \u00fdworked"]
        assert len(await store.effects(run.id)) == min(old - 1, 1)
        await store.commit(run.id)
    assert version(path) == len(migrate.REVISIONS)
    engine = writer(parse(path))
    with engine.begin() as connection:
        taken_over = shape(connection)
    engine.dispose()
    async with RunStore(tmp_path / "new.db", clock=lambda: 0.0):
        pass
    engine = writer(parse(tmp_path / "new.db"))
    with engine.begin() as connection:
        assert taken_over == shape(connection)
    engine.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("old", [1, 2, 3, 4])
async def test_an_old_database_on_a_server_is_migrated(
    one_database: str, old: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows, in tables that the first `old` revisions made."""
    inserts = re.findall(r"^INSERT .*;$", (OLD_HOMES / f"version{old}.sql").read_text(), re.MULTILINE)
    engine = writer(parse(one_database))
    with engine.begin() as connection, monkeypatch.context() as then:
        then.setattr(migrate, "REVISIONS", migrate.REVISIONS[:old])
        connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
        migrate.upgrade(connection, 0)
        for table in ("blobs", "runs", "ops", "effects"):
            rows = [line for line in inserts if line.startswith(f'INSERT INTO "{table}"')]
            for line in rows:
                connection.exec_driver_sql(line)
            if rows and table != "blobs":  # the rows bring their numbers
                connection.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('{table}', 'n'), {len(rows)})")
        assert migrate.version_of(connection) == old
    async with RunStore(one_database, clock=lambda: 0.0) as store:
        run = await store.run(RunId("old"))
        assert (run.name, run.result_json, run.error) == ("repair", '"done"', None)
        assert [op.summary for op in await store.ops(run.id)] == ["it \u00fdworked"]
        assert len(await store.effects(run.id)) == min(old - 1, 1)
        await store.create_run(replace(run, id=RunId("new")))
    with engine.begin() as connection:
        assert migrate.version_of(connection) == len(migrate.REVISIONS)
        migrated = shape(connection)
        metadata.drop_all(connection)
        metadata.create_all(connection)
        assert migrated == shape(connection)
    engine.dispose()


async def test_a_newer_database_is_refused_and_unchanged(address: str) -> None:
    async with RunStore(address, clock=lambda: 0.0) as store:
        where = store.address
    newer = f"PRAGMA user_version = {len(migrate.REVISIONS) + 1}"
    if where.on_server:
        newer = f"UPDATE {SCHEMA}.{migrate.VERSION_TABLE} SET version_num = '9999'"
    engine = writer(where)
    with engine.begin() as connection:
        connection.exec_driver_sql(newer)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"newer ramify.*upgrade"):
            async with RunStore(address, clock=lambda: 0.0):
                pass
    engine.dispose()


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ramify.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.commit()
    database.close()
    with pytest.raises(StoreError, match="another program"):
        async with RunStore(path, clock=lambda: 0.0):
            pass


@pytest.mark.postgres
def test_another_process_that_migrates_during_the_check_is_no_other_program(one_database: str) -> None:
    """On SQLite the check holds the lock of a writer."""
    where = parse(one_database)
    engine, other = writer(where), writer(where)
    asked: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def _migrate_between(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "count(*)" in statement or "to_regclass" in statement:
            asked.append(statement)
            if len(asked) == 2:
                migrate.bring_up_to_date(other, where)

    migrate.bring_up_to_date(engine, where)
    assert len(asked) >= 2
    with engine.connect() as connection:
        assert migrate.version_of(connection) == len(migrate.REVISIONS)
    engine.dispose()
    other.dispose()


@pytest.mark.postgres
async def test_a_server_is_shared_with_programs_that_have_tables_of_the_same_names(
    request: pytest.FixtureRequest,
) -> None:
    address: str = request.getfixturevalue("one_database")
    import psycopg

    with psycopg.connect(address) as theirs:
        theirs.execute("DROP SCHEMA IF EXISTS ramify CASCADE")
        theirs.execute("CREATE TABLE checkpoints (thread_id TEXT)")
    async with RunStore(address, clock=lambda: 0.0) as store:
        assert await store.runs() == []
    with psycopg.connect(address) as theirs:
        assert theirs.execute("SELECT count(*) FROM checkpoints").fetchone() == (0,)
