"""LP bounds as shares of what arrived, worked out when first asked for and kept beside the replays' results."""

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
    whole: float  # of all programs of the run: those around the window cannot be left out for it


class Bounds:
    """`kept`: a folder, or None to keep nothing."""

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        self._known: dict[Job, Share] = {}

    def of(self, job: Job, seeds: Iterable[int]) -> Share:
        """Of `job`'s circumstances, whoever its contender is. Raises ReplayError for a trace that cannot be read."""
        shares = [self._one(job.but(contender=_NAME, seed=seed)) for seed in seeds]
        return Share(*(fmean(values) for values in zip(*(astuple(one) for one in shares), strict=True)))

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """One of each circumstances and seed whose bound has to be worked out yet."""
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
    """A program of the window that cannot be met and has all blocks that those around it may leave in the prefix
    cache (what comes after it, for the late stages of who came in it): standing before the others it pays for
    them, and is worth nothing. None where nothing is shared.

    The bound of the window does not serve those around it, so that without this it would charge the window for
    prompts that others have computed: on agent sessions that is no upper bound."""
    begin, end = setting.window
    blocks = {block for one in made if not begin <= one.at < end for call in one.calls for block in call.blocks}
    if not blocks:
        return None
    stages = (Stage((Call(1, 1, tuple(sorted(blocks))),)),)
    return Program(ProgramId(-1), begin, SloClass.DEADLINE, stages, deadline_s=0.0)


@lru_cache(maxsize=4)
def _trace(path: str) -> Trace:
    return read_workload(Path(path))
