"""SIGKILL at random moments of the scenarios, on SQLite. Prints one JSON object a trial.

Usage: random_kills.py FOLDER TRIALS
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import harness

_TRIES = 5
"""Kills that may fall behind the end before the trial counts as one that was not killed."""


def main() -> None:
    folder, trials = Path(sys.argv[1]), int(sys.argv[2])
    known = harness.wholes({"sqlite": None}, folder)
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
        print(json.dumps({"wrong": wrong, "resumed": tried[-1].resumed}), flush=True)


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


if __name__ == "__main__":
    main()
