"""Replays of streams for `benchmarks/streams.py`: the schedulers, the engine, and what readers get of one replay.

The engine is bound by KV: of calls like those of Azure's conversations it holds about 25.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from benchmarks.replay.bounds import free_switching
from benchmarks.replay.errors import ReplayError
from benchmarks.replay.inputs.client_tags import LengthHints
from benchmarks.replay.inputs.stream_loads import Load, arrivals_of, programs
from benchmarks.replay.simulation.outcomes import GOOD_QOE
from benchmarks.replay.simulation.simulation import Replayed, replay
from benchmarks.replay.types import CallOutcome, Contender, Knowledge, Lengths, Setting, Stock, TierSettings, Watch
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import StepModel

STEP = StepModel(base_ms=40, per_seq_ms=0.06, per_kctx_ms=0.36, per_prefill_ms=0.2)  # 70 billion parameters on A100s
SETTING = Setting(step=STEP, slots=256, pause_room=256, kv_tokens=40_000, step_tokens=2048, warm=0.0, cool=0.0)
TIER = TierSettings(tokens=1_000_000, copy_ms=0.0033)  # 320 KiB a token, over four links of 25 GB/s (PCIe 4)
_BLIND = Knowledge(lengths=Lengths.NONE)


def contenders() -> dict[str, tuple[Contender, Setting]]:
    """Return the schedulers by name, each with its engine's setting."""
    from benchmarks.replay.baselines.exact_packing import ExactPacking
    from benchmarks.replay.baselines.least_slack import LeastSlack

    def of(name: str, engine: object, **more: object) -> Contender:
        return Contender(name, engine, _BLIND, preempts=True, **more)  # type: ignore[arg-type]

    def andes(name: str, **options: Any) -> Contender:
        return of(name, lambda: make_policy("andes", **options))

    made = (
        (of("fcfs", Stock(chunked_prefill=False)), SETTING),
        (of("chunked prefill", Stock()), replace(SETTING, step_tokens=1024)),
        (of("least slack", lambda: make_policy("edf")), SETTING),
        (of("least slack, preempting", LeastSlack), SETTING),
        (andes("andes"), SETTING),
        (of("concord", lambda: make_policy("concord")), SETTING),
        (andes("andes, no refiner", refine=False), SETTING),
        (andes("andes, 10 s ahead", horizon_s=10.0), SETTING),
        (andes("andes, 60 s ahead", horizon_s=60.0), SETTING),
        (of("andes, exact knapsack", ExactPacking), SETTING),
    )
    return {one.name: (one, setting) for one, setting in made}


@dataclass(frozen=True, slots=True)
class Measured:
    """What readers got in one replay."""

    qoe: float  # mean
    good: float  # share with a QoE of 0.95 at least
    ttft_s: float  # mean
    ttft_p50_s: float
    ttft_p90_s: float
    silence: float  # mean share of a stream's time in which its reader has nothing to read
    queue: int  # most streams at once that wait for their first token
    throughput: float  # tokens a second while requests arrive
    preemptions: int
    pauses: int
    streams: int

    @classmethod
    def of(cls, done: Replayed, seconds: float) -> Measured:
        calls = [call for one in done.outcomes for call in one.calls]
        qoes = [0.0 if call.qoe is None else call.qoe for call in calls]
        waits = [call.first - call.arrived for call in calls if call.first is not None]
        return cls(
            qoe=fmean(qoes),
            good=fmean([qoe >= GOOD_QOE for qoe in qoes]),
            ttft_s=fmean(waits),
            ttft_p50_s=median(waits),
            ttft_p90_s=quantiles(waits, n=10)[-1] if len(waits) > 1 else waits[0],
            silence=fmean([1.0 if call.silence is None else call.silence for call in calls]),
            queue=most_waiting(calls),
            throughput=done.generated / seconds,
            preemptions=done.preemptions,
            pauses=done.pauses,
            streams=len(calls),
        )


def most_waiting(calls: Sequence[CallOutcome]) -> int:
    """Return the most calls at once that have arrived and have no token yet."""
    changes = [(call.arrived, 1) for call in calls]
    changes += [(call.first, -1) for call in calls if call.first is not None]
    return max(accumulate([change for _, change in sorted(changes)]), default=0)


def replayed(
    name: str, load: Load, seconds: float, seed: int, trace: Path | None, watch: Watch | None = None
) -> Measured:
    """Replay one scheduler under one load. Needs vLLM."""
    contender, setting = contenders()[name]
    contender = replace(contender, tier=TIER if load.tier else None)
    with tempfile.TemporaryDirectory() as folder:
        arrivals = arrivals_of(trace, Path(folder), load.prompts)
        made = programs(arrivals, load, seconds, seed)
        if not made:
            raise ReplayError(f"no stream arrives in {seconds:g} s at {load.rate:g} a second: its calls are too long")
        told = LengthHints([one.call.output for one in arrivals], seed)
        engine = replace(load.setting(setting), seconds=seconds)
        return Measured.of(replay(made, contender, engine, told, Path(folder), watch=watch), seconds)


def with_kv_for_all(load: Load, seconds: float, seed: int, trace: Path | None) -> float:
    """Return the average QoE under this load of an engine with KV for everybody, which knows what comes."""
    with tempfile.TemporaryDirectory() as folder:
        made = programs(arrivals_of(trace, Path(folder), load.prompts), load, seconds, seed)
    return free_switching.best_qoe(made, load.setting(SETTING))
