"""The calls that live workflows will make, from their plans: what `Lookahead` takes as `future`.

A plan is a compiled one (the tag `plan_rest`) or that of the most similar earlier workflow, which the analyzer finds.
A workflow reaches its next stage when its present one is done, so the queue there delays all that follows. One whose
tools take much longer than planned may be gone, and is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramify.serving.policy.types import StageEstimate
from ramify.serving.scaling.types import FutureCalls, PoolLoad

_GONE_S = 30.0  # beyond the planned time of a workflow's tools


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A later stage: how many calls come to which pool, how long each takes, and the tools before them."""

    pool: str
    calls: float
    service_s: float
    tool_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LiveWorkflow:
    """Where a workflow is, and its stages to come. `since_s`: how long ago its present stage began."""

    pool: str
    service_s: float  # of a call of its present stage
    since_s: float
    rest: tuple[PlannedStage, ...]
    tools: bool = False  # its tools run: then `rest[0]` is next, and `since_s` counts from their start


def planned(rest: Sequence[StageEstimate], pool: str, token_s: float, prefill_s: float) -> tuple[PlannedStage, ...]:
    """Stages of a plan as a pool sees them. `token_s`, `prefill_s`: seconds of a replica for a token each."""
    return tuple(
        PlannedStage(
            pool, stage.calls, stage.output_median * token_s + stage.prefill * prefill_s, stage.tool_s_before
        )
        for stage in rest
    )


def future_calls(workflows: Sequence[LiveWorkflow], pools: Mapping[str, PoolLoad]) -> Iterator[FutureCalls]:
    """The calls to come. Pools that are not known are passed by."""
    drain_s = {name: pool.queue / (pool.service_rate * max(1, pool.replicas)) for name, pool in pools.items()}
    for workflow in workflows:
        if workflow.tools and workflow.rest and workflow.since_s > workflow.rest[0].tool_s + _GONE_S:
            continue
        if workflow.tools:
            at = -workflow.since_s
        else:
            here = workflow.service_s + drain_s.get(workflow.pool, 0.0)
            at = max(workflow.service_s / 4, here - workflow.since_s)  # overdue: soon
        for stage in workflow.rest:
            at = max(0.0, at + stage.tool_s)
            if stage.pool in pools:
                yield FutureCalls(stage.pool, stage.calls, at, stage.service_s)
                at += drain_s[stage.pool]
            at += stage.service_s
