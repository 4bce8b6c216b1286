"""Stored results are replayed and compared, figure by figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from benchmarks.replay.errors import ReplayError
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.score import Tail
from benchmarks.replay.verification import differences, of_these_files, sample, verify
from tests.benchmarks.replay.sample_results import result


def test_a_changed_figure_is_named_with_both_values(base: Job) -> None:
    stored = result(base, 0.5).score
    assert differences(stored, stored) == []
    assert differences(stored, replace(stored, token=0.5 + 1e-13)) == [], "the last digit may be rounded otherwise"
    changed = replace(stored, token=0.25, ttft={"latency": Tail(0.1, 0.2, 6)}, over_time=stored.over_time[:1])
    assert differences(stored, changed) == [
        "over_time[1][0]: stored 30.0, now None",
        "over_time[1][1]: stored 0.5, now None",
        "over_time[1][2]: stored 0.5, now None",
        "token: stored 0.5, now 0.25",
        "ttft.latency.count: stored 5.0, now 6.0",
    ]


def test_only_results_of_the_same_trace_and_step_model_are_verified(base: Job, tmp_path: Path) -> None:
    stored = [result(base.but(seed=seed, trace=Path(base.trace).name), 0.5) for seed in (0, 1)]
    packed = {base.but(seed=0).key: stored[0], "0" * 24: stored[1]}
    (found,) = of_these_files(packed, base)
    assert found.job == base.but(seed=0), "with the path of the trace that is here"


def test_slow_replays_are_not_chosen(base: Job) -> None:
    results = [replace(result(base.but(seed=seed), 0.5), cpu_s=10.0 * seed) for seed in range(10)]
    chosen = sample(results, 20, Random(0))
    assert {one.job.seed for one in chosen} == set(range(7))
    assert len(sample(results, 3, Random(0))) == 3
    with pytest.raises(ReplayError, match="name the trace"):
        sample([replace(one, cpu_s=100.0) for one in results], 3, Random(0))


def test_each_stored_job_is_replayed_once(base: Job) -> None:
    stored = [result(base.but(seed=seed), 0.5) for seed in (0, 1)]

    def replay(job: Job) -> Result:
        return result(job, 0.5 if job.seed else 0.75)

    found = {one.job.seed: figures for one, figures in verify(stored, replay)}
    assert found[1] == [] and "request: stored 0.5, now 0.75" in found[0]
