"""Five-stage agent pipelines: what each workflow asks of each pool, what its plan says of that, and when it comes.

Answer lengths are drawn from a trace, or from a log-normal distribution through its median and 95th percentile of
the Azure conversation trace (129 and 451 tokens). Arrivals are a Gamma process of a given CV, or a trace's times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from random import Random

from benchmarks.replay.inputs.traces import Trace

POOLS = ("plan", "search", "draft", "review", "write")
TOKENS_A_SECOND = 60.0  # of one replica
_MEDIAN, _SIGMA = 129, log(451 / 129) / 1.645
_LONGEST = 600


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of workflow: the calls of each stage, and the seconds of tools before it."""

    widths: tuple[int, ...]
    tools_s: tuple[float, ...]


KINDS = (
    Kind((1, 8, 1, 2, 1), (0.0, 0.5, 3.0, 1.0, 0.5)),  # searches widely
    Kind((1, 1, 6, 2, 1), (0.0, 2.0, 1.0, 4.0, 0.5)),  # drafts in parallel, and tests each draft
    Kind((1, 2, 1, 8, 1), (0.0, 1.0, 2.0, 1.0, 1.0)),  # many reviewers
)


@dataclass(frozen=True, slots=True)
class Stage:
    pool: str
    services_s: tuple[float, ...]  # of each call
    tool_s: float
    planned_tool_s: float


@dataclass(frozen=True, slots=True)
class Workflow:
    at: float
    stages: tuple[Stage, ...]

    @property
    def alone_s(self) -> float:
        """Its time on an empty system."""
        return sum(stage.tool_s + max(stage.services_s) for stage in self.stages)


def workload(
    seed: int, seconds: float, replicas: int, load: float, *, cv: float = 1.0, trace: Trace | None = None
) -> list[Workflow]:
    """Workflows with so much work for so many replicas. With a trace: its times, compressed to that load."""
    rng = Random(seed)
    lengths = [min(_LONGEST, a.call.output) for a in trace.arrivals if a.call.output] if trace else None

    def service_s() -> float:
        drawn = rng.choice(lengths) if lengths else min(_LONGEST, _MEDIAN * exp(rng.gauss(0, _SIGMA)))
        return max(1.0, drawn) / TOKENS_A_SECOND

    mean_s = sum(service_s() for _ in range(4000)) / 4000
    calls = sum(sum(kind.widths) for kind in KINDS) / len(KINDS)
    rate = load * replicas / (calls * mean_s)
    times = _gamma(rng, rate, cv, seconds) if trace is None else _traced(trace, rate, seconds, rng)
    return [Workflow(at, _stages(rng.choice(KINDS), rng, service_s)) for at in times]


def planned_service_s(workflows: Sequence[Workflow]) -> float:
    """What a plan expects of a call: the mean over all, since it does not know an answer's length."""
    services = [s for one in workflows for stage in one.stages for s in stage.services_s]
    return sum(services) / len(services)


def _stages(kind: Kind, rng: Random, service_s: Callable[[], float]) -> tuple[Stage, ...]:
    return tuple(
        Stage(pool, tuple(service_s() for _ in range(width)), tool_s * rng.uniform(0.5, 1.5), tool_s)
        for pool, width, tool_s in zip(POOLS, kind.widths, kind.tools_s, strict=True)
    )


def _gamma(rng: Random, rate: float, cv: float, seconds: float) -> list[float]:
    shape = 1 / cv**2
    out, now = [], 0.0
    while (now := now + rng.gammavariate(shape, 1 / (rate * shape))) < seconds:
        out.append(now)
    return out


def _traced(trace: Trace, rate: float, seconds: float, rng: Random) -> list[float]:
    """A stretch of the trace, as many arrivals as the rate asks for, in its own rhythm."""
    wanted = max(2, round(rate * seconds))
    times = [arrival.at for arrival in trace.arrivals]
    step = max(1, len(times) // (4 * wanted))  # every n-th arrival is a workflow; a stretch of a quarter at most
    thinned = times[rng.randrange(step) :: step]
    begin = rng.randrange(max(1, len(thinned) - wanted))
    part = thinned[begin : begin + wanted]
    scale = seconds / max(1e-9, part[-1] - part[0])
    return [(at - part[0]) * scale for at in part]
