"""What streams could get of an engine with KV for everybody."""

from __future__ import annotations

from math import inf

from benchmarks.replay.bounds import free_switching
from benchmarks.replay.inputs.stream_loads import Load, programs
from benchmarks.replay.inputs.traces import Arrival
from benchmarks.replay.stream_runs import SETTING
from benchmarks.replay.types import Call


def test_with_kv_for_all_only_the_processor_time_is_short() -> None:
    large = [Arrival(0.0, Call(1000, 30))]
    few, many = (programs(large, Load(rate=rate), 15.0, seed=1) for rate in (0.2, 5.0))
    assert free_switching.best_qoe(few, SETTING) > 0.99
    assert free_switching.best_qoe(many, SETTING) < 0.9
    assert sum(free_switching.qoes(many, SETTING, inf, 0.0)) / len(many) < free_switching.best_qoe(many, SETTING)
