"""The tags that a call's client would send: `tags_of`, and `LengthHints`, which makes up the predicted lengths in
them.

A trace has lengths and no prompts, so no predictor can be asked. What a predictor would know is generated, and it
is calibrated by construction: a Gaussian copula between the prediction and the truth (docs/decisions/055). Let z be
the normal score of the true length among all lengths of the trace. The predictor sees s = r·z + sqrt(1 - r²)·e.
Then z given s is normal with mean r·s and variance 1 - r², and the quantile at level q is the trace's own at Φ(r·s
+ sqrt(1 - r²)·Φ⁻¹(q)). The number r is measured on held-out prompts. With r = 0 only the distribution is known,
with r = 1 the length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from random import Random
from statistics import NormalDist

from benchmarks.replay.types import Call, Knowledge, Lengths, Program, ProgramId, Stage, Structure
from ramify.serving.policy.types import SloClass
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch
from ramify.serving.protocol.tags import SLOTags, XargValue

_NORMAL = NormalDist()
_EDGE = 1e-4  # ends of a distribution, as quantiles, so that no score is infinite


class LengthHints:
    """Length sketches for the calls of one workload. They depend on the seed and the call, not on the order of
    calls.
    """

    def __init__(self, lengths: Sequence[int], seed: int) -> None:
        self._sorted = sorted(lengths)
        self._seed = seed
        self._mean = LengthSketch(LEVELS, tuple(self._quantile(level) for level in LEVELS))

    def sketch(self, knows: Knowledge, program: ProgramId, place: int, call: Call) -> LengthSketch | None:
        """Return the sketch of the call at `place` in its program; None if the scheduler is told nothing."""
        match knows.lengths:
            case Lengths.NONE:
                return None
            case Lengths.MEAN:
                return self._mean
            case Lengths.ORACLE:
                return LengthSketch.known(float(call.output))
            case Lengths.PREDICTED:
                return self._predicted(knows.correlation, program, place, call.output)

    def _predicted(self, r: float, program: int, place: int, length: int) -> LengthSketch:
        chance = Random(f"{self._seed}/{program}/{place}")
        below, upto = bisect_left(self._sorted, length), bisect_right(self._sorted, length)
        rank = (below + chance.random() * max(1, upto - below)) / len(self._sorted)
        z = _NORMAL.inv_cdf(min(max(rank, _EDGE), 1 - _EDGE))
        seen = r * z + sqrt(1 - r * r) * chance.gauss(0, 1)
        spread = sqrt(1 - r * r)
        values = tuple(self._quantile(_NORMAL.cdf(r * seen + spread * score)) for score in _level_scores())
        return LengthSketch(LEVELS, values)

    def _quantile(self, level: float) -> float:
        at = level * (len(self._sorted) - 1)
        low = int(at)
        if low + 1 >= len(self._sorted):
            return float(self._sorted[-1])
        return self._sorted[low] + (self._sorted[low + 1] - self._sorted[low]) * (at - low)


@lru_cache(maxsize=1)
def _level_scores() -> tuple[float, ...]:
    return tuple(_NORMAL.inv_cdf(min(max(level, _EDGE), 1 - _EDGE)) for level in LEVELS)


_TOKEN_S = 0.01  # seconds of a token beside a second of tools, for shares of a deadline only


def tags_of(
    program: Program, stage: int, place: int, at: float, knows: Knowledge, told: LengthHints
) -> dict[str, XargValue]:
    """Return the `vllm_xargs` of the call at `place` in its program, which arrives at the time `at`."""
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
    """Return calls, prompt tokens, answer tokens and tool seconds of a later stage, as in `StageEstimate`."""
    calls = len(stage.calls)
    if structure is Structure.ORACLE:
        prompt = sum(call.prompt for call in stage.calls) / calls
        return float(calls), prompt, sum(call.output for call in stage.calls) / calls, stage.tool_s
    return float(calls), stage.typical_prompt, stage.typical_output, 0.7


def _due_left(program: Program, stage: int, at: float, structure: Structure) -> float | None:
    """Return the seconds left until the stage's share of the deadline, D_s = φ(s)·D (thesis §4.1), by typical
    lengths.
    """
    if program.deadline_s is None:
        return None
    walls = [_wall(s, structure) for s in program.stages]
    share = sum(walls[: stage + 1]) / sum(walls)
    return max(0.0, program.at + program.deadline_s * share - at)


def _wall(stage: Stage, structure: Structure) -> float:
    _, _, output, tools = _estimate(stage, structure)
    return tools + output * _TOKEN_S
