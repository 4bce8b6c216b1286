"""The query that reads leases, for SQLAlchemy and for `reader.py`, which does without it."""

from __future__ import annotations

SERVER_NOW = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
"""PostgreSQL's expression of its present time, in Unix seconds."""


def leases_query(now: str, runs: str) -> str:
    """Return the query for leases. `now` and `runs`: SQL, the present time and a list of run ids."""
    return (
        f"SELECT run_id, owner, token, host, pid, taken_at, renewals, lasts_s, {now} - renewed_at AS age_s, "
        f"stop_until > {now} AS is_asked_to_stop, lock_folder FROM leases WHERE run_id IN ({runs})"
    )
