"""Compare a replay with vLLM for CPUs, live, with SmolLM2: rows for benchmarks/fidelity.py.

One engine is started by Ramify's own launcher, with vLLM's own scheduler: first come, first served. Its steps are
timed as `benchmarks/profile_engine.py` times them, then the requests are sent, then the steps are timed again, and so
on. Each run is replayed with the step times before and after it, because the speed of the machine changes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import httpx

from benchmarks.replay.fidelity.live import Ask, Figure, Frame, Pace, between, compared, plan, serve
from benchmarks.replay.fidelity.measured_run import Served
from benchmarks.replay.fidelity.step_probe import HttpEndpoint, Plan, Profile, profile
from benchmarks.replay.inputs import synthetic_traces
from benchmarks.replay.inputs.traces import Trace, read
from benchmarks.replay.pool import worker
from benchmarks.rows import Row, row
from ramify import paths
from ramify.serving.engine import models
from ramify.serving.engine.vllm import VllmEngine

Told = Callable[[str], None]
SLOTS, CONTEXT = 8, 1024
# vLLM for CPUs does not schedule a step while another one runs, and the launcher disables chunked prefill.
FRAME = Frame(SLOTS, step_tokens=4096, overlap=False, chunked_prefill=False)
PROBES = Plan(batches=(1, 2, 4, SLOTS), prompts=(16, 128, 384), tokens=32, repeats=3)
BRIEF = Plan(batches=(1, SLOTS), prompts=(32, 256), tokens=12, repeats=1)
_FULL = (SLOTS, SLOTS * 200, 0.0)  # the step that is shown for each model: all slots in use, 200 tokens each


@dataclass(frozen=True, slots=True)
class Compared:
    figures: list[Figure]
    live: list[list[Served]]
    replays: list[list[Served]]  # of each live run
    full_ms: list[float]  # time of a step with a full batch: before the first run, after it, …, after the last
    probe_error: float  # of the probes against their fitted models: mean absolute relative error

    @property
    def seconds(self) -> float:
        """Seconds from the first request to the last token, in the longest live run."""
        return max(one.last for run in self.live for one in run)

    def residuals(self) -> list[tuple[float, ...]]:
        """Return for every request: its run (from 1), and TTFT and TPOT as measured and as replayed, in seconds."""
        return [
            (number, one.ttft, one.tpot, ours.ttft, ours.tpot)
            for number, (run, replay) in enumerate(zip(self.live, self.replays, strict=True), 1)
            for one, ours in zip(run, replay, strict=True)
        ]


def measure(
    trace: Path | None, *, requests: int, runs: int, load: float, seed: int, told: Told = print, probes: Plan = PROBES
) -> Compared:
    """Run the live comparison. Raises ReplayError, or ServingError without vLLM or a model."""
    asked = read(trace) if trace else _made_up()
    return asyncio.run(_measure(asked, requests, runs, load, seed, told, probes))


def _made_up() -> Trace:
    with tempfile.TemporaryDirectory(prefix="ramify-fidelity-") as folder:
        return read(synthetic_traces.write(Path(folder) / "made-up.jsonl"))


async def _measure(
    trace: Trace, requests: int, runs: int, load: float, seed: int, told: Told, probes: Plan
) -> Compared:
    model = models.locate(paths.home(None))
    live: list[list[Served]] = []
    told(f"starting vLLM with {model.name}")
    async with VllmEngine(model, alias="m", slots=SLOTS, context=CONTEXT, scheduler=None, cpu=True) as engine:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=engine.base_url + "/", timeout=600.0, limits=limits, trust_env=False
        ) as client:
            endpoint = HttpEndpoint(client, "m", seed)
            probed = [await _profiled(endpoint, probes, told)]
            asks = plan(trace, probed[0].step, SLOTS, requests, load=load, seed=seed)
            for number in range(runs):
                told(f"run {number + 1} of {runs}: {requests} requests over {asks[-1].at:.0f} s")
                live.append(await serve(endpoint, asks))
                probed.append(await _profiled(endpoint, probes, told))
    replays = _replays(asks, between(probed))
    return Compared(
        compared(live, replays),
        live,
        replays,
        [one.step.step_ms(*_FULL) for one in probed],
        fmean(one.error for one in probed),
    )


async def _profiled(endpoint: HttpEndpoint, probes: Plan, told: Told) -> Profile:
    found = await profile(endpoint, probes, told)
    told(f"steps: {found.step}, mean error of the probes {found.error:.1%}; to and fro {found.way_s * 1000:.1f} ms")
    return found


def _replays(asks: Sequence[Ask], paces: Sequence[Pace]) -> list[list[Served]]:
    with worker() as one:
        said = [
            one.ask({"live": {"asks": [asdict(a) for a in asks], "pace": asdict(pace), "frame": asdict(FRAME)}})
            for pace in paces
        ]
    return [[Served(**row) for row in each["served"]] for each in said]


def rows(found: Compared) -> list[Row]:
    return [_row(figure) for figure in found.figures]


def _row(figure: Figure) -> Row:
    own, runs = figure.replays_apart / figure.mean, figure.runs_apart / figure.mean
    live, replays = (", ".join(f"{one * 1000:.1f}" for one in means) for means in (figure.live, figure.replays))
    return row(
        f"mean {figure.name}, replayed against {len(figure.live)} live runs",
        abs(figure.off),
        "s",
        target="<= the live runs' own spread",
        met=figure.agrees,
        peer="distance between the live runs' means",
        peer_value=figure.spread,
        note=f"replayed {replays} ms ({figure.off / figure.mean:+.1%}), live {live} ms; a replay is {own:.1%} off "
        f"its own run, two runs are {runs:.1%} apart; of a single request {figure.replay_apart * 1000:.1f} ms, "
        f"between live runs {figure.live_apart * 1000:.1f}",
        live=list(figure.live),
        replayed=list(figure.replays),
        replays_apart=figure.replays_apart,
        runs_apart=figure.runs_apart,
    ) | {"ratio": figure.replayed / figure.mean}
