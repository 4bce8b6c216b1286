"""The length model: forest, corrections, calibration, and caution where little was seen, as one immutable value.

`fit` makes a model from observations (a `Sample`); `LengthModel.sketches` predicts in batches. Each refit replaces
the whole model. Rows of the beginning (`features.of`) make a model of whole answers, calibrated by the length
reached, which the answers of each application correct (`corrections`); rows of the middle (`features.later`) make one
of what remains, calibrated by the moment of asking. `ObservationRing` holds the latest observations in fixed memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ramify.serving.lengths import corrections, features
from ramify.serving.lengths.calibration import (
    ALPHA,
    Calibration,
    MomentCalibration,
    Witnesses,
    calibrate_by_length,
    calibrate_by_moment,
)
from ramify.serving.lengths.corrections import Correction
from ramify.serving.lengths.features import Matrix
from ramify.serving.lengths.forest import TREES, Flags, Floats, Forest, Ints, grid_for, grow, survival
from ramify.serving.lengths.types import Basis, Forecast
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch

FEWEST = 60  # observations before a forest is grown
_FOLDS = 5
_MARGINAL, _UNSEEN = 0.02, 0.004  # weights of all answers together, and of lengths that no answer had
_FAMILIAR = 2  # answers of an application and model at which the weight of not knowing is a quarter,
_FAMILIAR_LATER = 20  # and in the middle of answers, where nothing corrects the forest
_THIN = 0.05  # weight of not knowing above which a forecast is THIN
_BEYOND = 0.05  # chance of a length beyond the grid, above which the limit is the end
_LEVELS = np.array(LEVELS)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Observations as columns: all from the beginning, or all from the middle of answers.

    `groups` ties rows of one prompt together: a prompt is never in two folds.
    """

    rows: Matrix
    lengths: Floats
    cut: Flags
    groups: Ints
    keys: tuple[str, ...]  # application and model


@dataclass(frozen=True, slots=True, eq=False)
class LengthModel:
    """Distributions of length for rows of features. Immutable: a refit makes a new one."""

    forest: Forest
    marginal: Floats  # P(length > grid) over all answers
    calibration: Calibration | MomentCalibration
    seen: Mapping[str, int]  # answers by key
    corrections: Mapping[str, Correction] = field(default_factory=dict)  # by key; none in the middle of answers

    def sketches(
        self,
        rows: Matrix,
        keys: Sequence[str],
        limits: Sequence[float],
        since: Mapping[str, Correction] = MappingProxyType({}),
    ) -> list[Forecast]:
        """One forecast for each row, cut at its limit. `since`: corrections by answers that came after the fit."""
        curves = _blend(self.forest.survival(rows), self.marginal, self.forest.grid)
        if isinstance(self.calibration, MomentCalibration):
            known = self.calibration.apply(curves, features.generated(rows))
            strange = [strangeness(self.seen.get(key, 0), _FAMILIAR_LATER) for key in keys]
            known[:, -1] = 0.0
        else:
            mine = [self._correction(key, since) for key in keys]
            known = self._corrected(curves, mine, [one.level for one in mine])
            strange = [strangeness(one.seen) if one.has_bound else 1.0 for one in mine]
        return [self._forecast(*of) for of in zip(known, strange, limits, strict=True)]

    def learn(self, sample: Sample, since: MutableMapping[str, Correction]) -> None:
        """Add answers that came after the fit to the corrections since then."""
        grid = self.forest.grid
        curves = _blend(self.forest.survival(sample.rows), self.marginal, grid)
        likelihoods = corrections.likelihoods(curves, grid, sample.lengths, sample.cut)
        for i, key in enumerate(sample.keys):
            before = self._correction(key, since)
            known = self._corrected(curves[i : i + 1], [before], [ALPHA])
            level = corrections.levels_of(known, grid, sample.lengths[i : i + 1])
            since[key] = before.after(likelihoods[i], float(level[0]), bool(sample.cut[i]))

    def _correction(self, key: str, since: Mapping[str, Correction]) -> Correction:
        return since.get(key) or self.corrections.get(key) or Correction.none()

    def _corrected(self, curves: Floats, by: Sequence[Correction], levels: Sequence[float]) -> Floats:
        """The survival functions, with tails for these levels. They are 0 at the grid's end, unless many answers are
        foreseen beyond it."""
        grid, calibration = self.forest.grid, self.calibration
        assert isinstance(calibration, Calibration)
        shifted = corrections.shifted(curves, grid, corrections.weights(np.stack([one.odds for one in by])))
        known = corrections.widened(calibration.apply(shifted, grid), np.array(levels))
        known[shifted[:, -1] <= _BEYOND, -1] = 0.0
        return known

    def _forecast(self, curve: Floats, strange: float, limit: float) -> Forecast:
        if strange >= 1.0:
            return Forecast(LengthSketch.cold(limit), Basis.COLD)
        grid, beyond = self.forest.grid, curve[-1] > 0.0
        if strange > 0.001:
            span = np.log1p(max(1.0, limit))
            curve = (1 - strange) * curve + strange * np.where(grid < limit, 1 - 0.95 * np.log1p(grid) / span, 0.0)
        below = 1.0 - curve
        if beyond and limit > grid[-1]:
            grid, below = np.append(grid, limit), np.append(below, 1.0)
        below[-1] = 1.0
        # np.interp needs a rising x: ties are broken by less than any level resolves.
        values = np.interp(_LEVELS, below + np.arange(len(grid)) * 1e-12, grid)
        sketch = LengthSketch.from_wire(values.tolist()).capped(limit)
        return Forecast(sketch, Basis.THIN if strange > _THIN else Basis.LEARNT)


