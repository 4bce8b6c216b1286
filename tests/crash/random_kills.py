"""SIGKILL at random moments of the scenarios, on SQLite."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
from harness import Wholes

_TRIES = 5
"""Kills that may fall behind the end before the trial counts as one that was not killed."""


def killed_at_random(folder: Path, known: Wholes, trials: int) -> Iterator[dict[str, Any]]:
    """Yield for each trial what is `wrong` with its end, and whether it was `resumed`."""
    chance, scenarios = random.Random(7), list(harness.Scenario)
    took = {}
    for scenario in scenarios:
        timed = harness.run(harness.Trial(scenario, "sqlite"), folder / f"timed-{scenario.name}", None)
        took[scenario] = timed.took_s
    for number in range(trials):
        scenario = scenarios[number % len(scenarios)]
        whole = known[scenario, "sqlite"].left
        assert whole is not None
        tried = until_killed(scenario, whole, folder / str(number), took, chance)
        wrong = [one for trial in tried for one in trial.wrong]
        yield {"wrong": wrong, "resumed": tried[-1].resumed}


def until_killed(
    scenario: harness.Scenario,
    whole: harness.Left,
    folder: Path,
    took: dict[harness.Scenario, float],
    chance: random.Random,
) -> list[harness.Trial]:
    """Yield judged trials up to the first that was killed. A trial that ended before its moment shortens `took`,
    which was measured while the machine was busier."""
    tried = list[harness.Trial]()
    while len(tried) < _TRIES and not any(trial.resumed for trial in tried):
        delay_s = chance.uniform(0, took[scenario])
        trial = harness.run(harness.Trial(scenario, "sqlite"), folder / str(len(tried)), None, delay_s=delay_s)
        tried.append(harness.judge(trial, whole))
        if not trial.resumed:
            took[scenario] = delay_s
    return tried
