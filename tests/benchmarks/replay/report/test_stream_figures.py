"""What the figures of streams show of watched replays."""

from __future__ import annotations

import json

import pytest

from benchmarks.replay.report.stream_figures import Spread, StreamFigures
from benchmarks.replay.types import Call, Program, ProgramId, Stage
from ramify.serving.policy.types import SloClass


def stream(number: int = 0) -> Program:
    stages = (Stage((Call(10, 5),)),)
    return Program(ProgramId(number), 100.0, SloClass.STREAM, stages, ttft_s=1.0, tbt_s=0.5)


def test_tokens_come_before_or_after_they_are_wanted() -> None:
    """Wanted at 101, 101.5, 102, 102.5 and 103."""
    seen = StreamFigures()
    seen.streamed(stream(), [100.5, 100.6, 100.7, 100.8, 100.9])
    seen.streamed(stream(1), [102.0, 102.1, 102.2, 102.3, 102.4])
    assert seen.ahead("the first token").median == pytest.approx((0.5 - 1.0) / 2)
    assert seen.ahead("the middle one").median == pytest.approx((1.3 - 0.2) / 2)
    assert seen.ahead("the last") == Spread(*map(pytest.approx, (0.75, 1.35, 1.95)), count=2)  # type: ignore[arg-type]
    assert seen.late == pytest.approx(3 / 10)


def test_batches_are_shown_by_size_where_there_are_enough() -> None:
    seen = StreamFigures()
    for calls in (*([0] * 50), *([1, 2, 3, 4] * 10), *([5] * 30), 9):
        seen.stepped(calls, 100 * calls)
    assert seen.contexts() == {(1, 4): Spread(100, 250, 400, 40), (5, 8): Spread(500, 500, 500, 30)}
    assert seen.correlation == pytest.approx(1.0)


def test_what_was_seen_survives_the_way_between_processes() -> None:
    seen = StreamFigures()
    seen.streamed(stream(), [100.5, 101.0])
    seen.streamed(stream(), [100.5, 103.0])
    for calls in range(1, 60):
        seen.stepped(calls, calls**2)
    back = StreamFigures.read(json.loads(json.dumps(seen.told())))
    assert back.told() == seen.told() and back.contexts() == seen.contexts()
    assert back.late == seen.late and back.correlation == pytest.approx(seen.correlation)
