"""The time of a step of a measured run: a `StepModel` with what one long run shows and a line does not have.

Two things bend the line. The first tokens of a step cost next to nothing: its weights are read in any case, and a
matrix kernel works on as many rows at once. And a step with prompt tokens in it is not replayed as one captured
graph. Without them a fit takes from the fixed part what it gives to prompt tokens, and small batches come out too
fast (docs/decisions/064).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

_ROWS = 128  # tokens of a step that ride along


@dataclass(frozen=True, slots=True)
class Held:
    """What a step holds."""

    sequences: int
    context: int  # tokens, summed over the sequences
    tokens: int  # scheduled, of prompts and answers

    @property
    def prefill(self) -> int:
        return max(0, self.tokens - self.sequences)


@dataclass(frozen=True, slots=True)
class Timing:
    """The defaults are `StepModel`'s; of the last, which it lacks, a quarter of the fixed part. A fit moves all."""

    base_ms: float = 4.1
    per_seq_ms: float = 0.0055
    per_kctx_ms: float = 0.0334
    per_token_ms: float = 0.0185  # for each token beyond the first 128
    prompt_ms: float = 1.0  # where the step holds any prompt tokens

    def ms(self, held: Held) -> float:
        costs: tuple[float, ...] = astuple(self)
        return sum(cost * much for cost, much in zip(costs, terms(held), strict=True))

    def scaled(self, factor: float) -> Timing:
        """The same engine `factor` times slower."""
        return Timing(*(cost * factor for cost in astuple(self)))

    def halfway(self, other: Timing) -> Timing:
        return Timing(*((a + b) / 2 for a, b in zip(astuple(self), astuple(other), strict=True)))


def terms(held: Held) -> tuple[float, float, float, float, float]:
    """How much of each of a Timing's costs: in the order of its fields."""
    return 1.0, held.sequences, held.context / 1000, max(0, held.tokens - _ROWS), float(held.prefill > 0)
