"""Length bounds that hold for the calls still running, and not only on average over all calls.

Split conformal prediction corrects one quantile so that it holds marginally. Here the bound is asked for again and
again while an answer grows, and the calls asked about late are the long ones, where a forest is most wrong. Of its
95 % bounds, only .62 to .88 held (lower limits, deepest bins) after the first hundreds of tokens.

So the correction is applied to the hazard, where conditioning cannot undo it. With S the predicted survival function,
an answer that has reached g exceeds its bound when S(y)/S(g) < α. Scaling the hazard by a factor θ(x) that depends on
the length x reached turns that ratio into exp ∫ θ d log S from g to y, and whatever happened before g cancels. The
bins of g are the Mondrian categories. For each bin, c is the largest (tightest) constant for which the misses, among
the calibration answers that reached its beginning, are few enough to say with some confidence that `TARGET` are
covered.
A smaller θ makes no new miss, so the minimum of c over a bin and those before it is a θ that satisfies all bins at
once. From there each θ, the first one first, is raised as far as all bins allow. The last bins hold few answers, so
their bounds are wide: that is what is known there. (Choosing each θ greedily from the last bin back covers as well,
but leaves neighbours at 1.3 and .02, and reserves no less.)

The calibration answers are predicted by forests that have not seen their prompt (folds by prompt).

The second part (`calibrate_by_moment`) bounds what remains, so that the bounds hold at every moment of asking. There
the moments are the Mondrian categories.

A forest that is asked in the middle of an answer predicts what is still to come. Its 95 % bound is right on average
and wrong where it is asked late: few answers got so far, and the forest knows those least. So its hazard beyond the
median is scaled by a factor that depends on the tokens generated so far, as `Calibration` scales by the length
reached. Each category gets the largest factor, at most 1, for which its own misses are few enough. A later category's
factor is no larger than an earlier one's, because less is known there.

Moments of answers to one prompt are not independent witnesses. So the misses allowed are those of as many witnesses
as there are prompts in the category, as a share of its moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ramify.serving.lengths.forest import Flags, Floats, Ints

ALPHA = 0.05
TARGET = 0.955
CONFIDENCE = 0.95
_BY_LENGTH = 0.8  # the same, by the length reached: there each application's level adapts beyond that (`corrections`)
_FEWEST_ANSWERS = 40  # answers that reach the beginning of a bin, at least
_STEP = 0.75  # each bin begins where this share of the answers of the one before is left
TIGHTEST, WIDEST = 1.0, 0.02  # limits of θ: it never narrows what the forest says
_FLOOR = 1e-9  # survival below this counts as this, so that logarithms stay finite


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Factors θ on the hazard: `factors[i]` from `edges[i]` tokens to the next edge; the last one has no end."""

    edges: Floats
    factors: Floats

    @classmethod
    def none(cls) -> Calibration:
        return cls(np.zeros(1), np.ones(1))

    def apply(self, survival: Floats, grid: Floats) -> Floats:
        """The survival functions (rows, grid) with scaled hazards."""
        plain, tail = halves(survival)
        theta = self.factors[np.searchsorted(self.edges, grid, side="right") - 1]
        steps = np.diff(tail, axis=1) * theta[:-1]
        scaled = np.concatenate([tail[:, :1], tail[:, :1] + np.cumsum(steps, axis=1)], axis=1)
        return np.asarray(np.exp(plain + scaled))


def allowed_misses(survivors: int, confidence: float = CONFIDENCE) -> int:
    """The largest number of misses among `survivors` that still shows, with this confidence, a coverage of `TARGET`;
    -1 if even none would not."""
    from scipy.special import bdtr

    misses = np.arange(survivors + 1)
    chance = bdtr(misses, survivors, 1 - TARGET)  # of so few misses, if the coverage were only TARGET
    return int(np.searchsorted(chance, 1 - confidence, side="right")) - 1


