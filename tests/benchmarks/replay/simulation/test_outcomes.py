"""What became of calls, streams and programs: in time, met, and what a reader got."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.replay.simulation.outcomes import CallInFlight, call_outcome, met, qoe_of, silence
from benchmarks.replay.types import Call, Program, ProgramId, Stage
from ramify.serving.policy.types import SloClass

STREAM = Program(
    ProgramId(0), 100.0, SloClass.STREAM, (Stage((Call(10, 3),)),), ttft_s=1.0, tbt_s=0.5
)  # its tokens are wanted at 101, 101.5 and 102
LATE, EARLY = [102.0, 102.5, 103.0], [100.5, 100.6, 100.7]


def test_silence_is_the_time_without_text() -> None:
    assert silence(STREAM, [100.0, 100.0]) == pytest.approx(0.0)
    assert silence(STREAM, [101.0, 101.5]) == pytest.approx(0.5)


def test_tokens_before_they_are_wanted_give_the_best_quality() -> None:
    assert qoe_of(STREAM, EARLY) == 1.0
    assert qoe_of(STREAM, LATE) == pytest.approx(1 - 3 * 1.0 / (2.0 + 1.5 + 1.0))


def test_a_stream_is_met_by_its_quality_and_others_by_their_times() -> None:
    for times, good in ((EARLY, True), (LATE, False)):
        call = call_outcome(CallInFlight(STREAM, 0, 0, "0.0", 0, 100.0), times, times[-1], None)
        assert met(STREAM, times[-1], [call]) is good
        fast = replace(STREAM, kind=SloClass.LATENCY)
        call = call_outcome(CallInFlight(fast, 0, 0, "0.0", 0, 100.0), times, times[-1], None)
        assert (met(fast, times[-1], [call]), call.in_time) == (good, 3 * good)
        due = replace(STREAM, kind=SloClass.DEADLINE, deadline_s=2.0)
        call = call_outcome(CallInFlight(due, 0, 0, "0.0", 0, 100.0), times, times[-1], None)
        assert (met(due, times[-1], [call]), call.in_time) == (good, 3 * good)
    assert not met(STREAM, None, [])


def test_a_stream_that_did_not_end_has_no_quality() -> None:
    call = call_outcome(CallInFlight(STREAM, 0, 0, "0.0", 0, 100.0), EARLY[:2], None, None)
    assert (call.qoe, call.silence, call.generated, call.first) == (None, None, 2, 100.5)
