"""A process that replays: one JSON question a line on its standard input, one JSON answer a line on its output.

    {"replay": {…a Job…}}         answers with a Result
    {"fidelity": "a folder"}      answers with a Fidelity
    {"live": {"asks": …, "pace": …, "frame": …}}    answers with "served": what a live engine's requests come to
    An answer {"error": "…"} says what went wrong, and with a "kind" that it was not ours; the process goes on.

It runs in the Python that has vLLM. What vLLM prints goes to standard error.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramify.serving.policy.types import StepModel
from ramify.serving.replay.errors import ReplayError
from ramify.serving.replay.jobs import Job


def answer(line: str, folder: Path) -> dict[str, Any]:
    asked = json.loads(line)
    if "replay" in asked:
        from ramify.serving.replay.perform import run

        done: dict[str, Any] = json.loads(run(Job.from_json(json.dumps(asked["replay"])), folder).to_json())
        return done
    if "live" in asked:
        from ramify.serving.replay.live import Ask, Frame, Pace, replayed

        live = asked["live"]
        asks = [Ask(**one) for one in live["asks"]]
        pace = Pace(StepModel(**live["pace"]["step"]), live["pace"]["way_s"])
        served = replayed(asks, pace, Frame(**live["frame"]), folder)
        return {"served": [asdict(one) for one in served]}
    from ramify.serving.replay.fidelity import judge
    from ramify.serving.replay.measured import read_run

    return asdict(judge(read_run(Path(asked["fidelity"])), folder))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    gc.set_threshold(100_000, 50, 100)  # a replay makes next to no cycles, and is itself one: looked for after each
    with TemporaryDirectory(prefix="ramify-replay-") as folder:
        for line in sys.stdin:
            try:
                said = answer(line, Path(folder))
            except ReplayError as error:
                said = {"error": str(error)}
            except Exception as error:  # noqa: BLE001  # vLLM's own: whoever asked is told, and the log has the place
                traceback.print_exc()
                said = {"error": str(error) or repr(error), "kind": type(error).__name__}
            out.write(json.dumps(said) + "\n")
            out.flush()
            gc.collect()


if __name__ == "__main__":
    main()
