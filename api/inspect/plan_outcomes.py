"""A run's plan beside what happened: how often each operation ran, its expected and its actual duration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ramify.compiler.plan import STEPS, OpKind, Plan, PlanOp
from ramify.runtime.records import WARM, LLMRecord, OpRecord, OpStatus, RunRecord, RunStatus

if TYPE_CHECKING:
    from ramify.runtime.estimates.recorded_runs import CallStage, RecordedEstimates


@dataclass(frozen=True, slots=True)
class OpOutcome:
    """One operation of the plan, and what happened to it in this run."""

    op: str
    kind: str
    step: str | None
    site: str | None
    done: int  # 0: skipped
    reused: int
    failed: int
    snapshots: int  # new ones
    predicted_s: float | None  # each time, by the plan or by other runs of the workflow
    took_s: float | None  # the median


def story(
    op: PlanOp,
    plan: Plan,
    run: RunRecord,
    rows: Sequence[OpRecord],
    llm: Sequence[LLMRecord],
    others: RecordedEstimates,
) -> OpOutcome:
    mine = [row for row in rows if row.op_id == op.id and row.kind is not OpKind.COMMAND]
    done = [row for row in mine if row.status is OpStatus.DONE]
    times = [row.ended_at - row.started_at for row in done if row.reused_from is None]
    number = len(done)
    if op.kind is OpKind.CALL_LLM:
        stages = _stages(row for row in llm if row.op_id == op.id)
        times, number = [stage.seconds for stage in stages], len(stages)
    elif op.kind is OpKind.BARRIER:
        times, number = [], sum(row.attrs.get("barrier") == op.id for row in rows)
    elif op.kind is OpKind.ENTER:
        number = 1
    elif op.kind is OpKind.RELEASE and "fork" not in op.attrs:
        number = int(run.status is RunStatus.DONE)
    return OpOutcome(
        op=op.id,
        kind=op.kind.value,
        step=op.step,
        site=None if op.site is None else str(op.site),
        done=number,
        reused=sum(row.reused_from is not None for row in done),
        failed=sum(row.status is OpStatus.FAILED for row in mine),
        snapshots=len({row.snapshot_out for row in done if op.kind in _SNAPSHOTS and row.snapshot_out}),
        predicted_s=_predicted(op, plan, others),
        took_s=median(times) if times and op.kind in _TIMED else None,
    )


_SNAPSHOTS = (OpKind.SEAL, OpKind.MERGE, OpKind.BREAK)
_TIMED = STEPS | {OpKind.CALL_LLM, OpKind.PREFORK, OpKind.MERGE, OpKind.BREAK}


def _stages(llm: Iterable[LLMRecord]) -> list[CallStage]:
    """The stages of model calls in these rows."""
    from ramify.runtime.estimates.recorded_runs import call_stages

    return call_stages(llm)


def _predicted(op: PlanOp, plan: Plan, others: RecordedEstimates) -> float | None:
    planned = [stage.seconds for stage in plan.expected if stage.op == op.id]
    if planned:
        return planned[0]
    if op.kind is OpKind.CALL_LLM:
        seen = others.calls(op.id)
        return None if seen is None else seen.seconds
    return others.step_s(op.step or "") if op.kind in STEPS else None


@dataclass(frozen=True, slots=True)
class KeptWarm:
    """What was kept ready for forks of the snapshots of one operation."""

    op: str
    times: int  # snapshots with this decision
    kept: str  # what, and what decided it: the plan, or memory
    until: tuple[str, ...]  # the operations after which nothing goes back to such a snapshot, by the plan


def kept_warm(plan: Plan, rows: Sequence[OpRecord]) -> list[KeptWarm]:
    """The decisions that the run recorded, in the order of the plan."""
    told = Counter((row.op_id, row.attrs[WARM]) for row in rows if WARM in row.attrs and row.status is OpStatus.DONE)
    return [
        KeptWarm(op.id, times, kept, tuple(op.attrs.get("dies", ())))
        for op in plan.ops
        for (made_by, kept), times in told.items()
        if made_by == op.id
    ]


def stage_error(plan: Plan, llm: Sequence[LLMRecord]) -> float | None:
    """The median of |predicted - actual| / actual over the stages that the plan expected; None without any."""
    expected = {stage.op: stage.seconds for stage in plan.expected}
    seen = [(expected[stage.op], stage.seconds) for stage in _stages(llm) if stage.op in expected]
    off = [abs(said - took) / took for said, took in seen if took > 0]
    return median(off) if off else None
