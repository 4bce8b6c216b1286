"""A run that is killed under one version of Python continues under another, and does nothing twice."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
import pythons

APP = Path(__file__).parents[2] / "apps" / "elsewhen_app.py"
WHY_NOT = "no other Python that has Ramify's dependencies: `.ci/run pythons` makes them, or name some by " + (
    "RAMIFY_TEST_PYTHONS"
)


@pytest.fixture(scope="module")
def others() -> list[Path]:
    found = pythons.equipped()
    if not found:
        pytest.skip(WHY_NOT)
    return found


def live(python: Path, home: Path, *args: str) -> tuple[list[dict[str, Any]], int, str]:
    command = [str(python), "-P", str(APP), str(home), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode, done.stderr


@pytest.mark.timeout(600)
def test_a_run_continues_under_another_python(others: list[Path], tmp_path: Path) -> None:
    here = Path(sys.executable)
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "died").touch()
    lines, status, errors = live(here, whole)
    assert status == 0, errors
    expected, log = lines[-1]["result"], sorted((whole / "log").read_text().splitlines())
    ways = [(here, other) for other in others] + [(other, here) for other in others]
    ways += [way for pair in itertools.pairwise(others) for way in (pair, pair[::-1])]
    for number, (first, then) in enumerate(ways):
        home = tmp_path / f"way{number}"
        lines, status, errors = live(first, home)
        assert status == -signal.SIGKILL, errors
        again, status, errors = live(then, home, "resume", lines[0]["run"])
        assert status == 0, f"begun by {first}, resumed by {then}: {errors}"
        assert again[-1]["result"] == expected
        assert sorted((home / "log").read_text().splitlines()) == log