def strangeness(seen: int, familiar: int = _FAMILIAR) -> float:
    """The weight of not knowing: 1 for an application and model never seen, a quarter after `familiar` answers, .04
    after four times as many."""
    return (familiar / (familiar + seen)) ** 2


def fit(sample: Sample, *, seed: int = 0, trees: int = TREES) -> LengthModel:
    """Grow the forest on everything, and calibrate it with forests that have not seen the answers they predict.

    Takes seconds: never call it while a call waits.
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
    seen = Counter(sample.keys)
    forest = grow(sample.rows, sample.lengths, sample.cut, seed=seed, grid=grid, trees=trees)
    if sample.rows.shape[1] == features.WIDTH_LATER:
        seen_at = Witnesses(sample.lengths, sample.cut, features.generated(sample.rows), groups)
        return LengthModel(forest, marginal, calibrate_by_moment(curves, grid, seen_at), seen)
    calibration, corrected = _correct(curves, grid, sample)
    return LengthModel(forest, marginal, calibration, seen, corrected)


def _correct(curves: Floats, grid: Floats, sample: Sample) -> tuple[Calibration, dict[str, Correction]]:
    """Calibrate, and learn the correction of each application and model. `curves`: from forests that had not seen the
    answers' prompts."""
    likelihoods = corrections.likelihoods(curves, grid, sample.lengths, sample.cut)
    number = {key: i for i, key in enumerate(dict.fromkeys(sample.keys))}
    at = np.array([number[key] for key in sample.keys])
    odds = np.zeros((len(number), likelihoods.shape[1]))
    np.add.at(odds, at, likelihoods)
    # each answer is foreseen with what the others of its application say
    fading = corrections.share_that_counts(np.bincount(at).astype(np.int32) - 1)[at]
    known = corrections.shifted(curves, grid, corrections.weights(fading[:, None] * (odds[at] - likelihoods)))
    calibration = calibrate_by_length(known, grid, sample.lengths, sample.cut)
    levels = corrections.levels_of(calibration.apply(known, grid), grid, sample.lengths)
    found = dict.fromkeys(sample.keys, Correction.none())
    for key, likelihood, level, cut in zip(sample.keys, likelihoods, levels.tolist(), sample.cut, strict=True):
        found[key] = found[key].after(likelihood, level, bool(cut))
    return calibration, found


