"""A few of the edits that `benchmarks/edits.py` tries by the thousand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.samples import sample

EDITS = sample(4, 21)
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "edits.py"


def test_no_edit_repeats_or_swaps_results() -> None:
    """In a process of its own, because it forks and must have no thread or event loop then."""
    ran = subprocess.run(
        [sys.executable, str(BENCHMARK), "--edits", str(EDITS), "--seed", "5", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    report = json.loads(ran.stdout.splitlines()[-1])
    assert report["failures"] == []
    assert (report["repeated"], report["wrong"], report["refused_layout"]) == (0, 0, 0)
    assert report["edits"] >= EDITS
    assert ran.returncode == 0
