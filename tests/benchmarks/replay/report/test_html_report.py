"""The HTML page of an evaluation: each question has a part, and only like is drawn with like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.replay import evaluation
from benchmarks.replay.evaluation import ResultTable
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.report import plots
from benchmarks.replay.report.html_report import TITLES, write_page
from benchmarks.replay.report.markdown_report import plain
from benchmarks.replay.report.tables import course, goodput, latencies, near_oracle, over_time
from benchmarks.replay.score import Tail
from tests.benchmarks.replay.sample_results import result

BASE = Job("concord", "/somewhere/trace.csv", seconds=600.0)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """A made-up score for every job of the whole evaluation, with two seeds."""
    jobs = [job for section in evaluation.sections(BASE, range(2)) for job in section.jobs]
    return [result(job, 0.5 + 0.01 * (len(job.contender) % 40) + 0.01 * job.seed) for job in dict.fromkeys(jobs)]


def test_the_page_has_a_part_for_each_question_and_compares_like_with_like(
    results: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, list[Job]] = {}

    def noted(path: Path, table: ResultTable, jobs: Sequence[Job], *more: object) -> str:
        assert path.stem not in drawn, "a plot has a file of its own"
        drawn[path.stem] = list(jobs)
        return f"<img alt={path.stem}>"

    for name in ("by_circumstance", "side_by_side", "over_time", "request_types"):
        monkeypatch.setattr(plots, name, noted)
    page = write_page(tmp_path, results, [], evaluation.sections(BASE, range(2))).read_text()
    parts = ("Throughput", "Near-oracle", "Over time", "By type of request")
    for title in (*TITLES.values(), *parts, *(f"{part}, tight limits" for part in parts)):
        assert f"<h2>{title}</h2>" in page
    for name, jobs in drawn.items():
        assert len(jobs) == len(set(jobs)), "no contender twice"
        if name.startswith(("over-time", "request-types", "near-oracle")):
            assert len({plain(job) for job in jobs}) == 1
        if name in ("load", "throughput", "slo-scale", "replicas"):
            assert len({plain(job).but(load=0, slo_scale=0, replicas=0) for job in jobs}) == 1
    assert {job.contender for job in drawn["ablation"]} >= {"concord", "concord, stages hidden", "concord, calls"}
    assert "between 60 and 540 s are counted; 64 slots" in page and "H200" in page


def test_plots_are_in_the_page_and_beside_it(results: list[Result], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `bench`")
    some = [one for one in results if one.job.contender in ("concord", "concord-oracle", "fcfs")]
    some = [one for one in some if one.job.load == 1.1 and one.job.replicas == 1]
    page = write_page(tmp_path, some, [], evaluation.sections(BASE, range(2))).read_text()
    pictures = sorted(path.stem for path in tmp_path.glob("*.png"))
    alone = {"load", "throughput", "slo-scale", "mix", "poisson", "tight", "throughput-tight"}
    at_a_load = ("near-oracle", "over-time", "request-types")
    assert set(pictures) == alone | {f"{name}{limits}-1.1" for name in at_a_load for limits in ("", "-tight")}
    assert page.count("data:image/png;base64,") == len(pictures)
    assert "<h2>Replicas</h2>" not in page, "of more than one there is nothing"
    assert "http" not in page and "<script" not in page, "nothing from elsewhere"


def test_each_line_has_all_goodputs_and_every_class() -> None:
    table = ResultTable([result(BASE, 0.7), result(BASE.but(seed=1), 0.9), result(BASE.but(contender="fcfs"), 0.2)])
    lines = goodput(table, [BASE.but(contender="fcfs"), BASE])
    assert lines.head[1:5] == ("requests", "concord is ahead by", "tokens", "workflows")
    assert lines.head[5:8] == ("latency", "deadline", "compound")
    ours, stock = lines.lines
    assert ours[:4] == ("concord", "0.800 ± 1.271", "", "0.800 ± 1.271") and ours[-1] == "2"
    assert stock[:4] == ("fcfs", "0.200", "+0.500", "0.200"), "one seed has no interval, and is held against itself"


def test_percentiles_are_means_over_the_seeds() -> None:
    one, other, none = result(BASE, 0.7), result(BASE.but(seed=1), 0.7), result(BASE.but(contender="fcfs"), 0.0)
    other = replace(other, score=replace(other.score, ttft={"latency": Tail(0.3, 0.6, 5)}))
    none = replace(none, score=replace(none.score, ttft={"latency": Tail(0.0, 0.0, 0)}))
    also = result(BASE.but(contender="fcfs", seed=1), 0.0)
    none, also = (replace(it, score=replace(it.score, ttft=none.score.ttft)) for it in (none, also))
    found = latencies(ResultTable([one, other, none, also]), [BASE, BASE.but(contender="fcfs")])
    assert found.head[1] == "TTFT, latency-sensitive"
    assert [line[1] for line in found.lines] == ["0.20 / 0.40", ""]
    kinds = ("latency-sensitive", "deadline", "compound")
    assert found.head[1:] == tuple(f"{figure}, {kind}" for figure in ("TTFT", "TBT", "E2E") for kind in kinds)


def test_an_oracle_is_shown_beside_its_form_over_shared_seeds() -> None:
    oracle = BASE.but(contender="concord-oracle")
    table = ResultTable([result(BASE, 0.8), result(BASE.but(seed=1), 0.1), result(oracle, 0.9)])
    (line,) = near_oracle(table, [BASE, oracle]).lines
    classes = ("1.00 / – / –", "1.00 / – / –")
    assert line == ("concord", "0.800", "0.900", "0.889", "0.800", "0.900", "0.889", *classes, "1")


def test_the_course_over_time_is_the_seeds_mean() -> None:
    table = ResultTable([result(BASE, 0.4), result(BASE.but(seed=1), 0.8)])
    assert course(table.scores(BASE)) == [
        (0.0, pytest.approx(0.6), pytest.approx(0.6)),
        (30.0, *[pytest.approx(0.6)] * 2),
    ]
    found = over_time(table, [BASE])
    classes = "whole window: latency / deadline / compound"
    assert found.head == ("programs / tokens; seeds 0, 1", "from 0 s", "from 30 s", classes)
    assert found.lines == (("concord", "0.60 / 0.60", "0.60 / 0.60", "1.00 / – / –"),)


def test_the_course_over_time_uses_the_seeds_that_all_have() -> None:
    """Two contenders that are equal on each seed look equal, although one has an extra hard seed."""
    other = BASE.but(contender="fcfs")
    table = ResultTable([result(BASE, 0.9), result(BASE.but(seed=1), 0.1), result(other, 0.9)])
    found = over_time(table, [BASE, other])
    assert found.head[0] == "programs / tokens; seed 0"
    assert [line[1] for line in found.lines] == ["0.90 / 0.90"] * 2
    apart = ResultTable(
        [result(BASE, 0.9), result(other.but(seed=1), 0.1), result(BASE.but(contender="plas", seed=1), 0.2)]
    )
    found = over_time(apart, [BASE, other, BASE.but(contender="plas")])
    assert found.head[0] == "programs / tokens; seed 1" and [line[0] for line in found.lines] == ["fcfs", "plas"]
