"""Runs that are killed at random moments and resumed: the same journal, the same files, nothing done twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.samples import sample
from tests.warm_process import WarmInterpreter

HARNESS = Path(__file__).parents[2] / "apps" / "kill_harness.py"
TRIALS, UNSEALED_TRIALS = sample(2, 12), sample(1, 3)


@pytest.mark.parametrize("sandbox", ["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)])
def test_a_killed_and_resumed_run_ends_like_an_unkilled_one(
    tmp_path: Path, sandbox: str, warm: WarmInterpreter
) -> None:
    shown = warm.run_file(HARNESS, tmp_path, sandbox, TRIALS, 7)
    assert shown.returncode == 0, shown.stderr
    whole, *killed = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(killed) >= TRIALS
    assert sum(trial["resumed"] for trial in killed) >= max(1, TRIALS // 4), (
        "too many kills fell before the run's first row, or after it"
    )
    for number, trial in enumerate(killed):
        for what in ("result", "rows", "calls", "tree", "status"):
            assert trial[what] == whole[what], f"trial {number}: {what} differs"
    keys = [row[0] for row in whole["rows"]]
    assert len(set(keys)) == len(keys)


def test_a_killed_run_under_a_plan_without_some_snapshots_ends_the_same(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    """Unsealed steps are repeated, so a row may occur twice, but never with another result."""
    shown = warm.run_file(HARNESS, tmp_path, "copy", UNSEALED_TRIALS, 11, "learned")
    assert shown.returncode == 0, shown.stderr
    whole, *killed = [json.loads(line) for line in shown.stdout.splitlines()]
    for number, trial in enumerate(killed):
        for what in ("result", "calls", "tree", "status"):
            assert trial[what] == whole[what], f"trial {number}: {what} differs"
        assert {tuple(row) for row in trial["rows"]} == {tuple(row) for row in whole["rows"]}
