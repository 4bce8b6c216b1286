"""The length model: forest, calibration and what to do where little was seen, as one immutable value.

Fitted from observations (`fit`), asked in batches (`LengthModel.sketches`). Replaced as a whole after each refit.
Rows of the beginning (features.of) make a model of whole answers, calibrated by the length that they reach; rows of
the middle (features.later) one of what remains, calibrated by the moment at which it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ramify.serving.analyzer import conformal, features, moments
from ramify.serving.analyzer.conformal import Calibration
from ramify.serving.analyzer.features import Matrix
from ramify.serving.analyzer.forest import TREES, Flags, Floats, Forest, Ints, grid_for, grow, survival
from ramify.serving.analyzer.moments import MomentCalibration, Witnesses
from ramify.serving.analyzer.types import Basis, Forecast
from ramify.serving.sketch import LEVELS, LengthSketch

FEWEST = 60  # observations before a forest is worth growing
_FOLDS = 5
_MARGINAL, _UNSEEN = 0.02, 0.004  # weight of all answers, and of lengths that no answer had
_FAMILIAR = 20  # answers of an application and model at which half of the weight (squared) is the forest's
_THIN = 0.05  # weight of not knowing above which a forecast says so
_LEVELS = np.array(LEVELS)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Observations as columns, all of the beginning or all of the middle of answers.

    `groups` ties rows of one prompt together: a prompt is never in two folds.
    """

    rows: Matrix
    lengths: Floats
    cut: Flags
    groups: Ints
    keys: tuple[str, ...]  # application and model


@dataclass(frozen=True, slots=True, eq=False)
class LengthModel:
    """Distributions of length for rows of features. Immutable: a refit makes another."""

    forest: Forest
    marginal: Floats  # P(length > grid) over all answers
    calibration: Calibration | MomentCalibration
    seen: Mapping[str, int]  # answers by key

    def sketches(self, rows: Matrix, keys: Sequence[str], limits: Sequence[float]) -> list[Forecast]:
        """One forecast a row, cut at its limit."""
        known = self._calibrated(_blend(self.forest.survival(rows), self.marginal, self.forest.grid), rows)
        return [
            self._forecast(curve, strangeness(self.seen.get(key, 0)), limit)
            for curve, key, limit in zip(known, keys, limits, strict=True)
        ]

    def _calibrated(self, curves: Floats, rows: Matrix) -> Floats:
        if isinstance(self.calibration, MomentCalibration):
            return self.calibration.apply(curves, features.generated(rows))
        return self.calibration.apply(curves, self.forest.grid)

    def _forecast(self, curve: Floats, strange: float, limit: float) -> Forecast:
        if strange >= 1.0:
            return Forecast(LengthSketch.cold(limit), Basis.COLD)
        grid = self.forest.grid
        if strange > 0.001:
            span = np.log1p(max(1.0, limit))
            curve = (1 - strange) * curve + strange * np.where(grid < limit, 1 - 0.95 * np.log1p(grid) / span, 0.0)
        below = 1.0 - curve
        below[-1] = 1.0
        # np.interp wants what it searches to rise: ties are broken by less than any level resolves.
        values = np.interp(_LEVELS, below + np.arange(len(grid)) * 1e-12, grid)
        sketch = LengthSketch.from_wire(values.tolist()).capped(limit)
        return Forecast(sketch, Basis.THIN if strange > _THIN else Basis.LEARNT)


def strangeness(seen: int) -> float:
    """The weight of not knowing: 1 for an application and model never seen, a quarter at 20 answers, .03 at 100."""
    return (_FAMILIAR / (_FAMILIAR + seen)) ** 2


def fit(sample: Sample, *, seed: int = 0, trees: int = TREES) -> LengthModel:
    """Grow the forest on everything, and calibrate it by forests that have not seen what they are asked.

    Takes seconds: never on a path that a call waits for.
    """
    grid = grid_for(sample.lengths)
    everyone = np.zeros(len(sample.lengths), dtype=np.int32)
    marginal = survival(sample.lengths, sample.cut, grid, everyone, 1)[0].astype(np.float64)
    unseen = np.empty((len(sample.lengths), len(grid)))
    fold, groups = _folds(sample.groups)
    for k in range(_FOLDS):
        held = fold == k
        others = grow(sample.rows[~held], sample.lengths[~held], sample.cut[~held], seed=seed, grid=grid, trees=trees)
        unseen[held] = others.survival(sample.rows[held])
    curves = _blend(unseen, marginal, grid)
    calibration: Calibration | MomentCalibration
    if sample.rows.shape[1] == features.WIDTH_LATER:
        seen_at = Witnesses(sample.lengths, sample.cut, features.generated(sample.rows), groups)
        calibration = moments.calibrate(curves, grid, seen_at)
    else:
        calibration = conformal.calibrate(curves, grid, sample.lengths, sample.cut)
    seen: dict[str, int] = {}
    for key in sample.keys:
        seen[key] = seen.get(key, 0) + 1
    forest = grow(sample.rows, sample.lengths, sample.cut, seed=seed, grid=grid, trees=trees)
    return LengthModel(forest, marginal, calibration, seen)


def _folds(groups: Ints) -> tuple[Ints, Ints]:
    """A fold for each row, by prompt, and what counts as one prompt. Traffic that keeps to a few prompts is split by
    row: prompts already seen are then what is asked next."""
    fold, rows = groups % _FOLDS, np.arange(len(groups), dtype=np.int32)
    shares = np.bincount(fold, minlength=_FOLDS) / len(fold)
    return (rows % _FOLDS, rows) if shares.min() < 0.5 / _FOLDS else (fold, groups)


def _blend(survival: Floats, marginal: Floats, grid: Floats) -> Floats:
    """A forest says "never" of what no answer in a leaf did. Some weight for what all answers did, and a little for
    lengths that none had yet, up to the grid's end."""
    unseen = 1 - np.log1p(grid) / np.log1p(grid[-1])
    return np.asarray((1 - _MARGINAL - _UNSEEN) * survival + _MARGINAL * marginal + _UNSEEN * unseen)
