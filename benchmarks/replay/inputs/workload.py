"""`programs`: makes the programs of a replay from a trace: when each arrives, of which kind, with which stages.

One program arrives at each of the trace's times, stretched or squeezed to the load, so the bursts stay. Load 1 is
the arrival rate at which one second brings one second of GPU time, by the true lengths in a full batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from math import exp
from random import Random
from statistics import fmean

from benchmarks.replay.inputs.traces import Session, Trace
from benchmarks.replay.types import Call, Program, ProgramId, Setting, Stage
from ramify.serving.policy.cost_model import decode_gpu_s, prefill_s
from ramify.serving.policy.types import SloClass, StepModel

_SAMPLE = 4000  # programs whose mean cost defines load 1
_STAGES = (2, 3, 3, 4, 5)
_WIDTHS = (1, 1, 2, 3)
_TOOL_MEDIAN_S, _TOOL_SPREAD = 0.7, 0.6  # log-normal
_PERSON_S = 30.0  # a longer gap in a session is a person's: another program begins after it


@dataclass(frozen=True, slots=True)
class Slo:
    ttft_s: float = 2.0
    tbt_s: float = 0.1
    deadline_s: float = 20.0
    stage_s: float = 20.0  # deadline of a compound program, for each stage

    def scaled(self, by: float) -> Slo:
        return Slo(self.ttft_s * by, self.tbt_s * by, self.deadline_s * by, self.stage_s * by)


THESIS = Slo()  # §6.1: P95 of a public API
ARTIFACT = Slo(0.8, 0.08, 8.0, 8.0)  # of the thesis's published code
SLOS = {"loose": THESIS, "tight": ARTIFACT}


class Arrivals(StrEnum):
    TRACE = "trace"
    POISSON = "poisson"


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of programs by kind. They need not sum to 1."""

    latency: float = 1.0
    deadline: float = 1.0
    compound: float = 1.0


@dataclass(frozen=True, slots=True)
class Workload:
    load: float = 1.1
    seed: int = 0
    slo: Slo = THESIS
    mix: Mix = Mix()
    arrivals: Arrivals = Arrivals.TRACE


def programs(trace: Trace, workload: Workload, setting: Setting) -> list[Program]:
    """Return the programs of a replay. Deterministic: equal arguments give equal programs."""
    rate = workload.load * setting.replicas / seconds_a_program(trace, workload.mix, setting)
    count = max(1, round(rate * setting.seconds))
    shapes = _shapes(trace, workload.mix, Random(f"shapes/{workload.seed}"))
    times = _times(trace, workload, count, setting.seconds)
    return [
        _program(ProgramId(i), at, *next(shapes), workload.slo) for i, at in enumerate(times)
    ]  # fmt: skip


def seconds_a_program(trace: Trace, mix: Mix, setting: Setting) -> float:
    """Return the mean GPU time of a program by its true lengths in a full batch: 1 / (programs a second)."""
    shapes = _shapes(trace, mix, Random("capacity"))
    return fmean(sum(gpu_seconds(stages, setting.step, setting.slots)) for _, stages in islice(shapes, _SAMPLE))


def gpu_seconds(stages: Sequence[Stage], step: StepModel, slots: int) -> list[float]:
    """Return the GPU time of each call, in the order of the stages."""
    known = set[int]()
    return [
        prefill_s(step, call.uncached(known)) + decode_gpu_s(step, slots, call.prompt, call.output)
        for stage in stages
        for call in stage.calls
    ]


def _times(trace: Trace, workload: Workload, count: int, seconds: float) -> list[float]:
    chance = Random(f"times/{workload.seed}")
    if workload.arrivals is Arrivals.POISSON:
        return sorted(chance.uniform(0, seconds) for _ in range(count))
    at = [arrival.at for arrival in trace.arrivals]
    length = at[-1] - at[0] + (at[-1] - at[0]) / (len(at) - 1)
    begin = chance.randrange(len(at))
    taken = [at[(begin + i) % len(at)] + length * ((begin + i) // len(at)) for i in range(count + 1)]
    whole = (taken[-1] - taken[0]) or 1.0
    return [(t - taken[0]) * seconds / whole for t in taken[:-1]]


_Shape = tuple[SloClass, tuple[Stage, ...]]


def _shapes(trace: Trace, mix: Mix, chance: Random) -> Iterator[_Shape]:
    """Yield kind and stages of programs, without end: single calls with the trace's lengths, and workflows."""
    kinds = (SloClass.LATENCY, SloClass.DEADLINE, SloClass.COMPOUND)
    shares = (mix.latency, mix.deadline, mix.compound)
    calls = _calls(trace, chance)
    typical = fmean(a.call.prompt for a in trace.arrivals), fmean(a.call.output for a in trace.arrivals)
    workflows = _of_sessions(trace.sessions, chance) if trace.sessions else _generated_stages(calls, typical, chance)
    while True:
        kind = chance.choices(kinds, shares)[0]
        if kind is SloClass.COMPOUND:
            yield kind, next(workflows)
        else:
            yield kind, (Stage((next(calls),), 0.0, *typical),)


def _calls(trace: Trace, chance: Random) -> Iterator[Call]:
    """Yield the trace's calls in its order, from a random place on."""
    at = chance.randrange(len(trace.arrivals))
    while True:
        yield trace.arrivals[at].call
        at = (at + 1) % len(trace.arrivals)


def _generated_stages(
    calls: Iterator[Call], typical: tuple[float, float], chance: Random
) -> Iterator[tuple[Stage, ...]]:
    while True:
        stages = []
        for number in range(chance.choice(_STAGES)):
            tool_s = _TOOL_MEDIAN_S * exp(_TOOL_SPREAD * chance.gauss(0, 1)) if number else 0.0
            stages.append(Stage(tuple(next(calls) for _ in range(chance.choice(_WIDTHS))), tool_s, *typical))
        yield tuple(stages)


def _of_sessions(sessions: Sequence[Session], chance: Random) -> Iterator[tuple[Stage, ...]]:
    """Yield pieces of real sessions: consecutive turns up to a gap that a person made."""
    while True:
        turns = chance.choice(sessions).turns
        begin = chance.randrange(len(turns))
        piece = [turns[begin]]
        for turn in turns[begin + 1 : begin + chance.choice(_STAGES)]:
            if turn.gap_s > _PERSON_S:
                break
            piece.append(turn)
        prompt = fmean(call.prompt for turn in turns for call in turn.calls)
        output = fmean(call.output for turn in turns for call in turn.calls)
        yield tuple(
            Stage(turn.calls, turn.gap_s if number else 0.0, prompt, output) for number, turn in enumerate(piece)
        )


def _program(id_: ProgramId, at: float, kind: SloClass, stages: tuple[Stage, ...], slo: Slo) -> Program:
    if kind is SloClass.LATENCY:
        return Program(id_, at, kind, stages, ttft_s=slo.ttft_s, tbt_s=slo.tbt_s)
    due = slo.deadline_s if kind is SloClass.DEADLINE else slo.stage_s * len(stages)
    return Program(id_, at, kind, stages, deadline_s=due)
