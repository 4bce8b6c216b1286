"""Rates and burstiness from the times of calls."""

from __future__ import annotations

import pytest

from ramify.serving.scaling.pools import Observation


def test_rate_and_cv_of_the_window() -> None:
    seen = Observation(0.5, window_s=10.0)
    assert seen.rate(0.0) == 0.0 and seen.cv(0.0) == 1.0
    for i in range(21):
        seen.arrived(i * 0.5)
    assert seen.rate(10.0) == pytest.approx(2.1) and seen.cv(10.0) == pytest.approx(0.0, abs=1e-9)
    assert seen.rate(100.0) == 0.0


def test_bursts_have_a_high_cv() -> None:
    seen = Observation(0.5)
    for burst in range(5):
        for i in range(10):
            seen.arrived(burst * 10 + i * 0.01)
    assert seen.cv(45.0) > 2


def test_the_service_time_follows_what_is_measured() -> None:
    seen = Observation(1.0)
    for _ in range(60):
        seen.served(0.25)
    assert seen.service_rate == pytest.approx(4.0, rel=0.01)
