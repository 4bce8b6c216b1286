"""QUART's smoother and CPU compensator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import BadPool
from ramify.serving.scaling.quart import Compensation, CpuProfile, compensate, smoothed


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(0, 8)), min_size=1, max_size=8))
def test_smoothing_stays_between_the_pool_and_its_neighbours(stages: list[tuple[float, float]]) -> None:
    wanted, cvs = [w for w, _ in stages], [c for _, c in stages]
    for i, value in enumerate(smoothed(wanted, cvs)):
        near = wanted[max(0, i - 1) : i + 2]
        assert min(near) - 1e-9 <= value <= max(near) + 1e-9


def test_a_calm_stage_takes_its_neighbours_mean_and_a_bursty_one_keeps_its_own() -> None:
    assert smoothed([2.0, 9.0, 4.0], [0.0, 0.0, 0.0])[1] == 3.0
    assert smoothed([2.0, 9.0, 4.0], [0.0, 1e9, 0.0])[1] == pytest.approx(9.0)


def test_cores_by_regression_over_their_inverse() -> None:
    profile = CpuProfile((1, 2, 4), (1.2, 0.7, 0.45))  # .2 + 1 / cores
    assert compensate(profile, 0.46, most=8) == Compensation(4, enough=True)
    assert compensate(profile, 0.1, most=8) == Compensation(8, enough=False)
    with pytest.raises(BadPool, match="two numbers"):
        CpuProfile((2, 2), (1.0, 1.0))
