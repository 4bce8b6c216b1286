"""The worker process that replays. It reads one JSON question a line, and writes one JSON answer a line.

    {"replay": {…a Job…}}                           the answer is a Result
    {"fidelity": "a folder"}                        the answer is a Fidelity
    {"live": {"asks": …, "pace": …, "frame": …}}    the answer has "served": the replay of a live engine's requests
    An answer {"error": "…"} says what went wrong. With a "kind" it was not one of our errors. The process goes on.

It runs in the Python that has vLLM. What vLLM prints goes to standard error.
"""

from __future__ import annotations

import gc
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

from benchmarks.replay.baselines.contenders import CLAIRVOYANT, CLAIRVOYANT_CAPACITY, contender
from benchmarks.replay.bounds.lp import chosen
from benchmarks.replay.errors import ReplayError, TooFew, TooMany
from benchmarks.replay.inputs.client_tags import LengthHints
from benchmarks.replay.inputs.synthetic_traces import read_workload
from benchmarks.replay.inputs.traces import Trace
from benchmarks.replay.inputs.workload import programs, seconds_a_program
from benchmarks.replay.jobs import Job, Result
from benchmarks.replay.results import code_version
from benchmarks.replay.score import score
from benchmarks.replay.simulation.fleet import simulate_fleet
from benchmarks.replay.simulation.simulation import replay
from benchmarks.replay.types import Outcome
from ramify.serving.policy.types import StepModel

_MOST = 100_000  # programs of a replay; 600 s of the Azure trace at load 1.6 have 6,000


@lru_cache(maxsize=4)
def _trace(path: str) -> Trace:
    return read_workload(Path(path))


def run(job: Job, folder: Path) -> Result:
    """Do one replay in this process, whose Python has vLLM. It may write to `folder`. Raises ReplayError."""
    trace, setting, workload = _trace(job.trace), job.setting, job.workload
    count = workload.load * setting.replicas * setting.seconds / seconds_a_program(trace, workload.mix, setting)
    if count > _MOST:
        raise TooMany(count, _MOST, workload.load, setting.seconds)
    made, (begin, end) = programs(trace, workload, setting), setting.window
    if not any(begin <= program.at < end for program in made):
        raise TooFew(len(made), begin, end)
    told = LengthHints([arrival.call.output for arrival in trace.arrivals], job.seed)
    come = chosen(made, setting, CLAIRVOYANT_CAPACITY) if job.contender == CLAIRVOYANT.name else made
    cpu, wall = time.process_time(), time.perf_counter()
    if job.replicas > 1:
        replayed = simulate_fleet(come, contender(job.contender), setting, told, folder)
    else:
        replayed = replay(come, contender(job.contender), setting, told, folder)
    spent = time.process_time() - cpu, time.perf_counter() - wall
    came = {program.id for program in come}
    replayed.outcomes += [Outcome(program, (), False, None) for program in made if program.id not in came]
    return Result(job, score(replayed, setting), *spent, code_version())


def answer(line: str, folder: Path) -> dict[str, Any]:
    asked = json.loads(line)
    if "replay" in asked:
        done: dict[str, Any] = json.loads(run(Job.from_json(json.dumps(asked["replay"])), folder).to_json())
        return done
    if "live" in asked:
        from benchmarks.replay.fidelity.live import Ask, Frame, Pace, replayed

        live = asked["live"]
        asks = [Ask(**one) for one in live["asks"]]
        pace = Pace(StepModel(**live["pace"]["step"]), live["pace"]["way_s"])
        served = replayed(asks, pace, Frame(**live["frame"]), folder)
        return {"served": [asdict(one) for one in served]}
    from benchmarks.replay.fidelity.fit import judge
    from benchmarks.replay.fidelity.measured_run import read_run

    return asdict(judge(read_run(Path(asked["fidelity"])), folder))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    gc.set_threshold(
        100_000, 50, 100
    )  # a replay makes almost no reference cycles, and is itself one: collect after each
    with TemporaryDirectory(prefix="ramify-replay-") as folder:
        for line in sys.stdin:
            try:
                said = answer(line, Path(folder))
            except ReplayError as error:
                said = {"error": str(error)}
            except Exception as error:  # noqa: BLE001  # an error of vLLM: the caller gets it, and the log has the traceback
                traceback.print_exc()
                said = {"error": str(error) or repr(error), "kind": type(error).__name__}
            out.write(json.dumps(said) + "\n")
            out.flush()
            gc.collect()


if __name__ == "__main__":
    main()
