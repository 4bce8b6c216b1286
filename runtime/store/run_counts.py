"""Counts of what happened in a run, as plain SQL that both databases and both readers (RunStore, Reader) use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.compiler.plan import OpKind
from ramify.runtime.records import ROOT, OpStatus, RunId


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
