"""One replay as data: `Job`, what a worker process is asked, and `Result`, what it answers. Both are stored as
JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.replay.inputs.step_times import SHIPPED, load
from benchmarks.replay.inputs.workload import SLOS, Arrivals, Mix, Workload
from benchmarks.replay.score import Score, Tail
from benchmarks.replay.types import Setting

UNKNOWN_CODE = "unknown"


@dataclass(frozen=True, slots=True)
class Job:
    """The configuration of one replay."""

    contender: str  # the scheduler's name in `baselines.contenders`
    trace: str  # path of the trace
    load: float = 1.1
    seed: int = 0
    slo: str = "loose"  # a key of SLOS
    slo_scale: float = 1.0
    mix: tuple[float, float, float] = (1.0, 1.0, 1.0)  # shares of latency, deadline and compound programs
    arrivals: str = Arrivals.TRACE.value
    seconds: float = 600.0
    replicas: int = 1
    steps: str = str(SHIPPED)  # path of a step-time model

    @property
    def workload(self) -> Workload:
        slo = SLOS[self.slo].scaled(self.slo_scale)
        return Workload(self.load, self.seed, slo, Mix(*self.mix), Arrivals(self.arrivals))

    @property
    def setting(self) -> Setting:
        return Setting(load(Path(self.steps)).step, seconds=self.seconds, replicas=self.replicas)

    def but(self, **changes: Any) -> Job:
        """Return a copy with these fields changed."""
        return replace(self, **changes)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Job:
        raw = json.loads(text)
        return cls(**{**raw, "mix": tuple(raw["mix"])})

    @property
    def key(self) -> str:
        """A digest of the configuration, under which the result is stored.

        The trace and the step model count by their content, wherever the files are. The code does not count: a
        result names the code that computed it, and `benchmarks/goodput.py --verify` compares it with the present one.
        """
        own = asdict(self)
        own["trace"], own["steps"] = _content(self.trace), _content(self.steps)
        return sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Result:
    job: Job
    score: Score
    cpu_s: float
    wall_s: float
    code: str = UNKNOWN_CODE  # version of the code that computed it (`results.code_version`)

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "job": json.loads(self.job.to_json())})

    @classmethod
    def from_json(cls, text: str) -> Result:
        raw = json.loads(text)
        job, code = Job.from_json(json.dumps(raw["job"])), str(raw.get("code", UNKNOWN_CODE))
        return cls(job, _score(raw["score"]), raw["cpu_s"], raw["wall_s"], code)


def _score(raw: Mapping[str, Any]) -> Score:
    values = {f.name: raw[f.name] for f in fields(Score)}
    for name in ("ttft", "tbt", "e2e"):
        values[name] = {kind: Tail(**tail) for kind, tail in raw[name].items()}
    values["over_time"] = tuple(tuple(point) for point in raw["over_time"])
    return Score(**values)


@lru_cache(maxsize=64)
def _content(path: str) -> str:
    """A digest of a file, or of all files of a folder with their names."""
    at = Path(path)
    files = sorted(at.rglob("*")) if at.is_dir() else [at]
    digest = sha256()
    for file in files:
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
