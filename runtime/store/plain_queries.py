"""Queries as text for the driver, which both readers (RunStore, Reader) use on both databases: the rows of a run,
counts of what happened in it, and leases; and what the driver returns as rows.

SQLAlchemy takes longer to write such a statement than a database to answer it, and each process writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.compiler.plan import OpKind
from ramify.runtime.records import ROOT, OpStatus, RunId
from ramify.runtime.store.stored_texts import ESCAPED, unescape_text

RUN = "SELECT * FROM runs WHERE id = ?"
ANSWERS = "SELECT * FROM answers ORDER BY n"
ANSWERS_OF_RUN = "SELECT * FROM answers WHERE run_id = ? ORDER BY n"


ATTEMPTS = 5
"""How often rows are read whose texts are missing. Another process may delete a run after its rows were read. If
texts are missing each time, the database is damaged."""


def of_run(table: str) -> str:
    """Return the query for the rows of a table of numbered rows. Its values: `since`."""
    return f"SELECT * FROM {table} WHERE run_id = ? AND seq >= ? ORDER BY seq, n"


def since(run_id: str, after: int) -> tuple[str, int]:
    return run_id, after + 1 if after else 0  # the first checkpoint has the number 0


def ledger(table: str) -> str:
    return f"SELECT * FROM {table} WHERE run_id = ? ORDER BY n"


def texts(count: int) -> str:
    return f"SELECT * FROM blobs WHERE digest IN ({', '.join('?' * count)})"


def as_rows(names: Sequence[str], fetched: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return rows as the columns `names` and the values of each row. Texts are as they were given."""
    found = [dict(zip(names, row, strict=True)) for row in fetched]
    for name, column in zip(names, zip(*fetched, strict=True), strict=False):
        if ESCAPED in "".join([value for value in column if type(value) is str]):  # rare
            for row in found:
                row[name] = unescape_text(row[name]) if type(row[name]) is str else row[name]
    return found


@dataclass(frozen=True, slots=True)
class Tally:
    """How many operations of each kind happened in a run so far."""

    steps: int = 0  # done, including reused ones
    reused: int = 0  # results taken from another branch or run
    failed: int = 0  # attempts that raised
    forks: int = 0  # branches besides the root on which something happened
    merges: int = 0
    llm_calls: int = 0


def ops_query(run_ids: str) -> str:
    """Return the query for one row per run: its id and the fields of a Tally, without the model calls. `run_ids`: the
    expression after IN."""
    done = f"status = '{OpStatus.DONE}'"
    step = f"kind = '{OpKind.RUN}' AND {done}"
    counts = {
        "steps": step,
        "reused": f"{step} AND reused_from IS NOT NULL",
        "failed": f"status = '{OpStatus.FAILED}'",
        "merges": f"kind = '{OpKind.MERGE}' AND {done}",
    }
    sums = ", ".join(f"sum(CASE WHEN {condition} THEN 1 ELSE 0 END) AS {name}" for name, condition in counts.items())
    forks = f"count(DISTINCT CASE WHEN branch <> '{ROOT}' THEN branch END) AS forks"
    return f"SELECT run_id, {sums}, {forks} FROM ops WHERE run_id IN {run_ids} GROUP BY run_id"


def llm_query(run_ids: str) -> str:
    """Return the query for the number of model calls per run. `run_ids`: the expression after IN."""
    return f"SELECT run_id, count(*) AS calls FROM llm WHERE run_id IN {run_ids} GROUP BY run_id"


def counted(
    run_ids: Sequence[RunId], ops: Iterable[Mapping[str, Any]], llm: Iterable[Mapping[str, Any]]
) -> dict[RunId, Tally]:
    """Combine the rows of both queries to one Tally per run."""
    done = {row["run_id"]: {name: row[name] for name in row if name != "run_id"} for row in ops}
    calls = {row["run_id"]: row["calls"] for row in llm}
    return {run_id: Tally(**done.get(run_id, {}), llm_calls=calls.get(run_id, 0)) for run_id in run_ids}


SERVER_NOW = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
"""PostgreSQL's expression of its present time, in Unix seconds."""


def leases_query(now: str, runs: str) -> str:
    """Return the query for leases. `now` and `runs`: SQL, the present time and a list of run ids."""
    return (
        f"SELECT run_id, owner, token, host, pid, taken_at, renewals, lasts_s, {now} - renewed_at AS age_s, "
        f"stop_until > {now} AS is_asked_to_stop, lock_folder FROM leases WHERE run_id IN ({runs})"
    )
