"""`Bounds`: LP bounds as shares of what arrived. Each is computed once and stored beside the replays' results.

A stored bound has its job's configuration as its key. After a change of `lp` or `workload`, delete the
`bound-*.json` files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from benchmarks.replay.bounds.lp import Bound, request_bound, token_bound
from benchmarks.replay.inputs.synthetic_traces import read_workload
from benchmarks.replay.inputs.traces import Trace
from benchmarks.replay.inputs.workload import programs
from benchmarks.replay.jobs import Job
from benchmarks.replay.results import read_stored, write_stored
from benchmarks.replay.types import Call, Program, ProgramId, Setting, Stage
from ramify.serving.policy.types import SloClass

_NAME = "LP bound"


@dataclass(frozen=True, slots=True)
class Share:
    """Means over the seeds."""

    request: float  # of the window's programs
    token: float  # of the window's tokens
    whole: float  # of all programs of the run: no program outside the window can be left out in its favour


class Bounds:
    """`kept`: the folder of stored bounds, or None to store nothing."""

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        self._known: dict[Job, Share] = {}

    def of(self, job: Job, seeds: Iterable[int]) -> Share:
        """Return the bound of `job`'s circumstances, for any contender. Raises ReplayError if the trace cannot be
        read.
        """
        shares = [self._one(job.but(contender=_NAME, seed=seed)) for seed in seeds]
        return Share(*(fmean(values) for values in zip(*(astuple(one) for one in shares), strict=True)))

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """Return one job for each circumstances and seed whose bound is not computed yet."""
        plain = dict.fromkeys(job.but(contender=_NAME) for job in jobs)
        paths = {job: self._path(job) for job in plain if job not in self._known}
        return [job for job, path in paths.items() if path is None or not path.exists()]

    def _path(self, job: Job) -> Path | None:
        return None if self._kept is None else self._kept / f"bound-{job.key}.json"

    def _one(self, job: Job) -> Share:
        if job not in self._known:
            path = self._path(job)
            found = None if path is None else read_stored(path, lambda text: Share(**json.loads(text)))
            self._known[job] = share = found or _solved(job)
            if path is not None and found is None:
                write_stored(path, json.dumps(asdict(share)))
        return self._known[job]


def _solved(job: Job) -> Share:
    setting = job.setting
    made = programs(_trace(job.trace), job.workload, setting)
    around = brought(made, setting)
    window = [around, *made] if around else made
    requests, tokens = request_bound(window, setting), token_bound(window, setting)
    if around:
        requests = Bound(requests.value, requests.total - 1.0)
        tokens = Bound(tokens.value, tokens.total - sum(call.prompt + call.output for call in around.calls))
    return Share(requests.share, tokens.share, request_bound(made, replace(setting, warm=0.0, cool=0.0)).share)


def brought(made: Sequence[Program], setting: Setting) -> Program | None:
    """Return a program that pays for all blocks that programs outside the window may leave in the prefix cache.

    It is the first in the window, cannot be met, and is worth nothing. None if no blocks are shared. Later programs
    count too, for the late stages of those in the window.

    The bound of the window does not serve the programs outside it. Without this it would charge the window for
    prompts that others have computed, and on agent sessions that would be no upper bound.
    """
    begin, end = setting.window
    blocks = {block for one in made if not begin <= one.at < end for call in one.calls for block in call.blocks}
    if not blocks:
        return None
    stages = (Stage((Call(1, 1, tuple(sorted(blocks))),)),)
    return Program(ProgramId(-1), begin, SloClass.DEADLINE, stages, deadline_s=0.0)


@lru_cache(maxsize=4)
def _trace(path: str) -> Trace:
    return read_workload(Path(path))
