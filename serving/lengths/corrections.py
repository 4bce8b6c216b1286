"""What an application's own answers say about the forest's forecasts of them, from its first answer on.

The forest learns an application only at a refit: on a busy gateway, after more than a thousand answers. Until then
the answers correct it. If all of an application's answers are three times as long as foreseen, a few of them show it.

A hypothesis says that its answers are as long as foreseen times a factor, and that the factor varies from answer to
answer by a log-normal spread. Each answer makes some hypotheses more likely (Bayes). The prior has heavy tails: most
applications are like those that the forest knows, and some are not at all. What is foreseen is the mean over the
hypotheses. So an application like the others has narrow bounds after about ten answers, and one whose answers are
four times as long is covered after as many.

No hypothesis may be right. So the level of the bound adapts, too (adaptive conformal inference, Gibbs and Candès
2021): each miss lowers the level of the next bound, and each hit raises it a little, up to the nominal one. If even
the lowest level is missed, the limit is the bound for some answers. In the long run the bound of each application
holds as often as it says, whatever its answers are like.

Applications change. So older answers count less.

A correction is soft state: it comes from the answers that are kept for learning, and a lost one costs accuracy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ramify.serving.lengths.calibration import ALPHA, at, halves
from ramify.serving.lengths.forest import Flags, Floats, Ints

SHIFTS = np.round(np.arange(-30, 31) * 0.1, 3)  # of the logarithm of a length: factors of 1/20 to 20
_SPREADS = {
    0.0: 0.9,
    0.5: 0.04,
    1.0: 0.03,
    1.5: 0.03,
}  # of the factor, and how likely each is
_ALIKE, _UNLIKE = 0.3, 1.5  # spreads of the factors of applications that are like others, and of those that are not
_SHARE_UNLIKE = 0.3
_WEIGHT = 0.7  # of an answer: answers to similar prompts are not independent
_WIDTH = 0.3  # of the window, in logarithms, over which a density is taken
_STRAY = 0.01  # chance of a length that no hypothesis explains
_STRAY_RANGE = 9.0  # logarithms of tokens over which it may be
_LEAST = 1e-4  # a shift with less weight is left out
_STEP, _FIRST_STEPS = 0.01, 0.3  # of the level: at least, and in the first answers
_LOWEST = 0.01  # level for which tails are made longer; below, misses count on, and at 0 no bound is known
_FADE = 0.995  # the weight of an answer after each later one: about the last 200 count, since applications change


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """What `seen` answers of one application and model said."""

    seen: int
    odds: Floats  # the log-likelihood of each hypothesis
    level: float = ALPHA  # at which its 95 % bound is taken

    @classmethod
    def none(cls) -> Correction:
        return cls(0, np.zeros(len(_prior())))

    @property
    def weights(self) -> Floats:
        """The weight of each shift."""
        return np.asarray(weights(self.odds[None])[0])

    @property
    def has_bound(self) -> bool:
        """Whether there is a bound that may hold. If not, the limit is the bound."""
        return self.level > 0

    @property
    def factor(self) -> float:
        """How many times as long as foreseen its answers are: the median."""
        return float(np.exp(SHIFTS[np.searchsorted(np.cumsum(self.weights), 0.5)]))

    def after(self, likelihood: Floats, level: float, cut: bool) -> Correction:
        """The correction after one more answer. `level`: of its length among those foreseen, 0 for the longest."""
        return Correction(self.seen + 1, _FADE * self.odds + likelihood, self._next(level, cut))

    def _next(self, level: float, cut: bool) -> float:
        missed = self.has_bound and level < max(self.level, _LOWEST)
        if cut and not missed:  # it would have been longer, and perhaps longer than its bound
            return self.level
        step = max(_STEP, _FIRST_STEPS / (10 + self.seen)) if self.level > _LOWEST else _STEP
        least = _LOWEST if self.level > _LOWEST else -ALPHA
        return float(np.clip(self.level + step * (ALPHA - missed), least, ALPHA))


def to_array(of: Sequence[Correction]) -> Floats:
    """One row for each, for a checkpoint."""
    return np.array([[one.seen, one.level, *one.odds] for one in of]).reshape(len(of), -1)


def from_array(rows: Floats) -> list[Correction]:
    """Take in the result of `to_array`. Raises ValueError if its hypotheses are others."""
    if len(rows) and rows.shape[1] != 2 + len(_prior()):
        raise ValueError(f"{rows.shape[1]} numbers of a correction are not {2 + len(_prior())}")
    return [Correction(int(row[0]), row[2:].copy(), float(row[1])) for row in rows]


def likelihoods(curves: Floats, grid: Floats, lengths: Floats, cut: Flags) -> Floats:
    """The weighted log-likelihood (answers, hypotheses) of each length, given what was foreseen of it. `curves`:
    survival functions (answers, grid). An answer that was cut was longer."""
    logs = np.log(np.maximum(lengths, 1.0))[:, None] - SHIFTS
    after = _read(curves, grid, np.exp(logs + _WIDTH / 2))
    density = (_read(curves, grid, np.exp(logs - _WIDTH / 2)) - after) / _WIDTH
    seen = np.where(cut[:, None], _read(curves, grid, np.exp(logs)), density)
    mixed = (1 - _STRAY) * seen + _STRAY / np.where(cut, 1.0, _STRAY_RANGE)[:, None]
    return np.asarray(_WEIGHT * np.log(mixed @ _kernels().T))


def share_that_counts(answers: Ints) -> Floats:
    """The mean weight of so many answers after the last of them came."""
    return np.asarray((1 - _FADE**answers) / (1 - _FADE) / np.maximum(answers, 1))


def weights(odds: Floats) -> Floats:
    """The weight of each shift (rows, shifts), given log-likelihoods (rows, hypotheses)."""
    log = odds + _prior()
    posterior = np.exp(log - log.max(axis=1, keepdims=True))
    return np.asarray((posterior / posterior.sum(axis=1, keepdims=True)) @ _kernels())


def shifted(curves: Floats, grid: Floats, weight: Floats) -> Floats:
    """The survival functions (rows, grid) of lengths that are shifted by each shift, with these weights (rows,
    shifts)."""
    out, total = np.zeros_like(curves), np.zeros(len(curves))
    for i in np.flatnonzero(weight.max(axis=0) > _LEAST):
        part = weight[:, i]
        points = grid * np.exp(-SHIFTS[i])
        right = np.clip(np.searchsorted(grid, points), 1, len(grid) - 1)
        share = np.clip((points - grid[right - 1]) / (grid[right] - grid[right - 1]), 0, 1)
        out += part[:, None] * (curves[:, right - 1] * (1 - share) + curves[:, right] * share)
        total += part
    return np.asarray(out / total[:, None])


def widened(curves: Floats, levels: Floats) -> Floats:
    """The survival functions with tails so much longer that what had each row's level has the nominal one."""
    plain, tail = halves(curves)
    longer = np.log(2 * ALPHA) / np.log(2 * np.maximum(levels, _LOWEST))
    return np.asarray(np.exp(plain + tail * longer[:, None]))


