"""The loads of benchmarks/streams.py, and what it reads off the replays."""

from __future__ import annotations

import json
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pytest

from benchmarks.replay.baselines.exact_packing import exact
from benchmarks.replay.bounds import free_switching
from benchmarks.replay.errors import BadTrace
from benchmarks.replay.inputs.stream_loads import BURST, CYCLE_S, SWEEPS, Load, arrivals_of, programs
from benchmarks.replay.inputs.traces import Arrival
from benchmarks.replay.simulation.simulation import silence
from benchmarks.replay.types import Call, CallOutcome
from benchmarks.streams import SETTING, Measured, _highest, most_waiting
from ramify.serving.policy.andes.packing import pack
from ramify.serving.qoe import SPEAKING_TBT_S

ONE = [Arrival(0.0, Call(100, 50))]


def test_bursts_have_twice_the_mean_rate_and_the_mean_is_the_rate() -> None:
    made = programs(ONE, Load(rate=5.0), 10 * CYCLE_S, seed=1)
    assert made == programs(ONE, Load(rate=5.0), 10 * CYCLE_S, seed=1)
    in_bursts = sum(one.at % CYCLE_S < BURST * CYCLE_S for one in made)
    assert len(made) / (10 * CYCLE_S) == pytest.approx(5.0, rel=0.05)
    assert in_bursts / (10 * CYCLE_S * BURST) == pytest.approx(10.0, rel=0.05)


def test_the_highest_rate_is_between_the_measured_ones() -> None:
    found = {("a", rate): Measured(qoe, 0, 0, 0, 0, 0, 0) for rate, qoe in ((1.0, 1.0), (2.0, 0.8), (3.0, 0.1))}
    assert _highest(found, "a", (1.0, 2.0, 3.0)) == pytest.approx(1.5)
    assert _highest(found, "a", (1.0,)) == 1.0


def test_a_load_of_a_sweep_differs_in_what_it_names() -> None:
    even = programs(ONE, Load(rate=5.0, intensity=1.0), 10 * CYCLE_S, seed=1)
    in_bursts = sum(one.at % CYCLE_S < BURST * CYCLE_S for one in even)
    assert in_bursts / len(even) == pytest.approx(BURST, rel=0.1)
    longest = programs(ONE, SWEEPS["duration"][-1], CYCLE_S, seed=1)
    assert longest and all(one.at % CYCLE_S < CYCLE_S / 2 for one in longest)
    (listeners,) = SWEEPS["audio"]
    assert {one.tbt_s for one in programs(ONE, listeners, 60.0, seed=1)} == {SPEAKING_TBT_S}
    (large,) = SWEEPS["memory"]
    assert large.setting(SETTING).kv_tokens == 160_000


def test_the_traces_own_arrivals_keep_their_distances_at_the_rate() -> None:
    trace = [Arrival(at, Call(10, 5)) for at in (0.0, 1.0, 1.5, 9.0)]
    (own,) = SWEEPS["arrivals"]
    made = programs(trace, own, 100.0, seed=1)
    assert len(made) == round(own.rate * 100)
    gaps = [b.at - a.at for a, b in pairwise(made)]
    assert max(gaps) / min(gaps) == pytest.approx(15.0)


def test_lengths_come_from_pairs_of_texts_and_only_those_that_fit(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    lines = [{"prompt": "a" * 44, "response": "b" * 440}, {"prompt": "a", "response": "b" * 10**6}]
    file.write_text("\n".join(map(json.dumps, [*lines, lines[0]])), "utf-8")
    assert [(one.call.prompt, one.call.output) for one in arrivals_of(file, tmp_path)] == [(10, 100), (10, 100)]
    file.write_text(json.dumps(lines[1]), "utf-8")
    with pytest.raises(BadTrace, match="fit into 8192 tokens"):
        arrivals_of(file, tmp_path)


def test_silence_is_the_time_without_text_and_who_waits_has_no_token() -> None:
    (one,) = programs(ONE, Load(rate=0.01, listens=True), 200.0, seed=1)[:1]
    step = SPEAKING_TBT_S
    assert silence(one, [one.at, one.at]) == pytest.approx(0.0)
    assert silence(one, [one.at + 2 * step, one.at + 3 * step]) == pytest.approx(0.5)
    calls = [CallOutcome(0, at, 10, 5, first) for at, first in ((0.0, 2.0), (1.0, None), (2.0, 3.0), (2.5, 2.6))]
    assert most_waiting(calls) == 3


def test_the_exact_knapsack_finds_what_greed_misses_and_fills_up_what_is_left() -> None:
    gain, context, ties = np.array([6.0, 5.0, 5.0, 0.0]), np.array([6.0, 5.0, 5.0, 1.0]), np.arange(4.0)
    assert pack(gain, context, 10.0, 4, ties).value == 6.0
    found = exact(gain, context, 10.0, 4, ties, unit=1)
    assert (sorted(found.chosen.tolist()), found.value) == ([1, 2], 10.0)
    assert exact(gain, context, 10.0, 1, ties, unit=1).chosen.tolist() == [0]
    assert sorted(exact(np.array([6.0, 0, 0, 0]), context, 11.0, 4, ties, unit=1).chosen.tolist()) == [0, 1]


def test_with_kv_for_all_only_the_processor_time_is_short() -> None:
    large = [Arrival(0.0, Call(1000, 30))]
    few, many = (programs(large, Load(rate=rate), 15.0, seed=1) for rate in (0.2, 5.0))
    assert free_switching.best_qoe(few, SETTING) > 0.99
    assert free_switching.best_qoe(many, SETTING) < 0.9
    assert sum(free_switching.qoes(many, SETTING, inf, 0.0)) / len(many) < free_switching.best_qoe(many, SETTING)
