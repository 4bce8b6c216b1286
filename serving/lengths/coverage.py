"""Live coverage: of the calls still running after g tokens, how many ended within their 95 % bound of that moment.

The bound of a moment is the one that scheduling had then: predicted again from the text if it was, else the sketch of
the beginning, conditioned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from ramify.serving.lengths.forest import Floats
from ramify.serving.protocol.length_sketch import LengthSketch

NOMINAL = 0.95
# The moments that are judged: every 50 tokens (the thesis's interval) while most answers run, then rarer.
BINS = (0, 50, 100, 150, 200, 300, 400, 500, 600, 800, 1000, 1500, 2000, 3000, 4000, 8000)
_Z = 1.6449  # one-sided 95 %
_FADE = 0.999  # the weight of a call after each later one: about the last thousand count


@dataclass(frozen=True, slots=True)
class BinCoverage:
    """The coverage after `generated` tokens."""

    generated: int
    survivors: float  # calls that came so far, with recent ones counting most
    covered: float  # the share of them that ended within their bound
    lower: float  # the one-sided 95 % lower limit of that share (Wilson)
    reserved: float  # tokens that the bound reserved beyond g, for each token that came


class Coverage:
    """Counts that fade, so that they describe the present."""

    def __init__(self, counts: Floats | None = None) -> None:
        """`counts`: the result of `array`. Raises ValueError for another shape."""
        self._bins = [[0.0, 0.0, 0.0, 0.0] for _ in BINS]  # survivors, covered, reserved tokens, tokens that came
        if counts is not None:
            if counts.shape != (len(BINS), 4):
                raise ValueError(f"counts of shape {counts.shape} are not those of {len(BINS)} bins")
            self._bins = counts.tolist()

    def array(self) -> Floats:
        """The counts, for a checkpoint."""
        return np.array(self._bins)

    def add(self, bound: LengthSketch, length: int, cut: bool, asked: Sequence[tuple[int, float]] = ()) -> None:
        """Count a call that ended at `length`. A call that was cut at its limit says nothing if its bound is not
        below.

        bound: of its beginning. asked: later moments (tokens generated, bound) at which it was predicted again. The
        first in each bin is judged; without one, the bound of the beginning, conditioned.
        """
        later = dict(reversed([(bisect_right(BINS, generated), (generated, high)) for generated, high in asked]))
        for i, (counts, begin) in enumerate(zip(self._bins, BINS, strict=True)):
            if length <= begin:
                break
            generated, high = later.get(i + 1) or (begin, bound.quantile(NOMINAL, begin))
            if cut and high >= length:
                continue
            for k, more in enumerate((1.0, float(length <= high), high - generated, length - generated)):
                counts[k] = counts[k] * _FADE + more

    def __iter__(self) -> Iterator[BinCoverage]:
        """The bins that a call has reached."""
        for (survivors, covered, reserved, came), generated in zip(self._bins, BINS, strict=True):
            if survivors:
                share = covered / survivors
                yield BinCoverage(generated, survivors, share, wilson_lower(share, survivors), reserved / came)


def wilson_lower(share: float, n: float) -> float:
    """The one-sided 95 % lower limit of a share seen in `n` trials (Wilson's score interval)."""
    spread = _Z * sqrt(share * (1 - share) / n + _Z * _Z / (4 * n * n))
    return (share + _Z * _Z / (2 * n) - spread) / (1 + _Z * _Z / n)
