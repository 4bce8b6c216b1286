"""The list of replays, and how results are compared: seeds are paired, and stored results read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay import evaluation
from benchmarks.replay.baselines.contenders import ALL, REFUSING, contender
from benchmarks.replay.errors import ReplayError
from benchmarks.replay.evaluation import ResultTable
from benchmarks.replay.jobs import Job, Result
from tests.benchmarks.replay.sample_results import result


def test_names_are_unique_and_an_unknown_one_lists_them() -> None:
    names = [one.name for one in ALL]
    assert len(names) == len(set(names))
    with pytest.raises(ReplayError, match="no contender is called 'magic': there are fcfs"):
        contender("magic")


def test_every_section_names_known_contenders(base: Job) -> None:
    jobs = [job for section in evaluation.sections(base, range(2)) for job in section.jobs]
    assert {contender(job.contender).name for job in jobs} <= {one.name for one in ALL}
    assert all(job.trace == base.trace and job.seconds == 20.0 for job in jobs)


def test_refusing_baselines_run_at_the_targets_and_the_strongest_everywhere(base: Job) -> None:
    jobs = {section.name: section.jobs for section in evaluation.sections(base, range(2))}
    cells = {(job.slo, job.load) for job in jobs["refusing"]}
    assert cells == {(slo, load) for slo in ("loose", "tight") for load in (1.1, 1.3)}
    for slo, load in cells:
        assert {one.name for one in REFUSING} <= {
            job.contender for job in jobs["refusing"] if (job.slo, job.load) == (slo, load)
        }
    for name in ("slo-scale", "mix", "replicas", "poisson"):
        assert {"concord", "fcfs", "edf-plan", "program-srpt-paced"} <= {job.contender for job in jobs[name]}


def test_an_interval_is_that_of_paired_differences(base: Job) -> None:
    levels = [0.5, 0.7, 0.9]
    results = [result(base.but(seed=i), level) for i, level in enumerate(levels)]
    results += [result(base.but(contender="fcfs", seed=i), level - 0.1) for i, level in enumerate(levels)]
    table = ResultTable(results)
    assert table.estimate(base, lambda s: s.request).half > 0.3
    apart = table.difference(base, "fcfs", lambda s: s.request)
    assert (apart.mean, apart.half) == (pytest.approx(0.1), pytest.approx(0.0))
    assert table.best_baseline(base, lambda s: s.request) == "fcfs"


def test_the_same_seeds_are_one_table(base: Job) -> None:
    """A page needs them once for each contender and circumstance."""
    table = ResultTable([result(base.but(seed=i), level) for i, level in enumerate((0.5, 0.7, 0.9))])
    assert table.of_seeds([2, 0]) is table.of_seeds({0, 2}) is not table.of_seeds([0])
    assert [table.of_seeds(seeds).seeds(base) for seeds in ([2, 0], [0])] == [[0, 2], [0]]


def test_a_result_reads_back_and_its_key_is_its_configuration(base: Job) -> None:
    one = result(base, 0.5)
    assert Result.from_json(one.to_json()) == one
    assert Job.from_json(base.to_json()) == base
    key = base.key
    assert key == base.but().key != base.but(seed=1).key
    other = Path(base.trace).with_name("other.jsonl")
    other.write_text("{}")
    assert base.but(trace=str(other)).key != key


def test_the_best_baseline_is_found_over_shared_seeds(base: Job) -> None:
    """EDF ran only the easy seed, where SRPT, which ran both, was even better."""
    results = [result(base.but(seed=i), level) for i, level in enumerate((0.98, 0.90))]
    results += [result(base.but(contender="srpt-oracle-gpu", seed=i), level) for i, level in enumerate((0.93, 0.80))]
    easy = [result(base.but(contender="edf-feasible"), 0.92)]
    table = ResultTable([*results, *easy])
    assert table.best_baseline(base, lambda score: score.request) == "srpt-oracle-gpu"
    stronger = ResultTable([*results, result(base.but(contender="edf-feasible"), 0.95)])
    assert stronger.best_baseline(base, lambda score: score.request) == "edf-feasible"


def test_engines_saved_are_sought_at_further_loads(base: Job) -> None:
    (saved,) = [section for section in evaluation.sections(base, range(1)) if section.name == "saved"]
    loads = {name: {job.load for job in saved.jobs if job.contender == name} for name in ("concord", "fcfs")}
    assert loads["fcfs"] == set(evaluation.LOADS) < loads["concord"] and max(loads["concord"]) > 3


def test_one_seed_has_no_interval(base: Job) -> None:
    assert str(ResultTable([result(base, 0.9)]).estimate(base, lambda s: s.request)) == "0.900 (one seed)"
