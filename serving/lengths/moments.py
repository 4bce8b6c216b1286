"""Bounds for what remains that hold at every moment of asking: the moments are the Mondrian categories.

A forest that is asked in the middle of an answer predicts what is still to come. Its 95 % bound is right on average
and wrong where it is asked late: few answers got so far, and the forest knows those least. So its hazard beyond the
median is scaled by a factor that depends on the tokens generated so far, as conformal.py scales by the length
reached. Each category gets the largest factor, at most 1, for which its own misses are few enough. A later category's
factor is no larger than an earlier one's, because less is known there.

Moments of answers to one prompt are not independent witnesses. So the misses allowed are those of as many witnesses
as there are prompts in the category, as a share of its moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ramify.serving.lengths.conformal import ALPHA, TIGHTEST, WIDEST, allowed_misses, at, halves
from ramify.serving.lengths.forest import Flags, Floats, Ints

_FEWEST = 65  # prompts in a category; with fewer, no number of hits would show the target coverage


@dataclass(frozen=True, slots=True, eq=False)
class MomentCalibration:
    """Factors on the hazard: `factors[i]` for a question from `edges[i]` tokens up to the next edge."""

    edges: Floats
    factors: Floats

    @classmethod
    def none(cls) -> MomentCalibration:
        return cls(np.zeros(1), np.ones(1))

    def apply(self, survival: Floats, generated: Floats) -> Floats:
        """The survival functions (rows, grid) of what remains, each asked after so many tokens."""
        plain, tail = halves(survival)
        factors = self.factors[np.searchsorted(self.edges, generated, side="right") - 1]
        return np.asarray(np.exp(plain + tail * factors[:, None]))


@dataclass(frozen=True, slots=True, eq=False)
class Witnesses:
    """Moments of answers that the predictor had not seen, as columns."""

    rest: Floats  # tokens that still came
    cut: Flags  # cut at their limit: they can show a miss, but no hit
    generated: Floats  # tokens at the moment of asking
    groups: Ints  # the prompt


def calibrate(survival: Floats, grid: Floats, seen: Witnesses) -> MomentCalibration:
    """Fit the factors. `survival` is (moments, grid), predicted by forests that had not seen these prompts."""
    edges = _edges(seen.generated, seen.groups)
    if edges is None:
        return MomentCalibration.none()
    plain, tail = halves(survival)
    # A bound is exceeded when the scaled log survival at the end is below log ALPHA, so from this factor on.
    missed_from = (-np.log(ALPHA) + at(plain, grid, seen.rest)) / np.maximum(-at(tail, grid, seen.rest), 1e-12)
    factors = []
    for low, high in pairwise([*edges, np.inf]):
        inside = (seen.generated >= low) & (seen.generated < high)
        prompts = len(np.unique(seen.groups[inside & ~seen.cut]))
        allowed = max(0, allowed_misses(prompts)) * int((inside & ~seen.cut).sum()) // max(1, prompts)
        factors.append(np.sort(missed_from[inside])[allowed])
    return MomentCalibration(edges, np.clip(np.minimum.accumulate(factors), WIDEST, TIGHTEST))


def _edges(generated: Floats, groups: Ints) -> Floats | None:
    """Where categories begin. They are drawn from the deepest moment back, and each holds `_FEWEST` prompts. None if
    all moments together hold fewer."""
    order = np.argsort(-generated, kind="stable")
    edges: list[float] = []
    prompts: set[int] = set()
    for i, row in enumerate(order):
        prompts.add(int(groups[row]))
        last_of_its_moment = i + 1 == len(order) or generated[order[i + 1]] < generated[row]
        if last_of_its_moment and len(prompts) >= _FEWEST:
            edges.append(float(generated[row]))
            prompts.clear()
    if not edges:
        return None
    edges[-1] = 0.0  # too little is left before the earliest category for one of its own
    return np.array(edges[::-1])
