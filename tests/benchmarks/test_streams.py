"""The load of benchmarks/streams.py, and the rate that it reads off."""

from __future__ import annotations

import pytest

from benchmarks.replay.types import Call
from benchmarks.streams import BURST, CYCLE_S, Measured, _highest, programs


def test_bursts_have_twice_the_mean_rate_and_the_mean_is_the_rate() -> None:
    made = programs([Call(100, 50)], 5.0, 10 * CYCLE_S, seed=1)
    assert made == programs([Call(100, 50)], 5.0, 10 * CYCLE_S, seed=1)
    in_bursts = sum(one.at % CYCLE_S < BURST * CYCLE_S for one in made)
    assert len(made) / (10 * CYCLE_S) == pytest.approx(5.0, rel=0.05)
    assert in_bursts / (10 * CYCLE_S * BURST) == pytest.approx(10.0, rel=0.05)


def test_the_highest_rate_is_between_the_measured_ones() -> None:
    found = {("a", rate): Measured(qoe, 0, 0, 0, 0, 0, 0) for rate, qoe in ((1.0, 1.0), (2.0, 0.8), (3.0, 0.1))}
    assert _highest(found, "a", (1.0, 2.0, 3.0)) == pytest.approx(1.5)
    assert _highest(found, "a", (1.0,)) == 1.0
