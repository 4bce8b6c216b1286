"""Which passes of the compiler made a difference to a plan, and why the others did not.

`Plan.passes` names the passes that ran. Their marks on the plan's operations show which of them found something.
"""

from __future__ import annotations

from collections.abc import Iterable

from ramify.compiler.passes.conflicts import CONFLICTS, WROTE
from ramify.compiler.passes.snapshots import DIES
from ramify.compiler.passes.steps import BESIDE, SHARED
from ramify.compiler.plan import PREFIX, STAGES, STEPS, Effect, OpKind, Plan

_GRAPH = "langgraph"


def without_effect(plan: Plan, deadline_s: float | None = None) -> dict[str, str]:
    """The reason for each pass that ran and changed nothing, by the pass's name. `deadline_s`: of the run; by default
    the plan's."""
    reasons = {
        "effects": _none_if(plan.steps, "there are no steps"),
        "conflicts": _none_if(
            _marked(plan, CONFLICTS, WROTE), "no steps on several branches are known to write one file"
        ),
        "fork_points": _none_if(_kinds(plan, OpKind.SEAL), "no step may change its world"),
        "placement": _placement(plan),
        "parallel": _none_if(
            _marked(plan, BESIDE),
            "LangGraph decides which nodes run at once" if plan.frontend == _GRAPH else "no step only reads",
        ),
        "common": _none_if(_marked(plan, SHARED), "no step declares that its results may be reused"),
        "lookahead": _none_if(
            _kinds(plan, OpKind.PREFORK) or _marked(plan, PREFIX),
            "no fork comes after a model call, and no long first prompt is in the code",
        ),
        "liveness": _none_if(
            _marked(plan, DIES),
            "LangGraph's checkpoints name every state" if plan.frontend == _GRAPH else "there is no snapshot",
        ),
        STAGES: _stages(plan, plan.deadline_s if deadline_s is None else deadline_s),
    }
    return {name: why for name in plan.passes if (why := reasons.get(name)) is not None}


def with_effect(plan: Plan, deadline_s: float | None = None) -> tuple[str, ...]:
    """The names of the passes that changed something."""
    idle = without_effect(plan, deadline_s)
    return tuple(name for name in plan.passes if name not in idle)


def _none_if(found: object, reason: str) -> str | None:
    return None if found else reason


def _marked(plan: Plan, *attributes: str) -> bool:
    return any(name in op.attrs for op in plan.ops for name in attributes)


def _kinds(plan: Plan, kind: OpKind) -> bool:
    return any(op.kind is kind for op in plan.ops)


def _placement(plan: Plan) -> str | None:
    """It removes the snapshot after a step: such a step has none."""
    if plan.frontend == _GRAPH:
        return "LangGraph keeps a checkpoint after every superstep"
    kept = {op.id for op in plan.ops if op.kind is OpKind.SEAL}
    reading = {step.name for step in plan.steps if step.effect is Effect.READONLY}
    runs = [op for op in plan.ops if op.kind in STEPS and op.step not in reading]
    removed = [op for op in runs if _takes_world(op.inputs) and f"seal.{op.id.removeprefix('run.')}" not in kept]
    return None if removed else "no step is known to be cheaper to run again than to snapshot"


def _takes_world(values: Iterable[str]) -> bool:
    return any(value.startswith("w") for value in values)


def _stages(plan: Plan, deadline_s: float | None) -> str | None:
    calls = _kinds(plan, OpKind.CALL_LLM) or plan.stages is not None or plan.expected
    if calls or deadline_s is not None:
        return None
    return "there is no deadline, and no recorded run shows its stages of model calls"
