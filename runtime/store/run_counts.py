"""How much was done in a run, counted by the database. Plain SQL, which both databases and both readers take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.compiler.plan import OpKind
from ramify.runtime.records import ROOT, OpStatus, RunId


@dataclass(frozen=True, slots=True)
class Tally:
    """What happened in a run so far."""

    steps: int = 0  # done, those taken over included
    reused: int = 0  # taken over from another branch or run
    failed: int = 0  # attempts that raised
    forks: int = 0  # worlds forked: branches, beside the root, on which something happened
    merges: int = 0
    llm_calls: int = 0


def ops_query(run_ids: str) -> str:
    """One row a run: its id and a Tally's fields, but for the model calls. `run_ids`: what stands behind IN."""
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
    return f"SELECT run_id, count(*) AS calls FROM llm WHERE run_id IN {run_ids} GROUP BY run_id"


def counted(
    run_ids: Sequence[RunId], ops: Iterable[Mapping[str, Any]], llm: Iterable[Mapping[str, Any]]
) -> dict[RunId, Tally]:
    """From the rows of both queries."""
    done = {row["run_id"]: {name: row[name] for name in row if name != "run_id"} for row in ops}
    calls = {row["run_id"]: row["calls"] for row in llm}
    return {run_id: Tally(**done.get(run_id, {}), llm_calls=calls.get(run_id, 0)) for run_id in run_ids}
