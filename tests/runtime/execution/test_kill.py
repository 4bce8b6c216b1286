"""Killed at random moments and resumed: the same journal, the same tree, nothing done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[2] / "apps" / "kill_harness.py"
TRIALS, UNSEALED_TRIALS = 12, 3


@pytest.mark.parametrize("sandbox", ["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)])
def test_killed_and_resumed_is_as_if_never_killed(tmp_path: Path, sandbox: str) -> None:
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


def test_killed_under_a_plan_that_leaves_snapshots_out_it_ends_the_same(tmp_path: Path) -> None:
    """Steps after which nothing was sealed are done again, so a row may stand twice; never with another result."""
    command = [sys.executable, str(HARNESS), str(tmp_path), "copy", str(UNSEALED_TRIALS), "11", "learned"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert shown.returncode == 0, shown.stderr
    whole, *killed = [json.loads(line) for line in shown.stdout.splitlines()]
    for number, trial in enumerate(killed):
        for what in ("result", "calls", "tree", "status"):
            assert trial[what] == whole[what], f"trial {number}: {what} differs"
        assert {tuple(row) for row in trial["rows"]} == {tuple(row) for row in whole["rows"]}
