"""Migrate a database to the present tables. Alembic does it, and is imported only if there is something to do.

SQLite stores its version in `PRAGMA user_version`, also in databases that were made before alembic was used.
PostgreSQL stores it in alembic's version table, in our schema. Alembic runs without ini file and env.py, in a
transaction of the caller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

from ramify.runtime.errors import StoreError
from ramify.runtime.store.address import REVISIONS, SCHEMA, VERSION_TABLE, Address
from ramify.runtime.store.engines import sync_folder

_MIGRATION_LOCK = 0x72616D696679  # PostgreSQL's advisory locks have numbers: "ramify"


def bring_up_to_date(engine: Engine, address: Address) -> None:
    """Make missing tables and apply missing migrations. Raises as `check` does."""
    with engine.connect() as connection:
        with connection.begin():
            current = check(connection, address)
        if current:
            return
        with connection.begin():
            migrate(connection, address)
    if address.file is not None:
        sync_folder(address.file.parent)


def version_of(connection: Connection) -> int:
    """Return how many revisions the database has had; for an unknown revision, one more than there are."""
    if connection.dialect.name == "sqlite":
        return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if connection.exec_driver_sql(f"SELECT to_regclass('{SCHEMA}.{VERSION_TABLE}')").scalar_one() is None:
        return 0
    found = connection.exec_driver_sql(f"SELECT version_num FROM {SCHEMA}.{VERSION_TABLE}").scalars().all()
    names = [str(name) for name in found]
    if not names:
        return 0
    return REVISIONS.index(names[0]) + 1 if names[0] in REVISIONS else len(REVISIONS) + 1


def check(connection: Connection, address: Address) -> bool:
    """Whether the database is at the present version; False if `migrate` has work to do.

    Raises `StoreError` for a database of a newer ramify or of another program.
    """
    # Tables first: they and their version appear in one commit, and each statement may see a newer one.
    tables = connection.exec_driver_sql(_TABLES_THERE[connection.dialect.name]).scalar_one()
    version = version_of(connection)
    another = "another home (--home DIR)" if address.file is not None else "another database"
    if version > len(REVISIONS):
        raise StoreError(
            f"{address} was written by a newer ramify (schema {version}, this one knows {len(REVISIONS)}): "
            f"upgrade ramify, or use {another}"
        )
    if version == 0 and tables:
        raise StoreError(f"{address} is a database of another program: use {another}")
    return version == len(REVISIONS)


_TABLES_THERE = {
    # the saver's tables may exist before ours
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE substr(tbl_name, 1, 7) <> 'ramify_'",
    "postgresql": f"SELECT count(*) FROM pg_tables WHERE schemaname = '{SCHEMA}'",
}


def migrate(connection: Connection, address: Address) -> None:
    """Bring the database to the present version, inside the caller's write transaction."""
    on_server = connection.dialect.name == "postgresql"
    if on_server:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    if check(connection, address):  # checked again under the lock: another process may have been first
        return
    upgrade(connection, version_of(connection))
    if not on_server:
        connection.exec_driver_sql(f"PRAGMA user_version = {len(REVISIONS)}")


_FOLDER = Path(__file__).parent


def upgrade(connection: Connection, version: int) -> None:
    """Apply the revisions after the first `version` ones, which the database has already."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(_FOLDER), version_locations=[str(_FOLDER / "versions")])

    def steps(_heads: Any, _context: MigrationContext) -> Any:
        at = REVISIONS[version - 1] if version else "base"
        return scripts._upgrade_revs(REVISIONS[-1], at)  # as in alembic's documentation

    context = MigrationContext.configure(
        connection, opts={"fn": steps, "version_table": VERSION_TABLE, "script": scripts}
    )
    if version:
        context.stamp(scripts, REVISIONS[version - 1])
    with Operations.context(context):
        context.run_migrations()
