"""The scripted agent of benchmarks/worlds.py: what it writes at its decisive turn, and which attempt is best."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.rollouts import disk, throughput
from benchmarks.rollouts.bed import Bed
from benchmarks.rollouts.latencies import lowest
from benchmarks.rollouts.projects import OPERATORS, PROJECTS, Project, Task
from benchmarks.rollouts.scripted_agent import DECISIVE, Attempts, after, before


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_the_decisive_turn_writes_exactly_the_attempts_line(project: Project, tmp_path: Path) -> None:
    source = tmp_path / project.file
    source.parent.mkdir(parents=True)
    task = Task(project, tmp_path, 2)
    assert len(before(task)) == DECISIVE - 1
    assert len(set(project.attempts)) == len(OPERATORS)
    for attempt in (project.attempts[0], project.attempts[-1]):
        source.write_text(f"first\n{project.line.format(project.seeded)}\nlast\n")
        subprocess.run(["bash", "-c", after(task, attempt)[0]], cwd=tmp_path, check=True, capture_output=True)
        assert source.read_text() == f"first\n{attempt}\nlast\n"
    assert project.attempts[-1] == project.line.format(project.right)


def test_rows_of_rollouts_say_that_mini_swe_agent_is_missing(tmp_path: Path) -> None:
    missing = {"Docker": "needs Docker", "bubblewrap": ""}
    bed = Bed(tmp_path, [], {}, missing, quick=True, rollouts=4, no_agent="needs mini-swe-agent")
    for row in (*throughput.rollout_rows(bed), *throughput.best_of_rows(bed), disk.kept_rollouts(bed)):
        assert (row["ours"], row["met"], row["note"]) == (None, None, "not measured: needs mini-swe-agent")
    assert bed.missing_environments == {"Docker": "needs Docker", "bubblewrap": "needs mini-swe-agent"}


def test_the_best_attempt_is_the_first_whose_tests_passed() -> None:
    assert Attempts(["1\na\n", "0\nb\n", "0\nc\n"], 1.0).best == "0\nb\n"
    assert Attempts(["1\na\n"], 1.0).best == ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5.0], 5.0), ([9, 8, 7, 6], 6), ([1, 9, 9, 2, 2, 9, 8, 8, 8, 7, 7, 7], 2), ([3, 3, 4], 3)],
)
def test_a_latency_is_the_lowest_median_of_four_blocks(values: list[float], expected: float) -> None:
    assert lowest(values) == expected
