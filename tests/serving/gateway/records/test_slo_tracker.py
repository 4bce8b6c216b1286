"""The SLO tracker: the ledger adds up, tokens are judged one by one, promises are kept or broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.gateway.records.slo_tracker import OutOfOrder, Phase, RequestTrack
from ramify.serving.policy.types import RequestId, RequestView, SloClass

ARRIVED = 100.0


def request(id_: int = 1, kind: SloClass = SloClass.DEADLINE, **more: object) -> RequestView:
    return RequestView(RequestId(id_), ARRIVED, kind, prompt_tokens=50, **more)  # type: ignore[arg-type]


def test_every_second_belongs_to_exactly_one_phase() -> None:
    track = RequestTrack(request())
    track.move(Phase.PREFILL, 102)
    track.token(103)
    track.move(Phase.PREEMPTED, 105)
    track.token(109)  # the wait and the prefill again both belong to the preemption
    track.move(Phase.PAUSED, 110)
    track.move(Phase.DECODE, 113)
    track.move(Phase.ENDED, 114)
    spent = track.spent(999)
    assert (spent.queue_s, spent.prefill_s, spent.decode_s) == (2, 1, 4)
    assert (spent.preempted_s, spent.paused_s, spent.total_s) == (4, 3, 14)
    assert track.preemptions == 1


def test_tokens_are_judged_by_their_due_times() -> None:
    track = RequestTrack(request(kind=SloClass.LATENCY, ttft=102.0, tbt=0.5))
    track.move(Phase.PREFILL, 100.5)
    for at in (101.9, 102.5, 103.2, 103.4):  # due 102, 102.5, 103, 103.5
        track.token(at)
    assert (track.tokens, track.on_time) == (4, 3)
    track.completed = True
    track.move(Phase.ENDED, 103.5)
    assert track.met() is False


def test_deadline_is_all_or_nothing() -> None:
    for end, met in ((109.0, True), (111.0, False)):
        track = RequestTrack(request(deadline=110.0))
        track.move(Phase.PREFILL, 101)
        track.token(105, 2)
        track.completed = True
        track.move(Phase.ENDED, end)
        assert track.met() is met


def test_feasibility_of_a_promise() -> None:
    track = RequestTrack(request(deadline=110.0, ttft=103.0))
    assert track.feasible(101, tokens_left=50, token_s=0.1, before_s=1.0)
    assert not track.feasible(101, tokens_left=90, token_s=0.1, before_s=1.0)
    assert not track.feasible(102.5, tokens_left=5, token_s=0.1, before_s=1.0)
    track.move(Phase.PREFILL, 102)
    track.token(102.5)
    assert track.feasible(104, tokens_left=5, token_s=0.1)


def test_event_out_of_order_is_an_error() -> None:
    track = RequestTrack(request())
    with pytest.raises(OutOfOrder, match="preempted cannot follow queue"):
        track.move(Phase.PREEMPTED, 101)
    with pytest.raises(OutOfOrder, match="a token while it is in queue"):
        track.token(101)
    with pytest.raises(OutOfOrder, match=r"99\.0 is before 100\.0"):
        track.move(Phase.PREFILL, 99.0)


_STARTED = st.sampled_from(["token", "pause", "preempt"])


@given(st.lists(st.tuples(_STARTED, st.floats(0.001, 5)), max_size=40), st.floats(0, 5), st.booleans())
def test_ledger_always_adds_up(events: list[tuple[str, float]], queued: float, completed: bool) -> None:
    track = RequestTrack(request(ttft=103.0, tbt=0.2, kind=SloClass.LATENCY))
    now = ARRIVED + queued
    track.move(Phase.PREFILL, now)
    tokens = 0
    for kind, later in events:
        now += later
        if kind == "token":
            if track.phase is Phase.PAUSED:
                track.move(Phase.DECODE, now)
            track.token(now)
            tokens += 1
        elif kind == "pause" and track.phase in (Phase.PREFILL, Phase.DECODE):
            track.move(Phase.PAUSED, now)
        elif kind == "preempt" and track.phase is not Phase.PREEMPTED:
            track.move(Phase.PREEMPTED, now)
        assert track.spent(now).total_s == pytest.approx(now - ARRIVED)
    track.completed = completed
    track.move(Phase.ENDED, now)
    assert track.spent(now + 99).total_s == pytest.approx(now - ARRIVED)
    assert 0 <= track.on_time <= track.tokens == tokens
    assert track.met() is not True or (completed and track.on_time == tokens)
    if track.met() is False and completed and tokens:
        assert track.on_time < tokens or (track.first_token_at or 0) > 103.0
