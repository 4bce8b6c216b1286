"""The corrector's PID."""

from __future__ import annotations

from math import inf

import pytest

from ramify.serving.errors import BadPool
from ramify.serving.scaling.quart import PID, Gains


def test_a_slow_pool_gets_replicas_and_a_fast_one_loses_them() -> None:
    """Algorithm 1 prints the error the other way round."""
    assert PID().step(3.0, 1.0, 0.0) > 0 > PID().step(0.5, 1.0, 0.0)


def test_an_infinite_time_is_a_finite_wish() -> None:
    assert PID(most=3.0).step(inf, 1.0, 0.0) == 3.0


def test_the_integral_stands_still_at_the_limit() -> None:
    pid = PID(Gains(0.0, 1.0, 0.0), most=2.0)
    for now in range(100):
        pid.step(inf, 1.0, float(now))
    falls = [pid.step(0.0, 1.0, 100.0 + i) for i in range(6)]
    assert min(falls) < 0, "a long overload is forgotten within a few steps"


def test_senseless_steps_are_refused() -> None:
    pid = PID()
    pid.step(1.0, 1.0, 5.0)
    with pytest.raises(BadPool, match="before its last"):
        pid.step(1.0, 1.0, 4.0)
    with pytest.raises(BadPool, match="target"):
        pid.step(1.0, 0.0, 6.0)
