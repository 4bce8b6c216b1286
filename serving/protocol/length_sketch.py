"""The length of an answer as a distribution that travels with the call, in the tag `length_quantiles`.

The analyzer predicts once, before the first token. From then on the holder of the call (gateway, engine or replay)
refines the sketch itself. A call that has generated g tokens and goes on has a length above g; conditioning the
distribution on that needs no model and no message, and takes a few microseconds. (The thesis asks its forest again
each time, which takes 7 ms, §4.1.) The engine's scheduler loop imports this module: standard library only.

The quantile function is linear between its knots. Conditioning keeps the knots above g, so that conditioning on a and
then on b > a equals conditioning on b. Lengths are tokens of one answer, taken as continuous.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

# The levels of `length_quantiles`, one value each, in this order. The upper tail is dense: after g tokens, the 95 %
# bound is the quantile 1 - .05 * P(length > g), so when few calls survive, levels far above .95 are needed.
# fmt: off
LEVELS: tuple[float, ...] = (
    0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85,
    0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1.0,
)
# fmt: on

LONGEST = 1e9
"""Tokens: above any length. A product of a few such numbers is still finite."""

# The expected length of an answer that outlives its sketch, as a multiple of its length so far. All that is known is
# that the model was wrong. Doubling bounds the regret by a factor, wherever the end is.
_OUTLIVED = 2.0


@dataclass(frozen=True, slots=True)
class LengthSketch:
    """A distribution of output length in tokens: `values[i]` is its quantile at `levels[i]`.

    Levels rise strictly from 0 to 1. Values never fall and are not negative. Raises ValueError otherwise.
    """

    levels: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        levels, values = self.levels, self.values
        if len(levels) != len(values) or len(levels) < 2:
            raise ValueError(
                f"a length sketch needs one value for each level: {len(levels)} levels, {len(values)} values"
            )
        if levels[0] != 0.0 or levels[-1] != 1.0 or not all(a < b for a, b in pairwise(levels)):
            raise ValueError(f"a length sketch's levels must rise from 0 to 1, got {levels}")
        if not isfinite(values[-1]) or values[0] < 0 or not all(a <= b for a, b in pairwise(values)):
            raise ValueError(f"a length sketch's values must be finite, not negative and not fall, got {values}")

    @classmethod
    def from_wire(cls, quantiles: Sequence[float]) -> LengthSketch:
        """Read `length_quantiles`. Raises ValueError unless it holds one value for each of `LEVELS`."""
        if len(quantiles) != len(LEVELS):
            raise ValueError(f"length_quantiles needs {len(LEVELS)} values, one for each level, got {len(quantiles)}")
        try:
            return cls(LEVELS, tuple(map(float, quantiles)))
        except OverflowError as error:
            raise ValueError(f"length_quantiles: {error}") from error

    @classmethod
    def cold(cls, limit: float) -> LengthSketch:
        """The sketch when only the `limit` is known (max_tokens, or what the context leaves).

        It is safe: its 95 % bound is the limit itself. Below it, lengths of each magnitude are equally likely.
        """
        limit = max(1.0, limit)
        return cls(LEVELS, tuple(min(limit, float(limit ** (level / 0.95))) for level in LEVELS))

    @classmethod
    def known(cls, length: float) -> LengthSketch:
        """A sketch of a length that is given, as in a replay with an oracle."""
        return cls((0.0, 1.0), (length, length))

    def to_wire(self) -> tuple[float, ...]:
        """The `length_quantiles`: exact for a predicted sketch, sampled at `LEVELS` for a conditioned one."""
        return self.values if self.levels == LEVELS else tuple(self._at(level) for level in LEVELS)

    def cdf(self, length: float) -> float:
        """P(length <= `length`)."""
        values, levels = self.values, self.levels
        i = bisect_right(values, length)
        if i == 0:
            return 0.0
        if i == len(values):
            return 1.0
        low, high = values[i - 1], values[i]
        return levels[i - 1] + (levels[i] - levels[i - 1]) * (length - low) / (high - low)

    def quantile(self, q: float, generated: float = 0) -> float:
        """The length that the answer stays within with probability `q`, given that it exceeds `generated` tokens.

        It counts the whole answer, including the generated part, and is never below `generated`.
        """
        done = self.cdf(generated) if generated > 0 else 0.0
        if done >= 1.0:
            return generated * (1 + (_OUTLIVED - 1) * q)
        return max(generated, self._at(done + q * (1.0 - done)))

    def quantiles(self, first: float, second: float, generated: float = 0) -> tuple[float, float]:
        """Two quantiles at once, in half the time of two calls of `quantile`: the scheduler asks both of every
        call."""
        levels, values, done = self.levels, self.values, 0.0
        if generated > 0 and (i := bisect_right(values, generated)):
            if i < len(values):
                low, high = values[i - 1], values[i]
                done = levels[i - 1] + (levels[i] - levels[i - 1]) * (generated - low) / (high - low)
            if i == len(values) or done >= 1.0:
                return generated * (1 + (_OUTLIVED - 1) * first), generated * (1 + (_OUTLIVED - 1) * second)
        found = []
        for q in (first, second):
            level = done + q * (1.0 - done)
            i = bisect_right(levels, level)
            if i == len(levels):
                found.append(max(generated, values[-1]))
                continue
            low, below = levels[i - 1], values[i - 1]
            found.append(max(generated, below + (values[i] - below) * (level - low) / (levels[i] - low)))
        return found[0], found[1]

    def mean(self, generated: float = 0) -> float:
        """The expected length, given that it exceeds `generated` tokens."""
        sketch = self.condition(generated) if generated > 0 else self
        levels, values = sketch.levels, sketch.values
        area = 0.0
        for i in range(1, len(levels)):
            area += (levels[i] - levels[i - 1]) * (values[i] + values[i - 1])
        return area / 2

    def condition(self, generated: float) -> LengthSketch:
        """The distribution of the length, given that it exceeds `generated` tokens."""
        i = bisect_right(self.values, generated)
        if i == 0:
            return self
        if i == len(self.values):
            return _trusted((0.0, 1.0), (generated, generated * _OUTLIVED))
        done = self.cdf(generated)
        if done >= 1.0:  # rounding, just below the last value
            return _trusted((0.0, 1.0), (generated, self.values[-1]))
        scale = 1.0 / (1.0 - done)
        levels = [0.0]
        levels += [(level - done) * scale for level in self.levels[i:-1]]
        levels.append(1.0)
        if len(levels) > 2 and (levels[1] <= 0.0 or levels[-2] >= 1.0):  # rounding, close to a knot
            return self._condition_near_knot(levels, generated, i)
        return _trusted(tuple(levels), (generated, *self.values[i:]))

    def capped(self, limit: float) -> LengthSketch:
        """The same sketch for an answer that is cut at `limit` (max_tokens)."""
        if self.values[-1] <= limit:
            return self
        return _trusted(self.levels, tuple(min(value, limit) for value in self.values))

    def _condition_near_knot(self, levels: list[float], generated: float, i: int) -> LengthSketch:
        kept = [(a, v) for a, v in zip(levels[1:-1], self.values[i:-1], strict=True) if 0.0 < a < 1.0]
        ends = ((0.0, generated), *kept, (1.0, self.values[-1]))
        return _trusted(tuple(a for a, _ in ends), tuple(v for _, v in ends))

    def _at(self, level: float) -> float:
        levels, values = self.levels, self.values
        i = bisect_right(levels, level)
        if i == len(levels):
            return values[-1]
        low = levels[i - 1]
        return values[i - 1] + (values[i] - values[i - 1]) * (level - low) / (levels[i] - low)


def _trusted(levels: tuple[float, ...], values: tuple[float, ...]) -> LengthSketch:
    """A sketch without the checks, which take most of a refinement's time, for levels and values known to be
    right."""
    sketch = object.__new__(LengthSketch)
    object.__setattr__(sketch, "levels", levels)
    object.__setattr__(sketch, "values", values)
    return sketch
