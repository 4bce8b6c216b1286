"""The loads of benchmarks/streams.py: when streams come, how long they are, and who reads them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.replay.errors import BadTrace, TooMany
from benchmarks.replay.inputs import traces
from benchmarks.replay.inputs.stream_loads import (
    BURST,
    BUSY,
    CYCLE_S,
    HARD,
    SWEEPS,
    Load,
    arrivals_of,
    between_ticks,
    capacity,
    programs,
)
from benchmarks.replay.inputs.traces import Arrival
from benchmarks.replay.stream_runs import SETTING
from benchmarks.replay.types import Call
from ramify.serving.qoe import SPEAKING_TBT_S

ONE = [Arrival(0.0, Call(100, 50))]


def test_bursts_have_twice_the_mean_rate_and_the_mean_is_the_rate() -> None:
    made = programs(ONE, Load(rate=5.0), 10 * CYCLE_S, seed=1)
    assert made == programs(ONE, Load(rate=5.0), 10 * CYCLE_S, seed=1)
    in_bursts = sum(one.at % CYCLE_S < BURST * CYCLE_S for one in made)
    assert len(made) / (10 * CYCLE_S) == pytest.approx(5.0, rel=0.05)
    assert in_bursts / (10 * CYCLE_S * BURST) == pytest.approx(10.0, rel=0.05)


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


def test_arrivals_at_one_tick_of_a_traces_clock_come_until_the_next() -> None:
    assert between_ticks([0.0, 0.0, 0.0, 3.0, 6.0, 6.0]) == [0.0, 1.0, 2.0, 3.0, 6.0, 6.0]
    trace = [Arrival(at, Call(10, 5)) for at in (0.0, 0.0, 0.0, 3.0, 4.0)]
    made = programs(trace, replace(SWEEPS["arrivals"][0], rate=0.1), 50.0, seed=1)
    gaps = [b.at - a.at for a, b in pairwise(made)]
    assert len(made) == 5 and min(gaps) == pytest.approx(max(gaps))


def test_lengths_come_from_pairs_of_texts_and_only_those_that_fit(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    lines = [{"prompt": "a" * 44, "response": "b" * 440}, {"prompt": "a", "response": "b" * 10**6}]
    file.write_text("\n".join(map(json.dumps, [*lines, lines[0]])), "utf-8")
    assert [(one.call.prompt, one.call.output) for one in arrivals_of(file, tmp_path)] == [(10, 100), (10, 100)]
    file.write_text(json.dumps(lines[1]), "utf-8")
    with pytest.raises(BadTrace, match="fit into 8192 tokens"):
        arrivals_of(file, tmp_path)


def test_the_capacity_counts_the_prompt_and_a_share_of_a_full_step_for_each_token() -> None:
    """40 calls of 1,000 tokens fill the memory: a step takes 40 + 40 * 0.06 + 40 * 0.36 ms."""
    calls = [Arrival(0.0, Call(900, 200))] * 3
    assert 1000 / capacity(calls, SETTING) == pytest.approx(0.2 * 900 + 200 * (40 + 2.4 + 14.4) / 40)
    assert capacity(calls, Load(memory=4).setting(SETTING)) > capacity(calls, SETTING)
    (load,) = SWEEPS["lengths"]
    assert load.at_rate(calls, SETTING).rate == pytest.approx(BUSY * capacity(calls, SETTING), rel=0.05)
    assert Load().at_rate(calls, SETTING).rate == HARD


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{"timestamp": 0, "input_length": 90, "output_length": 20}\n'
    path.write_text(line * 3)
    assert len(arrivals_of(path, tmp_path)) == 3
    with monkeypatch.context() as patch:
        patch.setattr(traces, "text", lambda _: pytest.fail("it was read again"))
        assert [one.call.prompt for one in arrivals_of(path, tmp_path, times=2)] == [180] * 3
    path.write_text(line * 4)
    os.utime(path, ns=(1, 1))
    assert len(arrivals_of(path, tmp_path)) == 4


def test_calls_that_are_almost_empty_are_too_many() -> None:
    calls = [Arrival(0.0, Call(1, 2))] * 2
    load = Load(busy=True).at_rate(calls, SETTING)
    with pytest.raises(TooMany, match="fewer --seconds"):
        programs(calls, load, 240.0, 1)
