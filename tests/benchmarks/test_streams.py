"""The load of benchmarks/streams.py, and the rate that it reads off."""

from __future__ import annotations

from math import inf

import pytest

from benchmarks.replay.bounds import free_switching
from benchmarks.replay.types import Call
from benchmarks.streams import BURST, CYCLE_S, SETTING, SWEEPS, Load, Measured, _highest, programs
from ramify.serving.qoe import SPEAKING_TBT_S


def test_bursts_have_twice_the_mean_rate_and_the_mean_is_the_rate() -> None:
    made = programs([Call(100, 50)], Load(rate=5.0), 10 * CYCLE_S, seed=1)
    assert made == programs([Call(100, 50)], Load(rate=5.0), 10 * CYCLE_S, seed=1)
    in_bursts = sum(one.at % CYCLE_S < BURST * CYCLE_S for one in made)
    assert len(made) / (10 * CYCLE_S) == pytest.approx(5.0, rel=0.05)
    assert in_bursts / (10 * CYCLE_S * BURST) == pytest.approx(10.0, rel=0.05)


def test_the_highest_rate_is_between_the_measured_ones() -> None:
    found = {("a", rate): Measured(qoe, 0, 0, 0, 0, 0, 0) for rate, qoe in ((1.0, 1.0), (2.0, 0.8), (3.0, 0.1))}
    assert _highest(found, "a", (1.0, 2.0, 3.0)) == pytest.approx(1.5)
    assert _highest(found, "a", (1.0,)) == 1.0


def test_a_load_of_a_sweep_differs_in_what_it_names() -> None:
    even = programs([Call(100, 50)], Load(rate=5.0, intensity=1.0), 10 * CYCLE_S, seed=1)
    in_bursts = sum(one.at % CYCLE_S < BURST * CYCLE_S for one in even)
    assert in_bursts / len(even) == pytest.approx(BURST, rel=0.1)
    (listeners,) = SWEEPS["audio"]
    assert {one.tbt_s for one in programs([Call(100, 50)], listeners, 60.0, seed=1)} == {SPEAKING_TBT_S}
    (large,) = SWEEPS["memory"]
    assert large.setting(SETTING).kv_tokens == 160_000


def test_with_kv_for_all_only_the_processor_time_is_short() -> None:
    few, many = (programs([Call(1000, 30)], Load(rate=rate), 15.0, seed=1) for rate in (0.2, 5.0))
    assert free_switching.best_qoe(few, SETTING) > 0.99
    assert free_switching.best_qoe(many, SETTING) < 0.9
    assert sum(free_switching.qoes(many, SETTING, inf, 0.0)) / len(many) < free_switching.best_qoe(many, SETTING)
