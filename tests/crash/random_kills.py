"""SIGKILL at random moments of the scenarios, on SQLite. Prints one JSON object a trial.

Usage: random_kills.py FOLDER TRIALS
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import harness


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
        trial = harness.Trial(scenario, "sqlite")
        trial = harness.run(trial, folder / str(number), None, delay_s=chance.uniform(0, took[scenario]))
        whole = known[scenario, "sqlite"].left
        assert whole is not None
        harness.judge(trial, whole)
        print(json.dumps({"wrong": trial.wrong, "resumed": trial.resumed}), flush=True)


if __name__ == "__main__":
    main()
