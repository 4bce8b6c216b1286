"""What is still to come of a compound request, from its compiled plan or from history, as one value.

`rest` is what the policy reads and what travels as `plan_rest`; `shares` splits a deadline over the stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from ramify.serving.policy.types import StageEstimate


class Origin(StrEnum):
    PLAN = "plan"  # the compiler saw the stages
    HISTORY = "history"  # a like request's pattern


class Split(StrEnum):
    """How a deadline is split over stages; t is the time that a stage takes in the pattern."""

    ACCUMULATED = "t<=s / total"  # the thesis's φ(s), §4.1: when the stage is due
    SHARE = "t_s / total"  # appendix A: what the stage may take, of the whole
    REMAINING = "t_s / t>=s"  # appendix A: what the stage may take, of what is left


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds a token, where only a plan's token counts are known. The defaults are a fit for an H200 with an 8B
    model at a moderate batch."""

    prefill_s: float = 0.0185e-3
    decode_s: float = 10e-3

    def seconds(self, stage: StageEstimate) -> float:
        """A stage's calls run side by side: it takes as long as one of them, after its tools."""
        return stage.tool_s_before + stage.prefill * self.prefill_s + stage.output_median * self.decode_s


@dataclass(frozen=True, slots=True)
class Estimates:
    """Of a compound request of which `seen` stages are done."""

    origin: Origin
    seen: int
    times: tuple[float, ...]  # seconds of every stage: done ones as observed, later ones as expected
    rest: tuple[StageEstimate, ...]  # the stages after those seen
    similarity: float = 1.0  # to the pattern, 0 to 1; 1 for a plan

    @property
    def stages(self) -> int:
        return len(self.times)

    @property
    def rest_s(self) -> float:
        """Seconds still to come."""
        return sum(self.times[self.seen :])

    def share(self, stage: int, split: Split = Split.ACCUMULATED) -> float:
        """φ(s), or what one of the alternatives has in its place; 1 for a stage beyond those expected."""
        if stage >= len(self.times) or (total := sum(self.times)) <= 0:
            return 1.0
        if split is Split.ACCUMULATED:
            return sum(self.times[: stage + 1]) / total
        if split is Split.SHARE:
            return self.times[stage] / total
        left = sum(self.times[stage:])
        return self.times[stage] / left if left > 0 else 1.0

    def due(self, stage: int, deadline: float) -> float:
        """D_s = φ(s)·D: seconds from the request's arrival until its stage `stage` is due."""
        return self.share(stage) * deadline

    def to_plan_rest(self) -> tuple[float, ...]:
        """The tag `plan_rest`: four numbers a later stage."""
        return tuple(
            value
            for stage in self.rest
            for value in (stage.calls, stage.prefill, stage.output_median, stage.tool_s_before)
        )


def from_plan(stages: Sequence[StageEstimate], *, seen: int = 0, pace: Pace | None = None) -> Estimates:
    """The estimates of a compiled plan, whose stages are all given."""
    pace = pace or Pace()
    return Estimates(Origin.PLAN, seen, tuple(map(pace.seconds, stages)), tuple(stages[seen:]))


def due_times(estimates: Estimates, deadline: float) -> tuple[float, ...]:
    """D_s for every stage, not falling; the last is the deadline."""
    total = sum(estimates.times)
    if total <= 0:
        return tuple(deadline for _ in estimates.times)
    return tuple(deadline * done / total for done in accumulate(estimates.times))
