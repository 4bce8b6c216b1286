"""The rows of a load: shares of its bound, throughput, engines saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.replay.bounds.shares import Bounds, Share
from benchmarks.replay.evaluation import ResultTable
from benchmarks.replay.jobs import Job
from benchmarks.replay.report.target_rows import bounds_needed, rows_of
from tests.benchmarks.replay.sample_results import result

BOUNDS = Bounds()  # kept: most tests ask for the same


def test_shares_of_the_bound_are_given_by_seed(base: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(self: Bounds, job: Job, seeds: Sequence[int]) -> Share:
        return Share(*[sum((0.5, 1.0)[seed] for seed in seeds) / len(seeds)] * 3)

    monkeypatch.setattr(Bounds, "of", of)
    rows = rows_of(ResultTable([result(base, 0.4), result(base.but(seed=1), 0.9)]), base, BOUNDS)
    row = next(row for row in rows if row["name"] == "load 1.1, loose: share of the LP bound, request goodput")
    assert row["ours"] == pytest.approx(0.65 / 0.75)
    assert row["note"].startswith("by seed 0.800 to 0.900")


def test_tight_limits_have_the_same_rows(base: Job) -> None:
    tight = base.but(slo="tight")
    rows = rows_of(ResultTable([result(tight, 0.8), result(tight.but(contender="fcfs"), 0.5)]), base, BOUNDS)
    names = {row["name"] for row in rows}
    assert {f"load 1.1, tight: share of the LP bound, {of} goodput" for of in ("request", "token")} <= names
    assert "load 1.1, tight: throughput against FCFS" in names


def test_missing_bounds_are_known_before_the_run(base: Job, tmp_path: Path) -> None:
    jobs = [base, base.but(contender="fcfs"), base.but(seed=1), base.but(slo_scale=0.8), base.but(load=2.4)]
    needed = bounds_needed(jobs, base)
    assert needed == [jobs[0], jobs[2]]
    bounds = Bounds(tmp_path)
    assert [(job.seed, job.load) for job in bounds.missing(needed)] == [(0, 1.1), (1, 1.1)]
    bounds.of(base, [0])
    assert [job.seed for job in bounds.missing(needed)] == [1]
    assert [job.seed for job in Bounds(tmp_path).missing(needed)] == [1], "as it is kept"


def test_token_goodput_has_a_row_of_the_token_form(base: Job) -> None:
    results = [result(base, 0.8), result(base.but(contender="concord-tokens"), 0.9)]
    by_name = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}
    row = "load 1.1, loose: share of the LP bound, token goodput"
    assert (by_name[row]["ours"], by_name[row]["met"]) == (pytest.approx(0.8), False)
    assert (by_name[f"{row}, by the form for it"]["ours"], by_name[f"{row}, by the form for it"]["met"]) == (
        0.9,
        True,
    )
    assert by_name["load 1.1, loose: latency-sensitive attainment, by the form for tokens"]["met"] is True


def test_token_figures_come_with_the_attainment_of_each_class(base: Job) -> None:
    rows = rows_of(ResultTable([result(base, 0.8), result(base.but(contender="concord-tokens"), 0.9)]), base, BOUNDS)
    notes = [row["note"] for row in rows if "token goodput" in row["name"]]
    assert [note.partition(";")[0] for note in notes] == ["met of latency 1.000"] * 2


def test_engines_saved_need_loads_that_ran(base: Job) -> None:
    name = "load 1.1: engines saved at the goodput of FCFS"
    results = [result(base, 0.9), result(base.but(contender="fcfs"), 0.5)]
    only = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}[name]
    assert only["ours"] is None and "did not run on all of these seeds at a higher one" in only["note"]
    results += [result(base.but(load=load), request) for load, request in ((1.6, 0.7), (2.6, 0.3))]
    found = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}[name]
    assert found["ours"] == pytest.approx(1 - 1.1 / 2.1)
    assert found["note"].startswith("concord has no more than that from load 2.10 on")
    # Of a second seed, which was not run at every load, FCFS has so much that nobody would save anything by it alone.
    results += [result(base.but(seed=1), 0.9), result(base.but(contender="fcfs", seed=1), 0.5)]
    both = {row["name"]: row for row in rows_of(ResultTable(results), base, BOUNDS)}[name]
    assert both["ours"] is None and both["note"].startswith("concord has more at load 1.1, and did not run on all ")
