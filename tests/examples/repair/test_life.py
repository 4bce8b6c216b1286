"""The repair example's whole life: killed at random, resumed, collected, checked, replayed from its first state."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.samples import sample

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "examples" / "repair" / "programs"
KILLS = sample(1, 4)


@pytest.mark.slow
def test_killed_resumed_collected_checked_and_replayed(tmp_path: Path) -> None:
    name = "order_pricing"  # its repair is two edits, merged
    shutil.copytree(PROGRAMS / name, tmp_path / "programs" / name, ignore=shutil.ignore_patterns("__pycache__"))
    harness = ROOT / "tests" / "apps" / "repair_harness.py"
    words = [sys.executable, str(harness), str(tmp_path), "copy", str(KILLS), "3"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(words, capture_output=True, text=True, timeout=170, cwd=ROOT, env=env, check=False)
    assert shown.returncode == 0, shown.stderr[-3000:]
    life = json.loads(shown.stdout.splitlines()[-1])
    assert life["status"] == "done" and life["repaired"] == [True]
    assert life["edits"] == [2]
    assert life["killed"] == KILLS
    twice = [key for key, count in Counter(life["keys"]).items() if count > 1]
    assert not twice, "done twice"
    assert life["problems"] == []
    assert life["heard"] > 20 and life["not_replayed"] == 0
