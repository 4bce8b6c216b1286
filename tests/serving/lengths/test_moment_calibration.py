"""Bounds of what remains hold at each moment of asking; moments are chosen without looking ahead."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.serving.lengths.calibration import ALPHA, MomentCalibration, Witnesses, calibrate_by_moment
from ramify.serving.lengths.learner import learnt_from

GRID = np.unique(np.concatenate([np.linspace(0, 2_000, 160), np.geomspace(2_000, 60_000, 60)]))


def _drawn(answers: int, seed: int) -> tuple[Witnesses, np.ndarray]:
    """What remains, asked every 50 tokens, and a predictor that is right early and too short late."""
    rng = np.random.default_rng(seed)
    lengths = rng.exponential(300, answers)
    group, generated = np.array([(a, g) for a in range(answers) for g in range(0, int(lengths[a]), 50)]).T
    rest = np.maximum(1.0, lengths[group] - generated)
    believed = np.where(generated < 400, 300.0, 120.0)
    predicted = np.maximum(np.exp(-GRID[None, :] / believed[:, None]), 1e-9)
    predicted[:, -1] = 0
    cut = np.zeros(len(rest), dtype=np.bool_)
    return Witnesses(rest, cut, generated.astype(np.float64), group.astype(np.int32)), predicted


def _covered(survival: np.ndarray, rest: np.ndarray) -> float:
    log = np.log(np.maximum(survival, 1e-12))
    ends = [np.interp(length, GRID, row) for length, row in zip(rest, log, strict=True)]
    return float(np.mean(np.array(ends) >= np.log(ALPHA)))


def test_each_moment_holds_where_the_predictor_is_wrong_late() -> None:
    seen, predicted = _drawn(1_000, seed=1)
    calibration = calibrate_by_moment(predicted, GRID, seen)
    fresh, guesses = _drawn(1_000, seed=2)
    late = fresh.generated >= 400
    assert _covered(guesses[late], fresh.rest[late]) < 0.85
    calibrated = calibration.apply(guesses, fresh.generated)
    for generated in range(0, 800, 50):
        now = fresh.generated == generated
        assert now.sum() >= 50
        assert _covered(calibrated[now], fresh.rest[now]) >= 0.95 - 2.5 * (0.0475 / now.sum()) ** 0.5, generated


def test_less_known_moments_get_wider_bounds_and_the_same_median() -> None:
    seen, predicted = _drawn(1_000, seed=3)
    calibration = calibrate_by_moment(predicted, GRID, seen)
    assert calibration.edges[0] == 0
    assert (np.diff(calibration.factors) <= 0).all()
    assert calibration.factors[0] > 2 * calibration.factors[-1]
    calibrated = calibration.apply(predicted, seen.generated)
    assert calibrated[predicted > 0.5] == pytest.approx(predicted[predicted > 0.5])
    assert (np.diff(calibrated, axis=1) <= 1e-12).all()


def test_many_moments_of_few_prompts_are_few_witnesses() -> None:
    seen, predicted = _drawn(600, seed=4)
    alone = calibrate_by_moment(predicted, GRID, seen)
    few = Witnesses(seen.rest, seen.cut, seen.generated, (seen.groups % 70).astype(np.int32))
    together = calibrate_by_moment(predicted, GRID, few)
    assert len(together.edges) < len(alone.edges)
    assert together.factors[0] < alone.factors[0]
    fewer = Witnesses(seen.rest, seen.cut, seen.generated, (seen.groups % 5).astype(np.int32))
    assert (
        calibrate_by_moment(predicted, GRID, fewer).factors.tolist()
        == MomentCalibration.none().factors.tolist()
        == [1.0]
    )


def test_cut_answer_can_be_a_miss_but_no_hit() -> None:
    seen, predicted = _drawn(1_000, seed=5)
    cut = seen.rest > 100
    shorter = np.minimum(seen.rest, 100.0)
    told = calibrate_by_moment(predicted, GRID, Witnesses(shorter, cut, seen.generated, seen.groups))
    naive = calibrate_by_moment(predicted, GRID, Witnesses(shorter, np.zeros_like(cut), seen.generated, seen.groups))
    assert told.factors[0] <= naive.factors[0]
    assert told.factors[-1] < naive.factors[-1] or told.factors.max() == naive.factors.max() == 1.0


def test_choice_of_moments_ignores_the_final_length() -> None:
    """Its chance is one half wherever it is: so those that are learnt from are as all moments are."""
    for generated in (50, 100, 500, 2_000):
        share = np.mean([learnt_from(f"call {i}", generated) for i in range(4_000)])
        assert share == pytest.approx(0.5, abs=0.03)
    assert [learnt_from("one", g) for g in (50, 100, 150, 200)] == [
        learnt_from("one", g) for g in (150, 200, 250, 300)
    ]
