"""The measured part of a page: made from results and rows alone, and written between the marks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.replay.errors import ReplayError
from benchmarks.replay.evaluation import ResultTable
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.report.comparisons import Row
from benchmarks.replay.report.markdown_report import BEGIN, END, measured, update
from tests.benchmarks.replay.sample_results import result

BASE = Job("concord", "/somewhere/trace.csv", seconds=150.0)
ROW = Row(
    name="against FCFS",
    ours=1.5,
    unit="x",
    peer="fcfs",
    peer_value=0.6,
    ratio=2.5,
    target=">= 2.2 x",
    met=False,
    note="",
)


@pytest.fixture
def results() -> list[Result]:
    made = [result(BASE.but(seed=seed), 0.9) for seed in (0, 1)]
    return [*made, result(BASE.but(contender="fcfs"), 0.6), result(BASE.but(slo="tight"), 0.8)]


def test_the_report_names_the_replays_the_misses_and_every_contender(results: list[Result]) -> None:
    text = measured(results, [ROW])
    assert "![" not in text and "![Goodput against load, loose limits](page.png)" in measured(results, [], "page.png")
    assert "| trace.csv | loose, load 1.1 | 150 | 0, 1 | concord |" in text
    assert "| trace.csv | loose, load 1.1 | 150 | 0 | fcfs |" in text
    assert (
        "those between 15 and 135 s are counted; 64 slots" in text
        and "First come, first served attains 0.600" in text
    )
    assert "| concord | 0.900 ± 0.000 |  | 0.900 ± 0.000 |" in text
    assert "| against FCFS | 1.500 × | >= 2.2 x | **missed** | fcfs 0.600 |" in text
    assert "- against FCFS: 1.500 ×, wanted >= 2.2 x." in text
    assert "### tight, load 1.1, 150 s" in text
    assert "/somewhere" not in text


def test_slow_replays_are_named(results: list[Result]) -> None:
    """Each replay simulated 60 s."""
    assert "None was less than 5 × as fast." in measured([replace(one, cpu_s=12.0) for one in results], [])
    slow = [*(replace(one, cpu_s=12.0) for one in results[1:]), replace(results[0], cpu_s=30.0)]
    assert "1 were less than 5 × as fast, the least 2.0 × (concord, loose, load 1.1): concord." in measured(slow, [])


def test_only_the_text_between_the_marks_is_replaced(results: list[Result], tmp_path: Path) -> None:
    page = tmp_path / "evaluation.md"
    page.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    update(page, results, [])
    once = page.read_text()
    assert once.startswith(f"before\n{BEGIN}\n") and once.endswith(f"{END}\nafter\n") and "stale" not in once
    update(page, results, [])
    assert page.read_text() == once


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}"])
def test_without_both_marks_nothing_is_written(text: str, tmp_path: Path) -> None:
    page = tmp_path / "evaluation.md"
    page.write_text(text)
    with pytest.raises(ReplayError, match="put the two lines"):
        update(page, [], [])
    assert page.read_text() == text


def test_the_load_at_a_level_is_interpolated() -> None:
    levels = {0.9: 1.0, 1.1: 0.9, 1.3: 0.5}
    table = ResultTable([result(BASE.but(load=load), level) for load, level in levels.items()])
    assert table.loads(BASE) == [0.9, 1.1, 1.3]
    assert table.load_at(BASE, 0.7, lambda score: score.request) == pytest.approx(1.2)
    assert table.load_at(BASE, 0.3, lambda score: score.request) == 1.3
    assert table.load_at(BASE.but(load=0.9), 1.1, lambda score: score.request) is None
