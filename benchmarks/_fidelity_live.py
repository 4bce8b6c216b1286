"""A replay against vLLM for CPUs, live, with SmolLM2: rows for benchmarks/fidelity.py.

One engine is started, by the project's own launcher, with vLLM's own scheduler: first come, first served. Its steps
are timed as `ramify bench profile` times them, the requests are sent to it several times over, and the steps timed
again: what they moved meanwhile is the machine's doing.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from ramify import paths
from ramify.serving import models
from ramify.serving.engine.vllm import VllmEngine
from ramify.serving.policy.types import StepModel
from ramify.serving.replay import made_up
from ramify.serving.replay.live import Figure, Frame, compared, plan, serve
from ramify.serving.replay.measured import Served
from ramify.serving.replay.pool import child
from ramify.serving.replay.probe import HttpEndpoint, Plan, Profile, profile
from ramify.serving.replay.trace import Trace, read

SLOTS, CONTEXT = 8, 1024
# vLLM for CPUs schedules no step ahead of the one that runs; the launcher has prompts computed in one piece.
FRAME = Frame(SLOTS, step_tokens=4096, overlap=False, chunked_prefill=False)
PROBES = Plan(batches=(1, 2, 4, SLOTS), prompts=(16, 128, 384), tokens=32, repeats=3)
BRIEF = Plan(batches=(1, SLOTS), prompts=(32, 256), tokens=12, repeats=1)
_FULL_MS = (SLOTS, SLOTS * 200, 0.0)  # the step by which two models are compared: all slots, 200 tokens each


@dataclass(frozen=True, slots=True)
class Compared:
    figures: list[Figure]
    step: StepModel
    probe_error: float  # of the probes under the model, mean absolute, relative
    drift: float  # by how much a full batch's step had changed when it was measured again, relative
    seconds: float  # from the first request to the last token, longest of the live runs
    load: tuple[float, float]  # the machine's, before and after: 1 a busy core


def measure(
    trace: Path | None, *, requests: int, runs: int, load: float, seed: int, told: Any = print, probes: Plan = PROBES
) -> Compared:
    """Raises ReplayError, or ServingError where there is no vLLM or no model."""
    asked = read(trace) if trace else _made_up()
    return asyncio.run(_measure(asked, requests, runs, load, seed, told, probes))


def _made_up() -> Trace:
    with tempfile.TemporaryDirectory(prefix="ramify-fidelity-") as folder:
        return read(made_up.write(Path(folder) / "made-up.jsonl"))


async def _measure(
    trace: Trace, requests: int, runs: int, load: float, seed: int, told: Any, probes: Plan
) -> Compared:
    model = models.locate(paths.home(None))
    before = os.getloadavg()[0]
    live: list[list[Served]] = []
    told(f"starting vLLM with {model.name}")
    async with VllmEngine(model, alias="m", slots=SLOTS, context=CONTEXT, scheduler=None, cpu=True) as engine:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=engine.base_url + "/", timeout=600.0, limits=limits, trust_env=False
        ) as client:
            endpoint = HttpEndpoint(client, "m", seed)
            first = await profile(endpoint, probes, told)
            told(f"steps: {_said(first)}")
            asks = plan(trace, first.step, SLOTS, requests, load=load, seed=seed)
            for number in range(runs):
                told(f"run {number + 1} of {runs}: {requests} requests over {asks[-1].at:.0f} s")
                live.append(await serve(endpoint, asks))
            again = await profile(endpoint, probes, told)
            told(f"steps after it: {_said(again)}")
    with child() as one:
        said = one.ask(
            {"live": {"asks": [asdict(a) for a in asks], "step": asdict(first.step), "frame": asdict(FRAME)}}
        )
    return Compared(
        compared(live, [Served(**row) for row in said["served"]]),
        first.step,
        first.error,
        again.step.step_ms(*_FULL_MS) / first.step.step_ms(*_FULL_MS) - 1,
        max(one.last for run in live for one in run),
        (before, os.getloadavg()[0]),
    )


def _said(found: Profile) -> str:
    return f"{found.step}, mean error of the probes {found.error:.1%}"


def rows(found: Compared) -> list[dict[str, Any]]:
    return [_row(figure) for figure in found.figures]


def _row(figure: Figure) -> dict[str, Any]:
    of_runs = ", ".join(f"{value * 1000:.1f}" for value in figure.live)
    return {
        "name": f"mean {figure.name}, replayed against {len(figure.live)} live runs",
        "ours": abs(figure.off),
        "unit": "s",
        "peer": "how far the live runs' means lie apart",
        "peer_value": figure.spread,
        "ratio": figure.replayed / figure.mean,
        "target": "<= the live runs' own spread",
        "met": figure.agrees,
        "live": list(figure.live),
        "replayed": figure.replayed,
        "note": f"replayed {figure.replayed * 1000:.1f} ms ({figure.off / figure.mean:+.1%}), live {of_runs} ms; "
        f"of a request {figure.replay_apart * 1000:.1f} ms, between live runs {figure.live_apart * 1000:.1f} ms",
    }
