"""The database of runs, journal rows, checkpoints, model calls, effects and answers, on SQLite or PostgreSQL.

Start at `run_store.py` (RunStore) and `tables.py`. Besides LangGraph's saver, only this package imports SQLAlchemy.

- `address.py`: where a database is; `engines.py`: connections to it; `database_errors.py`: its errors, with advice,
  and retries.
- `tables.py`: the present tables; `migrate.py` and `versions/` bring a database to them.
- `batch_writer.py`: a commit, as a job for the thread that writes, and how a batch of such jobs is written; the usual
  ones by `raw_sql_commits.py`.
- `rows.py`: records to rows and back; `stored_texts.py`, `blobs.py`: long texts, each stored once.
- `statements.py`: what is written; `run_committer.py`: the thread that writes, in group commits.
- `store_queries.py`: what RunStore reads; `plain_queries.py`: queries without SQLAlchemy's statements.
- `run_store.py`: RunStore; `reader.py`: its read methods for short commands, without SQLAlchemy.
- `run_locks.py`, `leases.py`, `lease_keeper.py`: one process per run, by file lock and lease.
- `pooler_check.py`: whether a pooler shares sessions.
- `readonly_sqlite.py`: files that cannot be written; `files_beside.py`: planted ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.runtime.store.plain_queries import Tally

if TYPE_CHECKING:
    from ramify.runtime.store.run_store import RunStore

__all__ = ["RunStore", "Tally"]


def __getattr__(name: str) -> object:
    if name == "RunStore":  # half a second of imports, which a `Reader` does without
        from ramify.runtime.store.run_store import RunStore

        return RunStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
