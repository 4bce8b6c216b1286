"""Andes: who is served, who stands aside, and that every verdict can be carried out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.andes.policy import Andes, AndesOptions
from ramify.serving.policy.registry import UnknownPolicy, make_policy
from ramify.serving.policy.types import Capacity, Load, RequestView, State, StepModel, View
from tests.serving.policy.andes.test_packing import TIMES, stream
from tests.serving.policy.views import NOW

STEP = StepModel(base_ms=20, per_prefill_ms=0.1)


def ahead(id_: int) -> RequestView:
    """A reader with 40 s to read."""
    return stream(id_, [1.0 + 0.01 * i for i in range(240)])


def behind(id_: int) -> RequestView:
    """A reader that has read all."""
    return stream(id_, [1.0 + 0.2 * i for i in range(30)])


def engine(slots: int, running: int, **more: object) -> Capacity:
    able = {"can_pause": True, "can_preempt": True, "step": STEP, **more}
    return Capacity(slots, running, **able)  # type: ignore[arg-type]


def test_a_reader_ahead_lends_its_slot_and_one_behind_keeps_it():
    view = View(engine(2, 2, kv_free=10_000), [stream(3, [])], [ahead(1), behind(2)])
    verdict = Andes().decide(view, NOW)
    assert (verdict.pause, verdict.preempt, verdict.admit) == ((1,), (), (3,))
    assert verdict.wake_at is None or verdict.wake_at > NOW


def test_kv_is_taken_from_who_is_paused_then_from_who_runs():
    paused = replace(ahead(4), state=State.PAUSED)
    view = View(engine(8, 2, kv_free=20), [stream(3, [])], [ahead(1), behind(2)], [paused])
    assert Andes().decide(view, NOW).preempt == (4,)
    assert Andes().decide(replace(view, paused=()), NOW).preempt == (1,)


def test_as_in_the_paper_every_victim_is_preempted():
    view = View(engine(2, 2, kv_free=10_000), [stream(3, [])], [ahead(1), behind(2)])
    verdict = make_policy("andes", pause=False).decide(view, NOW)
    assert (verdict.pause, verdict.preempt) == ((), (1,))


def test_with_room_for_all_it_is_first_come_first_served():
    waiting = [replace(stream(i, []), arrived=NOW - i) for i in (1, 2, 3)]
    verdict = Andes().decide(View(engine(8, 1, kv_free=100_000), waiting, [ahead(9)]), NOW)
    assert (verdict.order, verdict.pause, verdict.preempt) == ((3, 2, 1), (), ())


def test_the_refiner_cancels_a_prefill_that_costs_the_others_more():
    slow = replace(STEP, per_prefill_ms=20.0)
    view = View(engine(5, 5, kv_free=10_000, step=slow), [stream(3, [])], [ahead(1), *map(behind, range(10, 14))])
    assert Andes(AndesOptions(horizon_s=10)).decide(view, NOW).pause == ()
    assert Andes(AndesOptions(horizon_s=10, refine=False)).decide(view, NOW).pause == (1,)


def test_it_decides_by_itself_where_the_batch_is_slower_than_the_fastest_reader():
    assert Andes().must_decide(Load(0.3, 0.2), NOW)
    assert not Andes().must_decide(Load(0.1, 0.2), NOW)
    slow = engine(8, 3, kv_free=10**6, step=StepModel(base_ms=50, per_seq_ms=100))
    verdict = Andes().decide(View(slow, (), [ahead(1), behind(2), behind(3)]), NOW)
    assert verdict.pause == (1,)


@given(
    st.lists(st.tuples(TIMES, st.sampled_from((State.RUNNING, State.PAUSED, State.PREEMPTED))), max_size=14),
    st.integers(1, 10),
    st.sampled_from((None, 0, 150, 5000)),
    st.booleans(),
    st.booleans(),
)
def test_every_verdict_can_be_carried_out(made, slots, kv_free, can_pause, can_preempt):
    calls = [
        replace(stream(i, times), state=state if times else State.WAITING) for i, (times, state) in enumerate(made)
    ]
    running = [call for call in calls if call.state is State.RUNNING][:slots]
    paused = [call for call in calls if call.state is State.PAUSED] if can_pause else []
    waiting = [call for call in calls if call.state in (State.WAITING, State.PREEMPTED)]
    capacity = engine(slots, len(running), kv_free=kv_free, can_pause=can_pause, can_preempt=can_preempt)
    verdict = Andes().decide(View(capacity, waiting, running, paused), NOW)
    ids = {call.id for call in running}, {call.id for call in paused}, {call.id for call in waiting}
    assert sorted(verdict.order) == sorted(ids[2])
    assert verdict.order[: len(verdict.admit)] == verdict.admit
    assert set(verdict.preempt) <= ids[0] | ids[1]
    assert set(verdict.pause) <= ids[0] - set(verdict.preempt)
    assert set(verdict.resume) <= ids[1] - set(verdict.preempt)
    assert can_pause or not verdict.pause
    assert can_preempt or not verdict.preempt
    freed = len(verdict.pause) + len(ids[0] & set(verdict.preempt))
    assert len(running) - freed + len(verdict.admit) + len(verdict.resume) <= slots
    assert verdict.wake_at is None or verdict.wake_at > NOW


def test_a_bad_option_is_named():
    with pytest.raises(UnknownPolicy, match="horizon_s"):
        make_policy("andes", horizon_s=0)
    with pytest.raises(UnknownPolicy, match="worst"):
        make_policy("andes", objective="worst")


def test_no_more_are_paused_than_the_engine_has_room_for():
    waiting, runs = [stream(i, []) for i in (5, 6)], [ahead(1), ahead(2)]
    view = View(engine(2, 2, kv_free=10_000, pause_room=1), waiting, runs)
    assert len(Andes().decide(view, NOW).pause) == 1
    assert len(Andes().decide(replace(view, capacity=replace(view.capacity, pause_room=None)), NOW).pause) == 2
