"""Runs that are killed at random moments and resumed: the same journal, the same files, nothing done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import sample

HARNESS = Path(__file__).parents[2] / "apps" / "kill_harness.py"
TRIALS, UNSEALED_TRIALS = sample(4, 12), sample(2, 3)


@pytest.mark.parametrize("sandbox", ["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)])
def test_a_killed_and_resumed_run_ends_like_an_unkilled_one(tmp_path: Path, sandbox: str) -> None:
    command = [sys.executable, str(HARNESS), str(tmp_path), sandbox, str(TRIALS), "7"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert shown.returncode == 0, shown.stderr
    whole, *killed = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(killed) >= TRIALS
    assert sum(trial["resumed"] for trial in killed) >= TRIALS // 4, (
        "too many kills fell before the run's first row, or after it"
    )
    for number, trial in enumerate(killed):
        for what in ("result", "rows", "calls", "tree", "status"):
            assert trial[what] == whole[what], f"trial {number}: {what} differs"
    keys = [row[0] for row in whole["rows"]]
    assert len(set(keys)) == len(keys)


def test_a_killed_run_under_a_plan_without_some_snapshots_ends_the_same(tmp_path: Path) -> None:
    """Unsealed steps are repeated, so a row may occur twice, but never with another result."""
    command = [sys.executable, str(HARNESS), str(tmp_path), "copy", str(UNSEALED_TRIALS), "11", "learned"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert shown.returncode == 0, shown.stderr
    whole, *killed = [json.loads(line) for line in shown.stdout.splitlines()]
    for number, trial in enumerate(killed):
        for what in ("result", "calls", "tree", "status"):
            assert trial[what] == whole[what], f"trial {number}: {what} differs"
        assert {tuple(row) for row in trial["rows"]} == {tuple(row) for row in whole["rows"]}
