"""The forest predicts the weighted distribution of the answers in its leaves."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.serving.lengths.forest import Forest, grid_for, grow, survival


def _made_up(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    rows = rng.random((count, 6)).astype(np.float32)
    lengths = np.round(np.exp(3 + 3 * rows[:, 0] + rng.normal(0, 0.3, count)))
    return rows, lengths, np.zeros(count, dtype=np.bool_)


def test_forest_equals_the_content_of_scikit_learns_leaves() -> None:
    """Meinshausen's definition, computed by way of the fitted trees instead of the arrays."""
    from sklearn.ensemble import RandomForestRegressor

    rows, lengths, cut = _made_up(400)
    grid = np.unique(lengths)
    ours = grow(rows[:300], lengths[:300], cut[:300], seed=5, grid=grid, trees=12).survival(rows[300:])
    peer = RandomForestRegressor(12, min_samples_leaf=10, max_features=0.3, random_state=5, n_jobs=1)
    peer.fit(rows[:300], np.log1p(lengths[:300]))
    theirs, asked = peer.apply(rows[:300]), peer.apply(rows[300:])
    same = asked[:, None, :] == theirs[None, :, :]
    weights = (same / same.sum(axis=1, keepdims=True)).mean(axis=2)
    expected = weights @ (lengths[:300, None] > grid[None, :])
    assert ours == pytest.approx(expected, abs=1e-5)


def test_forest_follows_the_informative_feature() -> None:
    rows, lengths, cut = _made_up(600)
    forest = grow(rows, lengths, cut, seed=0, grid=grid_for(lengths), trees=30)
    low, high = np.full((2, 1, 6), 0.5, dtype=np.float32)
    low[0, 0], high[0, 0] = 0.05, 0.95
    expected = [
        float(np.interp(0.5, 1 - forest.survival(r)[0] + np.arange(len(forest.grid)) * 1e-12, forest.grid))
        for r in (low, high)
    ]
    assert 15 < expected[0] < 60
    assert 200 < expected[1] < 600


def test_survival_falls_from_one_to_zero() -> None:
    rows, lengths, cut = _made_up(300)
    curves = grow(rows, lengths, cut, seed=0, grid=grid_for(lengths), trees=10).survival(rows[:50])
    assert (np.diff(curves, axis=1) <= 1e-7).all()
    assert curves[:, 0] == pytest.approx(np.ones(50))
    assert (curves[:, -1] == 0).all()


def test_cut_answer_counts_as_longer() -> None:
    grid = np.array([0.0, 10.0, 20.0, 30.0])
    lengths = np.array([10.0, 20.0, 20.0, 30.0])
    cut = np.array([False, True, False, False])
    (curve,) = survival(lengths, cut, grid, np.zeros(4, dtype=np.int32), 1)
    # Kaplan and Meier by hand: 3/4 outlive 10; of three at risk at 20 one ends there; the last ends at 30.
    assert curve.tolist() == pytest.approx([1.0, 0.75, 0.5, 0.0])


def test_forest_survives_a_round_trip_through_arrays() -> None:
    rows, lengths, cut = _made_up(300)
    forest = grow(rows, lengths, cut, seed=0, grid=grid_for(lengths), trees=10)
    again = Forest.from_arrays(forest.arrays())
    assert (again.survival(rows) == forest.survival(rows)).all()


def test_batch_prediction_equals_single_predictions() -> None:
    rows, lengths, cut = _made_up(600)
    forest = grow(rows, lengths, cut, seed=0, grid=grid_for(lengths), trees=10)
    alone = np.concatenate([forest.survival(rows[i : i + 1]) for i in range(0, 600, 97)])
    assert alone == pytest.approx(forest.survival(rows)[::97], abs=1e-6)
