"""Bounds hold among the calls that still run, even where the predictor is wrong about long answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.serving.lengths.calibration import ALPHA, Calibration, allowed_misses, calibrate_by_length
from tests.samples import sample

GRID = np.unique(np.concatenate([np.linspace(0, 2_000, 160), np.geomspace(2_000, 60_000, 60)]))


def _drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths with a heavy tail, and a predictor that believes in a light one: exponential with a known mean."""
    rng = np.random.default_rng(seed)
    mean = rng.choice([60.0, 240.0], count)
    lengths = mean * (0.7 * rng.exponential(1, count) + 0.3 * rng.pareto(1.2, count))
    predicted = np.maximum(np.exp(-GRID[None, :] / mean[:, None]), 1e-7)
    predicted[:, -1] = 0
    return np.minimum(lengths, 50_000), predicted


def _covered(survival: np.ndarray, lengths: np.ndarray, generated: float) -> tuple[float, int]:
    """Of those longer than `generated`: the share that ended within the bound conditioned on it."""
    log = np.log(np.maximum(survival, 1e-9))
    reached = lengths > generated
    fell = [
        np.interp(length, GRID, row) - np.interp(generated, GRID, row)
        for row, length in zip(log[reached], lengths[reached], strict=True)
    ]
    return float(np.mean(np.array(fell) >= np.log(ALPHA))), int(reached.sum())


def test_calibration_fixes_late_bounds() -> None:
    lengths, predicted = _drawn(3_000, seed=1)
    calibration = calibrate_by_length(predicted, GRID, lengths, np.zeros(3_000, dtype=np.bool_))
    fresh, guesses = _drawn(3_000, seed=2)
    deep = 600.0
    before, survivors = _covered(guesses, fresh, deep)
    after, _ = _covered(calibration.apply(guesses, GRID), fresh, deep)
    assert survivors > 100
    assert before < 0.9
    assert after >= 0.93


def test_bounds_hold_at_all_moments() -> None:
    lengths, predicted = _drawn(3_000, seed=3)
    calibration = calibrate_by_length(predicted, GRID, lengths, np.zeros(3_000, dtype=np.bool_))
    fresh, guesses = _drawn(3_000, seed=4)
    calibrated = calibration.apply(guesses, GRID)
    for generated in (0, 20, 50, 100, 200, 400, 800):
        share, survivors = _covered(calibrated, fresh, generated)
        assert share >= 0.95 - 2.5 * (0.05 * 0.95 / survivors) ** 0.5, (generated, survivors)


def test_median_stays_as_predicted() -> None:
    lengths, predicted = _drawn(1_000, seed=5)
    calibrated = calibrate_by_length(predicted, GRID, lengths, np.zeros(1_000, dtype=np.bool_)).apply(predicted, GRID)
    assert calibrated[predicted > 0.5] == pytest.approx(predicted[predicted > 0.5])


def test_calibrated_curve_is_a_survival_function() -> None:
    lengths, predicted = _drawn(1_000, seed=6)
    calibrated = calibrate_by_length(predicted, GRID, lengths, np.zeros(1_000, dtype=np.bool_)).apply(predicted, GRID)
    assert (np.diff(calibrated, axis=1) <= 1e-12).all()
    assert calibrated.max() <= 1
    assert calibrated.min() >= 0


def test_bounds_only_widen_and_later_ones_more() -> None:
    lengths, predicted = _drawn(1_000, seed=9)
    factors = calibrate_by_length(predicted, GRID, lengths, np.zeros(1_000, dtype=np.bool_)).factors
    assert factors.max() <= 1
    assert factors[-1] < 0.9


def test_few_answers_change_nothing() -> None:
    lengths, predicted = _drawn(20, seed=7)
    calibration = calibrate_by_length(predicted, GRID, lengths, np.zeros(20, dtype=np.bool_))
    assert calibration.factors.tolist() == Calibration.none().factors.tolist() == [1.0]


def test_cut_answer_does_not_count_as_a_hit() -> None:
    """Where most answers were cut before their bounds, little shows that these would have held."""
    lengths, predicted = _drawn(1_000, seed=8)
    shorter = np.minimum(lengths, 250.0)
    told = calibrate_by_length(predicted, GRID, shorter, lengths > 250.0)
    naive = calibrate_by_length(predicted, GRID, shorter, np.zeros(1_000, dtype=np.bool_))
    assert told.factors[0] < naive.factors[0] - 0.05


@settings(deadline=None, max_examples=sample(10, 30))  # the first draw imports scipy
@given(st.integers(1, 3_000))
def test_allowed_misses_imply_the_target(survivors: int) -> None:
    from scipy.stats import beta

    def lower(misses: int) -> float:  # Clopper and Pearson's one-sided 95 % limit
        return float(beta.ppf(0.05, survivors - misses, misses + 1))

    allowed = allowed_misses(survivors)
    if allowed >= 0:
        assert lower(allowed) >= 0.955 - 1e-9
    if allowed + 1 < survivors:
        assert lower(allowed + 1) < 0.955
