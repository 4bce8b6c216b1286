"""The rows of benchmarks/streams.py."""

from __future__ import annotations

import pytest

from benchmarks.replay.inputs.stream_loads import Load
from benchmarks.replay.report.stream_rows import highest, rate_rows, sweep_row
from benchmarks.replay.stream_runs import Measured


def measured(qoe: float, ttft_s: float = 1.0, preemptions: int = 0) -> Measured:
    return Measured(qoe, 0.5, ttft_s, 1.0, 2.0, 0.1, 3, 100.0, preemptions, 0, 10)


def test_the_highest_rate_is_between_the_measured_ones() -> None:
    found = {("a", rate): [measured(qoe)] for rate, qoe in ((1.0, 1.0), (2.0, 0.8), (3.0, 0.1))}
    assert highest(found, "a", (1.0, 2.0, 3.0)) == [pytest.approx(1.5)]
    assert highest(found, "a", (1.0,)) == [1.0]


def test_targets_are_those_of_the_paper_where_readers_wait_as_long_under_fcfs() -> None:
    qoes = {"fcfs": (0.95, 0.5), "andes": (0.99, 0.8), "concord": (0.99, 0.85)}
    waits = {"fcfs": (1.0, 11.0), "andes": (1.0, 2.0), "concord": (1.0, 3.0)}
    found = {
        (name, rate): [measured(qoes[name][at], waits[name][at])] for name in qoes for at, rate in enumerate((1, 2))
    }
    rows = {one["name"]: one for one in rate_rows(found, (1, 2))}
    assert [rows[f"average QoE at 2/s, {name}"]["met"] for name in qoes] == [None, False, True]
    assert [rows[f"TTFT at 2/s, {name}"]["met"] for name in qoes] == [None, True, False]
    best = rows["highest rate with average QoE >= 0.9, concord"]
    assert (best["ours"], best["peer_value"], best["met"]) == (1.64, 1.11, False)


def test_rates_are_medians_over_the_seeds_with_their_range() -> None:
    qoes = {1: (1.0, 1.0, 0.95), 2: (0.8, 0.7, 0.85)}
    found = {
        (name, rate): [measured(qoe, ttft_s=rate + at) for at, qoe in enumerate(ones)]
        for name in ("fcfs", "andes") for rate, ones in qoes.items()
    }  # fmt: skip
    rows = {one["name"]: one for one in rate_rows(found, (1, 2))}
    qoe, wait = rows["average QoE at 2/s, andes"], rows["TTFT at 2/s, andes"]
    assert (qoe["ours"], qoe["spread"]) == (0.8, [0.7, 0.85])
    assert (wait["ours"], wait["spread"]) == (3, [2, 4])
    best = rows["highest rate with average QoE >= 0.9, andes"]
    assert (best["ours"], best["spread"]) == (1.5, [1.33, 1.5])


def test_of_several_seeds_a_row_has_the_median_and_all_within_its_spread() -> None:
    ones = [measured(0.7, preemptions=10), measured(0.9), measured(0.8, preemptions=30)]
    made = sweep_row("a", Load("bursts"), ones, [measured(0.4)] * 3, [0.9, 0.95, 1.0])
    assert (made["ours"], made["spread"], made["ratio"]) == (0.8, [0.7, 0.9], 2.0)
    assert "1.0 preemptions a stream; with KV for all 0.950" in made["note"]
    assert "spread" not in sweep_row("a", Load("bursts"), ones[:1], ones[:1], [0.9])
