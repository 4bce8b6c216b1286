"""Kills at named crash points, and as many resumes: the runs end as if never killed. A few by default; CI runs
more."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.samples import sample

sys.path.insert(0, str(Path(__file__).parent))
import harness
import lives
import random_kills

ROOT = Path(__file__).parents[2]
POINTS = int(os.environ.get("RAMIFY_CRASH_POINTS", "8"))
ALL = 500  # with so many every named point is hit


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What `spoiled.py` reports."""
    program = [sys.executable, str(Path(__file__).with_name("spoiled.py")), str(sample(3, 12)), str(POINTS)]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=1490)
    assert ran.stdout, ran.stderr
    return dict(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.timeout(1500)
def test_runs_killed_anywhere_are_resumed(report: dict[str, Any]) -> None:
    assert report["failures"] == []
    assert report["points"] >= POINTS, report["distinct_points"]
    assert (report["lost"], report["duplicated"]) == (0, 0)
    if POINTS < ALL:
        return
    assert report["killed_twice"] > POINTS // 10
    assert report["in_doubt"] > 0  # the receiver that honours no keys, killed between intent and result
    assert report["never_killed_at"] == []  # each name that a scenario passes, in each scenario, on each database
    assert set(report["killed_at"]) == EVERYWHERE


def test_as_many_trials_are_killed_as_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that misses its point is replaced by another; if all miss, the series ends."""

    def run(trial: harness.Trial, folder: Path, database: str | None) -> harness.Trial:
        met = int(folder.name) % 3 and trial.point == "there"
        return replace(trial, killed_at=trial.point if met else "")

    monkeypatch.setattr(harness, "run", run)
    monkeypatch.setattr(harness, "judge", lambda trial, whole: trial)
    for point, killed in (("there", 10), ("nowhere", 0)):
        left: Any = "what an unkilled run leaves"
        whole = harness.Trial(harness.Scenario.GRAPH, "sqlite", passed=[point], left=left)
        at = tmp_path / point
        at.mkdir()
        known = {(whole.scenario, whole.database): whole}
        databases: dict[str, str | None] = {"sqlite": None}
        trials = harness.until_killed(known, databases, at, points=10, seed=1, workers=2, log=at / "log")
        assert sum(bool(trial.killed_at) for trial in trials) == killed


def test_a_log_belongs_to_one_code_and_one_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def known(*passed: str, where: str = "sqlite") -> dict[Any, harness.Trial]:
        return {(harness.Scenario.GRAPH, where): harness.Trial(harness.Scenario.GRAPH, where, passed=[*passed])}

    log, again = tmp_path / "log", known("there")
    harness.begin_log(log, known("there", "there"), 1)
    harness.begin_log(log, again, 1)
    ((_, whole),) = again.items()
    assert whole.passed == ["there", "there"]  # the kills are drawn as they were
    with pytest.raises(harness.OtherLog, match="log was begun with other seed: "):
        harness.begin_log(log, again, 2)
    with pytest.raises(harness.OtherLog, match="other databases: "):
        harness.begin_log(log, known("there", where="postgresql"), 1)
    monkeypatch.setattr(harness, "_code", lambda: "another")
    with pytest.raises(harness.OtherLog, match="other code, seed: "):
        harness.begin_log(log, again, 2)
    for text in ('{"number": 0}\n', "what", "[]"):  # of an older harness, and none at all
        log.write_text(text)
        with pytest.raises(harness.OtherLog):
            harness.begin_log(log, again, 1)


async def test_a_trial_finds_its_run_among_many(tmp_path: Path) -> None:
    """On a shared database, beside many workers."""
    others = [SimpleNamespace(workspace=str(tmp_path / str(number) / "workspace")) for number in range(100)]
    own = SimpleNamespace(workspace=str(tmp_path / "workspace"))

    async def runs(limit: int | None = None) -> list[SimpleNamespace]:
        return [*others, own][:limit]

    store: Any = SimpleNamespace(runs=runs)
    found: Any = await lives._known(store, tmp_path)
    assert found is own


EVERYWHERE = {
    *("written", "noted", "placed", "snapshot", "flushed", "cleared", "indexed"),  # the fork engine's
    *("rows numbered", "batch taken", "layers flushed", "transaction begun", "rows written", "batch committed"),
    *("saver's transaction begun", "saver's rows written", "saver's batch committed"),
    *("rows durable", "answer numbered", "answer durable"),
    *("world made", "seal begun", "about to ask", "answer there"),
    *("about to send", "sent"),  # the scenarios' own: in the middle of an effect
}
COLLECTION = {"marked", "forgotten", "removed"}  # killed at by test_collect.py
REMOTE = ROOT / "fork_engine" / "remote"  # killed at by fork_engine/remote/test_crash_points.py
CHECKOUT = {"written out"}  # killed at by fork_engine/test_crash_points.py


def test_every_crash_point_is_covered() -> None:
    """A new crash point must be added to the matrix."""
    parts = ("runtime", "fork_engine", "sandboxes", "api")
    sources = [path for part in parts for path in (ROOT / part).rglob("*.py") if path.parent != REMOTE]
    points = {name for path in sources for name in re.findall(r'crash_points\.point\("([^"]+)"\)', path.read_text())}
    assert sum(path.read_text().count("crash_points.point(") for path in sources) == sum(
        len(re.findall(r'crash_points\.point\("[^"]+"\)', path.read_text())) for path in sources
    ), "a point whose name is not written where it is passed"
    assert points == EVERYWHERE - {"about to send", "sent"} | COLLECTION | CHECKOUT


@pytest.mark.timeout(1500)
def test_a_runtime_that_loses_or_repeats_something_is_detected(report: dict[str, Any]) -> None:
    """Each is broken in one place; the comparison with an unkilled run must name it."""
    found: dict[str, list[str]] = report["found"]
    assert len(found) > 5
    assert {what: seen for what, seen in found.items() if what not in seen} == {}


def test_random_moments_adapt_to_the_speed_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_s = 0.1

    def run(trial: harness.Trial, folder: Path, database: str | None, delay_s: float) -> harness.Trial:
        return replace(trial, resumed=delay_s < ends_s)

    monkeypatch.setattr(harness, "run", run)
    monkeypatch.setattr(harness, "judge", lambda trial, whole: trial)
    took, chance = dict.fromkeys(harness.Scenario, 10 * ends_s), random.Random(7)
    whole: Any = "what an unkilled run leaves"
    tried = [random_kills.until_killed(s, whole, tmp_path, took, chance) for s in harness.Scenario for _ in range(2)]
    assert sum(trials[-1].resumed for trials in tried) > len(tried) // 2
    assert any(len(trials) > 1 for trials in tried)


@pytest.mark.timeout(1500)
def test_runs_killed_at_random_moments_are_resumed(report: dict[str, Any]) -> None:
    """Not only at named points: wherever SIGKILL strikes."""
    trials = report["trials"]
    assert [trial["wrong"] for trial in trials if trial["wrong"]] == []
    assert sum(trial["resumed"] for trial in trials) >= len(trials) // 3, "most kills fell outside the run"
