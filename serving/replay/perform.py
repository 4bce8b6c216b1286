"""One replay from a job to its result: the trace, its programs, who comes, the engine or engines, the score."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path

from ramify.serving.replay.bounds.lp import chosen
from ramify.serving.replay.contenders import CLAIRVOYANT, CLAIRVOYANT_CAPACITY, contender
from ramify.serving.replay.engine import replay
from ramify.serving.replay.errors import TooFew, TooMany
from ramify.serving.replay.fleet import replay_fleet
from ramify.serving.replay.jobs import Job, Result
from ramify.serving.replay.lengths import Told
from ramify.serving.replay.made_up import read_workload
from ramify.serving.replay.score import score
from ramify.serving.replay.trace import Trace
from ramify.serving.replay.types import Outcome
from ramify.serving.replay.workload import programs, seconds_a_program

_MOST = 100_000  # programs; 600 s of the Azure trace at load 1.6 are 6,000


@lru_cache(maxsize=4)
def _trace(path: str) -> Trace:
    return read_workload(Path(path))


def run(job: Job, folder: Path) -> Result:
    """Here: this Python has vLLM. `folder` may be written to. Raises ReplayError."""
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
