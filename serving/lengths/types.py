"""What callers ask the analyzer and tell it, and what it answers. Plain data; lengths in tokens, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramify.serving.policy.types import StageEstimate
from ramify.serving.protocol.length_sketch import LengthSketch

INTERVAL = 50  # tokens after which an answer's length is predicted anew (thesis §4.1)


@dataclass(frozen=True, slots=True)
class Ask:
    """A call whose length is wanted, before its first token or in the middle of its answer."""

    model: str
    prompt: str  # the last message, or all of them joined; only its two ends are looked at
    limit: int  # tokens after which the answer is cut: max_tokens, or what the context leaves
    app: str = ""
    stage: int = 0  # index in its compound request
    prompt_tokens: int = 0  # all that is prefilled; 0: not known
    messages: int = 1
    call: str = ""  # ties what is told of it later to what was asked before
    generated: int = 0  # tokens of the answer so far
    text: str = ""  # the answer so far


class Basis(StrEnum):
    """What a sketch rests on, from the best to the least."""

    LEARNT = "learnt"  # the forest, which has seen this application and model
    THIN = "thin"  # the forest, but little was seen of this application and model: widened towards the limit
    LAST = "last"  # the analyzer cannot be reached: what it last said of such a call
    COLD = "cold"  # nothing is known: the limit is the bound


@dataclass(frozen=True, slots=True)
class Forecast:
    """The distribution of a call's length. `sketch` counts the whole answer, whatever is generated."""

    sketch: LengthSketch
    basis: Basis
    fresh: bool = True  # False: the analyzer did not answer, and scheduling goes on with what was known


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that came to its end, told so that the analyzer learns."""

    ask: Ask  # as it was before the first token
    length: int
    cut: bool = False  # by its limit: the answer would have been longer
    bound: LengthSketch | None = None  # what was shipped, for the live coverage


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
