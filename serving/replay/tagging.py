"""The tags of a call, as its client would send them: limits always; lengths and later stages as far as is known."""

from __future__ import annotations

from ramify.serving.policy.types import SloClass
from ramify.serving.replay.lengths import Told
from ramify.serving.replay.types import Knowledge, Program, Stage, Structure
from ramify.serving.tags import SLOTags, XargValue

_TOKEN_S = 0.01  # only for shares of a deadline: what a token takes beside a second of tools


def tags_of(
    program: Program, stage: int, place: int, at: float, knows: Knowledge, told: Told
) -> dict[str, XargValue]:
    """`vllm_xargs` of the call at `place` among the program's, which arrives `at`."""
    sketch = told.sketch(knows, program.id, place, program.calls[place])
    quantiles = None if sketch is None else sketch.to_wire()
    if program.kind is not SloClass.COMPOUND:
        return SLOTags(
            slo_class=program.kind.value,
            slo_ttft_s=program.ttft_s,
            slo_tbt_s=program.tbt_s,
            slo_deadline_s=program.deadline_s,
            length_quantiles=quantiles,
        ).to_xargs()
    here = SLOTags(
        slo_class=program.kind.value,
        compound_id=str(program.id),
        compound_stage=stage,
        compound_width=len(program.stages[stage].calls),
        compound_deadline_s=program.deadline_s,
        length_quantiles=quantiles,
    ).to_xargs()
    if knows.structure is Structure.HIDDEN:
        return here
    rest = [one for later in program.stages[stage + 1 :] for one in _estimate(later, knows.structure)]
    planned = SLOTags(
        compound_stages=len(program.stages),
        compound_last=int(stage + 1 == len(program.stages)),
        compound_due_s=_due_left(program, stage, at, knows.structure),
        plan_rest=tuple(rest),
    ).to_xargs()
    return {**here, **planned}


def _estimate(stage: Stage, structure: Structure) -> tuple[float, float, float, float]:
    """Calls, prompt, answer and tools of a stage to come, as `StageEstimate` has them."""
    calls = len(stage.calls)
    if structure is Structure.ORACLE:
        prompt = sum(call.prompt for call in stage.calls) / calls
        return float(calls), prompt, sum(call.output for call in stage.calls) / calls, stage.tool_s
    return float(calls), stage.typical_prompt, stage.typical_output, 0.7


def _due_left(program: Program, stage: int, at: float, structure: Structure) -> float | None:
    """The stage's share of the deadline, D_s = φ(s)·D (thesis §4.1), by the typical length of what lies before it."""
    if program.deadline_s is None:
        return None
    walls = [_wall(s, structure) for s in program.stages]
    share = sum(walls[: stage + 1]) / sum(walls)
    return max(0.0, program.at + program.deadline_s * share - at)


def _wall(stage: Stage, structure: Structure) -> float:
    _, _, output, tools = _estimate(stage, structure)
    return tools + output * _TOKEN_S
