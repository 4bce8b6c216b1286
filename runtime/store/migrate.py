"""How a database gets to the present schema: an ordered tuple of functions, one a version.

The version stands in the database itself (`PRAGMA user_version`). A migration that was released is never edited:
what changes the schema is one more function at the end of `MIGRATIONS`, and the same change in `tables.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection

from ramify.runtime.errors import StoreError

V1 = """
CREATE TABLE blobs (digest TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE runs (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    workflow TEXT NOT NULL,
    frontend TEXT NOT NULL,
    workspace TEXT NOT NULL,
    base_snapshot TEXT NOT NULL,
    plan_blob TEXT NOT NULL REFERENCES blobs (digest),
    args_blob TEXT NOT NULL REFERENCES blobs (digest),
    settings_json TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    updated_at FLOAT NOT NULL,
    deadline_s FLOAT,
    consumed_s FLOAT NOT NULL,
    result_blob TEXT REFERENCES blobs (digest),
    error TEXT,
    thread_id TEXT
);
CREATE TABLE ops (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    key TEXT NOT NULL,
    op_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    branch TEXT NOT NULL,
    status TEXT NOT NULL,
    step TEXT,
    args_digest TEXT NOT NULL,
    result_blob TEXT REFERENCES blobs (digest),
    result_digest TEXT NOT NULL,
    snapshot_in TEXT,
    snapshot_out TEXT,
    lineage_key TEXT,
    reused_from TEXT,
    started_at FLOAT NOT NULL,
    ended_at FLOAT NOT NULL,
    summary TEXT NOT NULL,
    error TEXT,
    attrs_json TEXT NOT NULL,
    UNIQUE (run_id, seq)
);
CREATE INDEX ops_lineage ON ops (lineage_key);
CREATE INDEX ops_result_blob ON ops (result_blob);
CREATE TABLE llm (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    key TEXT NOT NULL,
    op_id TEXT NOT NULL,
    branch TEXT NOT NULL,
    step_key TEXT,
    request_blob TEXT NOT NULL REFERENCES blobs (digest),
    request_digest TEXT NOT NULL,
    result_blob TEXT NOT NULL REFERENCES blobs (digest),
    result_digest TEXT NOT NULL,
    tags_json TEXT NOT NULL,
    reused_from TEXT,
    started_at FLOAT NOT NULL,
    ended_at FLOAT NOT NULL,
    UNIQUE (run_id, seq)
);
CREATE INDEX llm_request_blob ON llm (request_blob);
CREATE INDEX llm_result_blob ON llm (result_blob);
CREATE TABLE checkpoints (
    n INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    branch TEXT NOT NULL,
    snapshot_id TEXT NOT NULL,
    content_key TEXT NOT NULL,
    parents_json TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    label TEXT NOT NULL
);
CREATE INDEX checkpoints_run ON checkpoints (run_id);
"""


def first_tables(connection: Connection) -> None:
    for statement in V1.split(";"):
        if statement.strip():
            connection.exec_driver_sql(statement)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (first_tables,)


def version_of(connection: Connection) -> int:
    """How many migrations this database has had."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def check(connection: Connection, path: Path) -> bool:
    """Whether the database is at the present version; False where `migrate` has work to do.

    Raises `StoreError` for a database that a newer ramify wrote, or that is none of ours.
    """
    version = version_of(connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer ramify (schema {version}, this one knows {len(MIGRATIONS)}): "
            "upgrade ramify, or use another home (--home DIR)"
        )
    if version == 0 and connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one():
        raise StoreError(f"{path} is a database of another program: use another home (--home DIR)")
    return version == len(MIGRATIONS)


def migrate(connection: Connection, path: Path) -> None:
    """Bring the database to the present version. The caller's write transaction makes it all or nothing."""
    if check(connection, path):  # asked again, under the lock: another process may have been first
        return
    for step in MIGRATIONS[version_of(connection) :]:
        step(connection)
    connection.exec_driver_sql(f"PRAGMA user_version = {len(MIGRATIONS)}")
