"""Questions to the analyzer, reports to it, and its answers, as plain data. Lengths in tokens, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramify.serving.policy.types import StageEstimate
from ramify.serving.protocol.length_sketch import LengthSketch

INTERVAL = 50  # tokens after which the length of an answer is predicted again (thesis §4.1)


@dataclass(frozen=True, slots=True)
class Ask:
    """A call whose length is to be predicted, before its first token or in the middle of its answer."""

    model: str
    prompt: str  # the last message, or all of them joined; only its two ends are looked at
    limit: int  # tokens at which the answer is cut: max_tokens, or what the context leaves
    app: str = ""
    stage: int = 0  # index in its compound request
    prompt_tokens: int = 0  # all prefilled tokens; 0: unknown
    messages: int = 1
    call: str = ""  # ties later reports about a call to earlier questions
    generated: int = 0  # tokens of the answer so far
    text: str = ""  # the answer so far


class Basis(StrEnum):
    """What a sketch is based on, from the best to the worst."""

    LEARNT = "learnt"  # the forest, which has seen this application and model
    THIN = "thin"  # the forest, but it has seen little of this application and model: widened towards the limit
    LAST = "last"  # the analyzer cannot be reached: its last forecast for such a call
    COLD = "cold"  # nothing is known: the limit is the bound


@dataclass(frozen=True, slots=True)
class Forecast:
    """The distribution of a call's length. `sketch` counts the whole answer, including what is generated."""

    sketch: LengthSketch
    basis: Basis
    fresh: bool = True  # False: the analyzer did not answer, and an older forecast is used


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that has ended, reported so that the analyzer learns."""

    ask: Ask  # as it was before the first token
    length: int
    cut: bool = False  # at its limit: the answer would have been longer
    bound: LengthSketch | None = None  # the sketch that scheduling used, for the live coverage


class Split(StrEnum):
    """How a deadline is split over stages. t is the time that a stage takes in the pattern."""

    ACCUMULATED = "t<=s / total"  # when the stage is due: the thesis's φ(s), §4.1
    SHARE = "t_s / total"  # what the stage may take of the whole (appendix A)
    REMAINING = "t_s / t>=s"  # what the stage may take of what is left (appendix A)


@dataclass(frozen=True, slots=True)
class Estimates:
    """What history says about a compound request of which `seen` stages are done.

    `rest` is what the policy reads, and what travels as the tag `plan_rest`; `share` splits a deadline over the
    stages. A compiled plan says the same about its own stages (`compiler.plan.Plan.rest_after`), and takes
    precedence.
    """

    seen: int
    times: tuple[float, ...]  # seconds of every stage: observed for those that are done, expected for later ones
    rest: tuple[StageEstimate, ...]  # the stages after those seen
    similarity: float = 1.0  # to the pattern, from 0 to 1

    @property
    def stages(self) -> int:
        return len(self.times)

    def share(self, stage: int, split: Split = Split.ACCUMULATED) -> float:
        """φ(s), or the same figure by another `split`; 1 for a stage beyond those expected."""
        if stage >= len(self.times) or (total := sum(self.times)) <= 0:
            return 1.0
        if split is Split.ACCUMULATED:
            return sum(self.times[: stage + 1]) / total
        if split is Split.SHARE:
            return self.times[stage] / total
        left = sum(self.times[stage:])
        return self.times[stage] / left if left > 0 else 1.0

    def to_plan_rest(self) -> tuple[float, ...]:
        """The tag `plan_rest`: four numbers for each later stage."""
        return tuple(
            value
            for stage in self.rest
            for value in (stage.calls, stage.prefill, stage.output_median, stage.tool_s_before)
        )
