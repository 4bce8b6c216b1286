"""Run alembic's migrations without ini file and env.py, in a transaction of the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from ramify.runtime.store.revisions import REVISIONS, VERSION_TABLE

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
