"""What the figures of streams show of watched replays."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.replay.report.stream_figures import FIGURES, SeenStream, Spread, StreamFigures
from benchmarks.replay.types import Call, Program, ProgramId, Stage, WatchedStep
from ramify.serving.policy.types import SloClass


def stream(number: int = 0) -> Program:
    """Its tokens are wanted at 101, 101.5, 102, 102.5 and 103."""
    stages = (Stage((Call(10, 5),)),)
    return Program(ProgramId(number), 100.0, SloClass.STREAM, stages, ttft_s=1.0, tbt_s=0.5)


def step(calls: int, context: int, at: float = 0.0, kv: float = 0.5, waiting: int = 0, aside: int = 0) -> WatchedStep:
    return WatchedStep(at, calls, context, kv, waiting, aside)


def test_tokens_come_before_or_after_they_are_wanted() -> None:
    seen = StreamFigures()
    seen.streamed(stream(), [100.5, 100.6, 100.7, 100.8, 100.9])
    seen.streamed(stream(1), [102.0, 102.1, 102.2, 102.3, 102.4])
    assert seen.ahead("the first token").median == pytest.approx((0.5 - 1.0) / 2)
    assert seen.ahead("the middle one").median == pytest.approx((1.3 - 0.2) / 2)
    assert seen.ahead("the last") == Spread(*map(pytest.approx, (0.75, 1.35, 1.95)), count=2)  # type: ignore[arg-type]
    assert seen.late == pytest.approx(3 / 10)


def test_batches_are_shown_by_size_where_there_are_enough() -> None:
    seen = StreamFigures()
    for calls in (*([1, 2, 3, 4] * 10), *([5] * 30), 9):
        seen.stepped(step(calls, 100 * calls))
    assert seen.contexts() == {(1, 4): Spread(100, 250, 400, 40), (5, 8): Spread(500, 500, 500, 30)}
    assert seen.correlation == pytest.approx(1.0)


def test_the_pacer_holds_what_comes_early_and_hides_a_break_that_it_outlasts() -> None:
    """Five tokens in 0.4 s are given out from 101 to 103, so that a break until 102.9 is not noticed."""
    one = SeenStream.of(stream(), [100.5, 100.6, 100.7, 100.8, 102.9])
    assert one.held == (3, 2, 1, 0), "at 101.2, 101.5, 102 and 102.5"
    assert (one.most, one.breaks, one.noticed) == (4, 1, 0)
    assert (one.qoe, one.ttft_s, one.speed) == (1.0, pytest.approx(0.5), pytest.approx(4 / 2.4))


def test_a_break_that_outlasts_the_pacer_is_noticed() -> None:
    one = SeenStream.of(stream(), [100.5, 100.6, 100.7, 100.8, 103.5])
    assert (one.breaks, one.noticed) == (1, 1)
    assert one.qoe < 1.0


def row(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [one for one in rows if one["name"].startswith(name)]
    return found


def test_breaks_that_nobody_notices_are_a_share_of_all() -> None:
    seen = StreamFigures()
    assert row(seen.pacer("a"), "breaks")["ours"] is None
    for last in (102.9, 102.9, 102.9, 103.5):
        seen.streamed(stream(), [100.5, 100.6, 100.7, 100.8, last])
    assert row(seen.pacer("a"), "breaks")["ours"] == 0.75
    assert row(seen.pacer("a"), "most tokens")["ours"] == 4


def test_delivery_has_the_spread_and_the_mean_over_streams() -> None:
    seen = StreamFigures()
    for begin in (101.0, 102.0, 104.5):
        seen.streamed(stream(), [begin, begin + 0.25, begin + 0.5])
    qoe, wait, speed = seen.delivery("a")
    assert (wait["ours"], wait["note"]) == (2.0, "mean 2.5; 3 streams")
    assert speed["ours"] == 4.0 and 0 < qoe["spread"][0] < qoe["ours"] < 1


def test_memory_is_shown_by_the_time_since_a_burst_began_while_streams_arrive() -> None:
    seen = StreamFigures()
    seen.streamed(replace(stream(), at=130.0), [131.0, 131.1])
    for at, kv, waiting in ((10.0, 0.9, 4), (130.0, 0.7, 8), (100.0, 0.2, 0), (135.0, 0.1, 0)):
        seen.stepped(step(5, 100, at, kv, waiting, aside=1))
    burst, quiet = seen.memory("a")
    assert burst["name"] == "KV in use from 0 to 30 s of a cycle of bursts, a"
    assert (burst["ours"], quiet["ours"]) == (0.8, 0.2)
    assert "6 without a token wait (at most 8), 1 with tokens are aside" in burst["note"]


def test_what_was_seen_survives_the_way_between_processes() -> None:
    seen = StreamFigures()
    seen.streamed(stream(), [100.5, 101.0])
    seen.streamed(stream(), [100.5, 103.0])
    for calls in range(1, 60):
        seen.stepped(step(calls, calls**2))
    back = StreamFigures.read(json.loads(json.dumps(seen.told())))
    assert back.told() == seen.told() and back.contexts() == seen.contexts()
    assert [rows(back, "a") for rows in FIGURES.values()] == [rows(seen, "a") for rows in FIGURES.values()]


def test_batches_that_are_all_alike_have_no_correlation() -> None:
    figures = StreamFigures()
    for _ in range(2):
        figures.stepped(WatchedStep(1.0, 1, 300, 0.5, 0, 0))
    (found,) = figures.batches("fcfs")
    assert found["ours"] is None
