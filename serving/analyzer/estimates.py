"""What is still to come of a compound request by the history of like ones, as one value.

`rest` is what the policy reads and what travels as `plan_rest`; `share` splits a deadline over the stages. A compiled
plan says the same of its stages by itself (`compiler.plan.Plan.rest_after`), and is asked first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramify.serving.policy.types import StageEstimate


class Split(StrEnum):
    """How a deadline is split over stages; t is the time that a stage takes in the pattern."""

    ACCUMULATED = "t<=s / total"  # the thesis's φ(s), §4.1: when the stage is due
    SHARE = "t_s / total"  # appendix A: what the stage may take, of the whole
    REMAINING = "t_s / t>=s"  # appendix A: what the stage may take, of what is left


@dataclass(frozen=True, slots=True)
class Estimates:
    """Of a compound request of which `seen` stages are done."""

    seen: int
    times: tuple[float, ...]  # seconds of every stage: done ones as observed, later ones as expected
    rest: tuple[StageEstimate, ...]  # the stages after those seen
    similarity: float = 1.0  # to the pattern, 0 to 1

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

    def to_plan_rest(self) -> tuple[float, ...]:
        """The tag `plan_rest`: four numbers a later stage."""
        return tuple(
            value
            for stage in self.rest
            for value in (stage.calls, stage.prefill, stage.output_median, stage.tool_s_before)
        )
