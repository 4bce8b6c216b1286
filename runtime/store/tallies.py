"""How much was done in a run, counted by the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, distinct, func, select

from ramify.compiler.plan import OpKind
from ramify.runtime.records import ROOT, OpStatus, RunId
from ramify.runtime.store.tables import llm, ops


@dataclass(frozen=True, slots=True)
class Tally:
    """What happened in a run so far."""

    steps: int = 0  # done, those taken over included
    reused: int = 0  # taken over from another branch or run
    failed: int = 0  # attempts that raised
    forks: int = 0  # worlds forked: branches, beside the root, on which something happened
    merges: int = 0
    llm_calls: int = 0


def ops_query(run_ids: Sequence[RunId]) -> Select[Any]:
    """One row a run: its id and a Tally's fields, but for the model calls."""

    def count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
        return func.sum(case((and_(*conditions), 1), else_=0))

    step, done = ops.c.kind == OpKind.RUN, ops.c.status == OpStatus.DONE
    return (
        select(
            ops.c.run_id,
            count(step, done).label("steps"),
            count(step, done, ops.c.reused_from.is_not(None)).label("reused"),
            count(ops.c.status == OpStatus.FAILED).label("failed"),
            func.count(distinct(case((ops.c.branch != ROOT, ops.c.branch)))).label("forks"),
            count(ops.c.kind == OpKind.MERGE, done).label("merges"),
        )
        .where(ops.c.run_id.in_(run_ids))
        .group_by(ops.c.run_id)
    )


def llm_query(run_ids: Sequence[RunId]) -> Select[Any]:
    return select(llm.c.run_id, func.count().label("calls")).where(llm.c.run_id.in_(run_ids)).group_by(llm.c.run_id)
