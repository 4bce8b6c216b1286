"""The thesis's own ratios, reported beside its figures."""

from __future__ import annotations

import pytest

from benchmarks.replay.evaluation import ResultTable
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.report.comparisons import Row
from benchmarks.replay.report.thesis_rows import thesis_rows_of
from tests.benchmarks.replay.sample_results import result

BASE = Job("concord", "/somewhere/trace.csv")


def rows(levels: dict[Job, float]) -> dict[str, Row]:
    results: list[Result] = [result(job, level) for job, level in levels.items()]
    found = list(thesis_rows_of(ResultTable(results), BASE))
    assert all(row["met"] is None and row["target"] == "reported" for row in found)
    return {row["name"]: row for row in found}


def but(contender: str, **more: object) -> Job:
    return BASE.but(contender=contender, **more)


def test_each_goodput_is_compared_with_each_rival_and_the_thesis() -> None:
    found = rows({but("calm-thesis"): 0.8, but("calm-thesis, tokens"): 0.6, but("ltr"): 0.5, but("fcfs"): 0.0})
    ltr = found["load 1.1: calm-thesis against ltr, request goodput"]
    assert ltr["ours"] == pytest.approx(1.6) and "thesis: 2.3 to 4.5 x (figure 6.2)" in ltr["note"]
    tokens = found["load 1.1: calm-thesis against ltr, token goodput"]
    assert tokens["ours"] == pytest.approx(1.2) and "met of latency 1.000" in tokens["note"]
    assert found["load 1.1: calm-thesis against fcfs, request goodput"]["ours"] is None


def test_oracle_throughput_replicas_limits_and_mixes_have_rows() -> None:
    found = rows(
        {
            but("calm-thesis"): 0.9,
            but("calm-thesis-oracle"): 0.95,
            but("fcfs"): 0.3,
            **{but(name, replicas=4): level for name, level in (("calm-thesis", 0.8), ("ltr", 0.5), ("plas", 0.4))},
            **{but(name, slo_scale=0.8): level for name, level in (("calm-thesis", 0.6), ("fcfs", 0.3))},
            **{but(name, mix=(1.0, 2.0, 0.0)): level for name, level in (("calm-thesis", 0.9), ("fcfs", 0.5))},
        }
    )
    oracle = found["load 1.1: calm-thesis against its oracle, request goodput"]
    assert oracle["ours"] == pytest.approx(0.9 / 0.95) and "3 to 9 %" in oracle["note"]
    assert "96 to 98 %" in found["load 1.1: calm-thesis against fcfs, throughput"]["note"]
    best = found["4 replicas: calm-thesis against ltr, request goodput"]
    assert best["ours"] == pytest.approx(1.6) and "1.34 to 2.42" in best["note"], "the best of its rivals"
    assert "2.3 to 2.8" in found["limits x 0.8: calm-thesis against fcfs, request goodput"]["note"]
    mixed = found["loose, load 1.1, mix 1:2:0: calm-thesis against fcfs, request goodput"]
    assert mixed["ours"] == pytest.approx(1.8) and "1.8 x" in mixed["note"]


def test_power_of_k_is_compared_with_one_queue_for_the_same_policy() -> None:
    levels = {"concord": 0.8, "concord, power of 2": 0.6, "calm-thesis": 0.5, "calm-thesis, power of 2": 0.55}
    found = rows({but(name, replicas=2): level for name, level in levels.items()})
    ours = found["2 engines: concord, power of 2, against one queue, request goodput"]
    assert ours["ours"] == pytest.approx(0.75) and ours["peer"] == "one queue"
    assert found["2 engines: calm-thesis, power of 2, against one queue, request goodput"]["ours"] == pytest.approx(
        1.1
    )


def test_without_results_there_are_no_rows() -> None:
    assert rows({but("concord"): 0.9, but("calm-thesis", load=1.6): 0.2}) == {}
