"""One replay as data: what is asked of a child process, and what it answers. JSON, so that results can be kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.replay.baselines.contenders import CLAIRVOYANT, CLAIRVOYANT_CAPACITY, contender
from benchmarks.replay.inputs.step_times import SHIPPED, load
from benchmarks.replay.inputs.workload import SLOS, Arrivals, Mix, Workload
from benchmarks.replay.score import Score, Tail
from benchmarks.replay.sources import code_digest, fleet_digest, modules_digest
from benchmarks.replay.types import Setting


@dataclass(frozen=True, slots=True)
class Job:
    contender: str
    trace: str  # a path
    load: float = 1.1
    seed: int = 0
    slo: str = "loose"  # a key of SLOS
    slo_scale: float = 1.0
    mix: tuple[float, float, float] = (1.0, 1.0, 1.0)  # latency, deadline, compound
    arrivals: str = Arrivals.TRACE.value
    seconds: float = 600.0
    replicas: int = 1
    steps: str = str(SHIPPED)  # a step-time model's path

    @property
    def workload(self) -> Workload:
        slo = SLOS[self.slo].scaled(self.slo_scale)
        return Workload(self.load, self.seed, slo, Mix(*self.mix), Arrivals(self.arrivals))

    @property
    def setting(self) -> Setting:
        return Setting(load(Path(self.steps)).step, seconds=self.seconds, replicas=self.replicas)

    def but(self, **changes: Any) -> Job:
        return replace(self, **changes)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Job:
        raw = json.loads(text)
        return cls(**{**raw, "mix": tuple(raw["mix"])})

    @property
    def key(self) -> str:
        """Under which its result is kept: other code, another trace or another step model is another key."""
        return self.key_for(_code(self.contender, self.replicas > 1))

    def key_for(self, code: str) -> str:
        """The same for what `code`, a digest, makes of these circumstances."""
        own = asdict(self)
        own["trace"], own["steps"] = _digest(self.trace), _digest(self.steps)
        return sha256((json.dumps(own, sort_keys=True) + code).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Result:
    job: Job
    score: Score
    cpu_s: float
    wall_s: float

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "job": json.loads(self.job.to_json())})

    @classmethod
    def from_json(cls, text: str) -> Result:
        raw = json.loads(text)
        return cls(Job.from_json(json.dumps(raw["job"])), _score(raw["score"]), raw["cpu_s"], raw["wall_s"])


def _score(raw: Mapping[str, Any]) -> Score:
    values = {f.name: raw[f.name] for f in fields(Score)}
    for name in ("ttft", "tbt", "e2e"):
        values[name] = {kind: Tail(**tail) for kind, tail in raw[name].items()}
    values["over_time"] = tuple(tuple(point) for point in raw["over_time"])
    return Score(**values)


@lru_cache(maxsize=64)
def _code(name: str, fleet: bool) -> str:
    own = code_digest(contender(name))
    if fleet:
        own += fleet_digest()
    if name != CLAIRVOYANT.name:
        return own
    return own + modules_digest(["benchmarks.replay.bounds.lp"], repr(CLAIRVOYANT_CAPACITY))


@lru_cache(maxsize=64)
def _digest(path: str) -> str:
    at = Path(path)
    files = sorted(at.rglob("*")) if at.is_dir() else [at]
    digest = sha256()
    for file in files:
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