def calibrate_by_length(survival: Floats, grid: Floats, lengths: Floats, cut: Flags) -> Calibration:
    """Fit θ on answers that the predictor had not seen. `survival` is (answers, grid).

    An answer that was cut at its limit counts as a miss if it shows one, but not as a hit.
    """
    edges = _length_edges(lengths)
    if len(lengths) < _FEWEST_ANSWERS:
        return Calibration.none()
    plain, tail = halves(survival)
    starts = np.stack([at(tail, grid, np.full(len(lengths), edge)) for edge in edges], axis=1)
    tail_end = at(tail, grid, lengths)[:, None]
    # mass[:, k]: the scaled part of an answer's hazard inside bin k, up to its end
    ends = np.concatenate([starts[:, 1:], tail_end], axis=1)
    mass = np.maximum(starts - np.maximum(ends, tail_end), 0.0) * (lengths[:, None] > edges)
    fixed = np.stack([at(plain, grid, np.full(len(lengths), edge)) for edge in edges], axis=1)
    left = -np.log(ALPHA) - np.maximum(fixed - at(plain, grid, lengths)[:, None], 0.0)  # for the scaled part, from k
    bins = [_Bin.of(lengths > edge, cut) for edge in edges]
    alone = [bins[k].largest(left[:, k], mass[:, k:].sum(axis=1)) for k in range(len(edges))]
    factors = np.clip(np.minimum.accumulate(alone), WIDEST, TIGHTEST)
    for k in range(len(edges)):
        others = mass * factors
        others[:, k] = 0.0
        bounds = [bins[j].largest(left[:, j] - others[:, j:].sum(axis=1), mass[:, k]) for j in range(k + 1)]
        factors[k] = np.clip(min(bounds), factors[k], TIGHTEST)
    return Calibration(edges, factors)


@dataclass(frozen=True, slots=True, eq=False)
class _Bin:
    """The calibration answers that reached the beginning of a bin."""

    reached: Flags
    allowed: int  # misses among them

    @classmethod
    def of(cls, reached: Flags, cut: Flags) -> _Bin:
        return cls(reached, max(0, allowed_misses(int((reached & ~cut).sum()), _BY_LENGTH)))

    def largest(self, left: Floats, scaled: Floats) -> float:
        """The largest factor on the hazard `scaled` for which no more than `allowed` answers exceed what is
        `left`."""
        missed_from = np.sort(np.maximum(left, 0.0)[self.reached] / np.maximum(scaled[self.reached], 1e-12))
        return float(missed_from[self.allowed]) if self.allowed < len(missed_from) else TIGHTEST


def halves(survival: Floats) -> tuple[Floats, Floats]:
    """log S as a sum of two terms: down to the median, which ranks calls and stays as the forest says, and below it,
    which bounds them and is scaled."""
    log = np.log(np.maximum(survival, _FLOOR))
    plain = np.maximum(log, np.log(0.5))
    return plain, log - plain


def _length_edges(lengths: Floats) -> Floats:
    """Where bins begin: each where `_STEP` of the answers that reached the one before are left."""
    ordered, edges, left = np.sort(lengths), [0.0], len(lengths) * _STEP
    while left >= _FEWEST_ANSWERS:
        edges.append(float(ordered[int(len(ordered) - left)]))
        left *= _STEP
    return np.unique(edges)


def at(log: Floats, grid: Floats, lengths: Floats) -> Floats:
    """Each row's function at that row's length, linear between the points of the grid."""
    right = np.clip(np.searchsorted(grid, lengths), 1, len(grid) - 1)
    rows = np.arange(len(lengths))
    share = np.clip((lengths - grid[right - 1]) / (grid[right] - grid[right - 1]), 0, 1)
    return np.asarray(log[rows, right - 1] * (1 - share) + log[rows, right] * share)


_FEWEST_PROMPTS = 65  # prompts in a category; with fewer, no number of hits would show the target coverage


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


def calibrate_by_moment(survival: Floats, grid: Floats, seen: Witnesses) -> MomentCalibration:
    """Fit the factors. `survival` is (moments, grid), predicted by forests that had not seen these prompts."""
    edges = _moment_edges(seen.generated, seen.groups)
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


def _moment_edges(generated: Floats, groups: Ints) -> Floats | None:
    """Where categories begin. They are drawn from the deepest moment back, and each holds `_FEWEST_PROMPTS` prompts.

    None if all moments together hold fewer.
    """
    order = np.argsort(-generated, kind="stable")
    edges: list[float] = []
    prompts: set[int] = set()
    for i, row in enumerate(order):
        prompts.add(int(groups[row]))
        last_of_its_moment = i + 1 == len(order) or generated[order[i + 1]] < generated[row]
        if last_of_its_moment and len(prompts) >= _FEWEST_PROMPTS:
            edges.append(float(generated[row]))
            prompts.clear()
    if not edges:
        return None
    edges[-1] = 0.0  # too little is left before the earliest category for one of its own
    return np.array(edges[::-1])