def _folds(groups: Ints) -> tuple[Ints, Ints]:
    """A fold for each row, by prompt, and the groups that count as one prompt. If traffic has only a few prompts,
    rows are split instead: future questions will then have known prompts."""
    fold, rows = groups % _FOLDS, np.arange(len(groups), dtype=np.int32)
    shares = np.bincount(fold, minlength=_FOLDS) / len(fold)
    return (rows % _FOLDS, rows) if shares.min() < 0.5 / _FOLDS else (fold, groups)


def _blend(survival: Floats, marginal: Floats, grid: Floats) -> Floats:
    """Mix three distributions. A forest gives no chance to what no answer in a leaf did; so what all answers did gets
    some weight, and lengths that none had yet get a little, up to the grid's end."""
    unseen = 1 - np.log1p(grid) / np.log1p(grid[-1])
    return np.asarray((1 - _MARGINAL - _UNSEEN) * survival + _MARGINAL * marginal + _UNSEEN * unseen)


class ObservationRing:
    """Holds the last `size` rows. Not thread-safe; `sample` copies, so that a fit can go on meanwhile."""

    def __init__(self, size: int, width: int) -> None:
        self.total = 0  # rows ever added
        self._rows = np.zeros((size, width), dtype=np.float32)
        self._lengths = np.zeros(size)
        self._cut = np.zeros(size, dtype=np.bool_)
        self._groups = np.zeros(size, dtype=np.int32)
        self._keys = np.zeros(size, dtype=np.int64)
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return min(self.total, len(self._rows))

    def add(self, row: Matrix, length: float, *, cut: bool, group: int, key: str) -> None:
        at = self.total % len(self._rows)
        self._rows[at], self._lengths[at], self._cut[at] = row, length, cut
        self._groups[at] = group & 0x7FFFFFFF
        if len(self._names) > 2 * len(self._rows):
            self._forget_names()
        self._keys[at] = self._names.setdefault(key, len(self._names))
        self.total += 1

    def _forget_names(self) -> None:
        """Drop names that no row has any more: clients choose them, so there is no limit to their number."""
        names = list(self._names)
        used, self._keys[:] = np.unique(self._keys, return_inverse=True)
        self._names = {names[i]: at for at, i in enumerate(used.tolist())}

    def sample(self, since: int = 0) -> Sample:
        """The rows that were added after the first `since`, the oldest first, as far as they are held."""
        size, names = len(self._rows), list(self._names)
        at = np.arange(max(since, self.total - size), self.total) % size
        return Sample(
            rows=self._rows[at],
            lengths=self._lengths[at],
            cut=self._cut[at],
            groups=self._groups[at],
            keys=tuple(names[i] for i in self._keys[at].tolist()),
        )

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """All columns, for a checkpoint."""
        held = slice(0, len(self))
        return {
            "rows": self._rows[held].copy(),
            "lengths": self._lengths[held].copy(),
            "cut": self._cut[held].copy(),
            "groups": self._groups[held].copy(),
            "keys": self._keys[held].copy(),
            "names": np.array(list(self._names), dtype=np.str_),
            "total": np.asarray(self.total),
        }

    def restore(self, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Take in the result of `arrays`. Raises KeyError or ValueError if it does not fit this ring."""
        rows = arrays["rows"]
        if len(rows) > len(self._rows) or rows.shape[1:] != self._rows.shape[1:]:
            raise ValueError(f"observations of shape {rows.shape} do not fit a ring of {self._rows.shape}")
        held = slice(0, len(rows))
        self._rows[held], self._lengths[held] = rows, arrays["lengths"]
        self._cut[held], self._groups[held], self._keys[held] = arrays["cut"], arrays["groups"], arrays["keys"]
        self._names = {str(name): i for i, name in enumerate(arrays["names"])}
        total = int(arrays["total"])
        # A ring that was full goes on where it stopped: its oldest row is overwritten next.
        self.total = total if len(rows) == len(self._rows) else len(rows)
