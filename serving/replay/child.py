"""A process that replays: one JSON question a line on its standard input, one JSON answer a line on its output.

    {"replay": {…a Job…}}         answers with a Result
    {"fidelity": "a folder"}      answers with a Fidelity
    {"live": {"asks": …, "step": …, "frame": …}}    answers with "served": what a live engine's requests come to
    An answer {"error": "…", "kind": "…"} says what went wrong; the process goes on.

It runs in the Python that has vLLM. What vLLM prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ramify.serving.policy.types import StepModel
from ramify.serving.replay.errors import ReplayError, TooFew, TooMany
from ramify.serving.replay.jobs import Job, Result
from ramify.serving.replay.made_up import read_workload
from ramify.serving.replay.trace import Trace
from ramify.serving.replay.types import Outcome

_MOST = 100_000  # programs; 600 s of the Azure trace at load 1.6 are 6,000


@lru_cache(maxsize=4)
def _trace(path: str) -> Trace:
    return read_workload(Path(path))


def run(job: Job, folder: Path) -> Result:
    """One replay, here."""
    from ramify.serving.replay.bounds.lp import chosen
    from ramify.serving.replay.contenders import CLAIRVOYANT, CLAIRVOYANT_CAPACITY, contender
    from ramify.serving.replay.engine import replay
    from ramify.serving.replay.fleet import replay_fleet
    from ramify.serving.replay.lengths import Told
    from ramify.serving.replay.score import score
    from ramify.serving.replay.workload import programs, seconds_a_program

    trace, setting, workload = _trace(job.trace), job.setting, job.workload
    count = workload.load * setting.replicas * setting.seconds / seconds_a_program(trace, workload.mix, setting)
    if count > _MOST:
        raise TooMany(count, _MOST, workload.load, setting.seconds)
    made, (begin, end) = programs(trace, workload, setting), setting.window
    if not any(begin <= program.at < end for program in made):
        raise TooFew(len(made), begin, end)
    told = Told([arrival.call.output for arrival in trace.arrivals], job.seed)
    come = chosen(made, setting, CLAIRVOYANT_CAPACITY) if job.contender == CLAIRVOYANT.name else made
    cpu, wall = time.process_time(), time.perf_counter()
    if job.replicas > 1:
        replayed = replay_fleet(come, contender(job.contender), setting, told, folder)
    else:
        replayed = replay(come, contender(job.contender), setting, told, folder)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    came = {program.id for program in come}
    replayed.outcomes += [Outcome(program, (), False, None) for program in made if program.id not in came]
    return Result(job, score(replayed, setting), *spent)


def answer(line: str, folder: Path) -> dict[str, Any]:
    asked = json.loads(line)
    if "replay" in asked:
        done: dict[str, Any] = json.loads(run(Job.from_json(json.dumps(asked["replay"])), folder).to_json())
        return done
    if "live" in asked:
        from ramify.serving.replay.live import Ask, Frame, replayed

        live = asked["live"]
        asks = [Ask(**one) for one in live["asks"]]
        served = replayed(asks, StepModel(**live["step"]), Frame(**live["frame"]), folder)
        return {"served": [asdict(one) for one in served]}
    from ramify.serving.replay.fidelity import judge
    from ramify.serving.replay.measured import read_run

    return asdict(judge(read_run(Path(asked["fidelity"])), folder))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    with TemporaryDirectory(prefix="ramify-replay-") as folder:
        for line in sys.stdin:
            try:
                said = answer(line, Path(folder))
            except ReplayError as error:
                said = {"error": str(error), "kind": type(error).__name__}
            except Exception as error:  # noqa: BLE001  # vLLM's own: whoever asked is told, and the log has the place
                traceback.print_exc()
                said = {"error": str(error) or repr(error), "kind": type(error).__name__}
            out.write(json.dumps(said) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
