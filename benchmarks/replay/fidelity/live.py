"""Compares replays with a live engine: the same requests are sent to it several times, and replayed.

The step-time model is measured from the engine itself before and after each run (`step_probe.profile`), because a
machine changes from one run to the next. Nothing is fitted to what is judged. The requests are single calls with a
trace's arrivals and a part of its lengths, at a load that the first model gives.

No two runs of one engine are the same. So the replays agree if their mean is no further from the mean of the runs
than the runs are from each other. This gets easier with more runs. How far each run is from its own replay does
not, and is reported too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean

from benchmarks.replay.errors import BadProbe, BadTrace
from benchmarks.replay.fidelity.measured_run import Run, Served
from benchmarks.replay.fidelity.rerun import rerun
from benchmarks.replay.fidelity.step_probe import Endpoint, Profile
from benchmarks.replay.inputs.step_times import Held
from benchmarks.replay.inputs.traces import Trace
from benchmarks.replay.inputs.workload import Mix, Workload, programs, seconds_a_program
from benchmarks.replay.types import Setting
from ramify.serving.policy.types import StepModel

_APART = 0.9  # share of the tokens that must arrive one at a time
_CALLS = Mix(latency=0.0, deadline=1.0, compound=0.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request before it is sent: seconds since the run began, and tokens."""

    at: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The settings of the live engine that its schedule depends on."""

    slots: int
    step_tokens: int
    overlap: bool  # it schedules a step while the one before it runs
    chunked_prefill: bool


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the engine is, measured from outside."""

    step: StepModel
    way_s: float  # of a request to the engine and its first token back; a replay puts it all before the engine


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a trace's lengths are reduced for a small engine."""

    share: float = 0.25  # of the trace's tokens
    prompt: int = 384  # tokens at most
    output: int = 64


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of every run: means over its requests, and how far single requests differ, in seconds."""

    name: str
    live: tuple[float, ...]  # mean of each live run
    replays: tuple[float, ...]  # mean of each run's replay
    live_apart: float  # mean difference of a request between two live runs
    replay_apart: float  # mean difference of a request between a live run and its replay

    @property
    def mean(self) -> float:
        return fmean(self.live)

    @property
    def replayed(self) -> float:
        return fmean(self.replays)

    @property
    def spread(self) -> float:
        return max(self.live) - min(self.live)

    @property
    def off(self) -> float:
        return self.replayed - self.mean

    @property
    def runs_apart(self) -> float:
        """Mean difference of every two live runs."""
        return fmean(abs(a - b) for a, b in combinations(self.live, 2))

    @property
    def replays_apart(self) -> float:
        """Mean difference of a live run and its own replay."""
        return fmean(abs(a - b) for a, b in zip(self.live, self.replays, strict=True))

    @property
    def agrees(self) -> bool:
        """Is the replays' mean no further from the live runs' mean than the runs are from each other?"""
        return abs(self.off) <= self.spread


def plan(
    trace: Trace, step: StepModel, slots: int, count: int, *, load: float, seed: int = 0, sizes: Sizes | None = None
) -> tuple[Ask, ...]:
    """Return `count` calls of the trace, from a place that the seed gives, at a share `load` of the engine's
    capacity.

    The capacity is that of `step`. Raises BadTrace for a count below 2 or a load of 0.
    """
    if count < 2 or load <= 0:
        raise BadTrace(
            Path(trace.name), f"{count} requests at load {load:g}: give at least two requests and a load above 0"
        )
    small = _small(trace, sizes or Sizes())
    setting = Setting(step, slots=slots)
    setting = replace(setting, seconds=count * seconds_a_program(small, _CALLS, setting) / load)
    made = programs(small, Workload(load, seed, mix=_CALLS), setting)
    return tuple(Ask(one.at, one.calls[0].prompt, one.calls[0].output) for one in made)


def _small(trace: Trace, sizes: Sizes) -> Trace:
    def call(prompt: int, output: int) -> tuple[int, int]:
        return (
            max(1, min(sizes.prompt, round(prompt * sizes.share))),
            max(2, min(sizes.output, round(output * sizes.share))),  # one token has no time between tokens
        )

    arrivals = []
    for one in trace.arrivals:
        prompt, output = call(one.call.prompt, one.call.output)
        arrivals.append(replace(one, call=replace(one.call, prompt=prompt, output=output, blocks=())))
    return replace(trace, arrivals=tuple(arrivals), sessions=())


async def serve(
    endpoint: Endpoint,
    asks: Sequence[Ask],
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[Served]:
    """Send the requests to a live engine, each at its time, and return when their tokens came.

    `now` is the clock of the endpoint's streams. Raises BadProbe if an answer has no token, or if many tokens
    arrive together, as from a server that is behind.
    """
    begun, tasks = now(), []
    try:
        async with asyncio.TaskGroup() as group:
            for ask in asks:
                await sleep(max(0.0, begun + ask.at - now()))
                tasks.append(group.create_task(endpoint.batch([ask.prompt], ask.output)))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors  # the others come from the same engine
    served, seen, asked = [], 0, sum(ask.output for ask in asks)
    for number, (ask, task) in enumerate(zip(asks, tasks, strict=True)):
        (stream,) = task.result()
        if not stream.times:
            raise BadProbe(f"request {number} got none of its {ask.output} tokens: it cannot be compared")
        seen += len(stream.times)
        served.append(
            Served(ask.prompt, ask.output, stream.sent - begun, stream.times[0] - begun, stream.times[-1] - begun)
        )
    if seen < _APART * asked:
        raise BadProbe(f"{asked} tokens came in {seen} pieces: they cannot be timed; ask for a lower load")
    return served


def between(probed: Sequence[Profile]) -> list[Pace]:
    """Return the pace of each run: the mean of what was measured before and after it."""
    paces = []
    for before, after in pairwise(probed):
        terms = zip(astuple(before.step), astuple(after.step), strict=True)
        paces.append(Pace(StepModel(*map(fmean, terms)), fmean([before.way_s, after.way_s])))
    return paces


def replayed(asks: Sequence[Ask], pace: Pace, frame: Frame, folder: Path) -> list[Served]:
    """Replay the requests through vLLM's own scheduler and KV cache manager, with the times of `pace`."""
    asked = tuple(Served(ask.prompt, ask.output, *[ask.at + pace.way_s] * 3) for ask in asks)
    run = Run("live", frame.slots, frame.step_tokens, asked, frame.overlap, frame.chunked_prefill)

    def step_ms(held: Held) -> float:
        return pace.step.step_ms(held.sequences, held.context, held.prefill)

    served, _ = rerun(run, step_ms, folder)
    return [replace(one, arrived=ask.at) for one, ask in zip(served, asks, strict=True)]


def compared(live: Sequence[Sequence[Served]], replays: Sequence[Sequence[Served]]) -> list[Figure]:
    """Compare TTFT, TPOT and E2E of at least two live runs and of each one's replay."""
    figures: list[tuple[str, Callable[[Served], float]]] = [
        ("TTFT", lambda one: one.ttft),
        ("TPOT", lambda one: one.tpot),
        ("E2E", lambda one: one.last - one.arrived),
    ]
    found = []
    for name, figure in figures:
        runs = [[figure(one) for one in run] for run in live]
        ours = [[figure(one) for one in run] for run in replays]
        found.append(
            Figure(
                name,
                tuple(fmean(run) for run in runs),
                tuple(fmean(run) for run in ours),
                fmean(_apart(a, b) for a, b in combinations(runs, 2)),
                fmean(_apart(a, b) for a, b in zip(ours, runs, strict=True)),
            )
        )
    return found


def _apart(a: Sequence[float], b: Sequence[float]) -> float:
    return fmean(abs(x - y) for x, y in zip(a, b, strict=True))