def levels_of(curves: Floats, grid: Floats, lengths: Floats) -> Floats:
    """P(longer than it was) of each answer, as foreseen."""
    return at(curves, grid, lengths)


def _read(curves: Floats, grid: Floats, points: Floats) -> Floats:
    """Each row's function at that row's points (rows, points)."""
    right = np.clip(np.searchsorted(grid, points), 1, len(grid) - 1)
    share = np.clip((points - grid[right - 1]) / (grid[right] - grid[right - 1]), 0, 1)
    low, high = (np.take_along_axis(curves, where, axis=1) for where in (right - 1, right))
    return np.asarray(low * (1 - share) + high * share)


@cache
def _kernels() -> Floats:
    """By hypothesis, the weight of each shift: (hypotheses, shifts)."""
    return np.concatenate([_around(spread) for spread in _SPREADS])


@cache
def _prior() -> Floats:
    """The logarithm of the weight of each hypothesis before any answer."""
    alike, unlike = (np.exp(-0.5 * (SHIFTS / spread) ** 2) / spread for spread in (_ALIKE, _UNLIKE))
    one = (1 - _SHARE_UNLIKE) * alike + _SHARE_UNLIKE * unlike
    return np.asarray(np.log(np.concatenate([share * one / one.sum() for share in _SPREADS.values()])))


def _around(spread: float) -> Floats:
    apart = SHIFTS[:, None] - SHIFTS
    near = np.isclose(apart, 0) if spread == 0 else np.exp(-0.5 * (apart / spread) ** 2)
    return np.asarray(near / near.sum(axis=1, keepdims=True))
