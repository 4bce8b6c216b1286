"""Calls that the queue keeps from starting in time are refused early."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.concord.options import ConcordOptions
from ramify.serving.policy.concord.policy import Concord
from ramify.serving.policy.registry import make_live_policy
from ramify.serving.policy.types import Capacity, SloClass, StepModel, View
from tests.serving.policy.views import NOW, running, view

STEP = StepModel(10.0, 0.0, 0.0, 0.1)  # 100 tokens of an answer after 100 of a prompt: 1.01 s


def capacity(slots: int, taken: int = 0, **more: bool) -> Capacity:
    return Capacity(slots, taken, None, STEP, **more)


def test_calls_that_cannot_start_in_time_are_refused_at_once() -> None:
    calls = [view(i, deadline=NOW + 3.0) for i in range(10)]
    verdict = make_live_policy().decide(View(capacity(1), calls), NOW)
    assert verdict.admit == (0,)
    assert verdict.order == (0, 1, 2), "three can be met by the estimate, and so little more is no reason to refuse"
    assert sorted(refusal.id for refusal in verdict.drop) == list(range(3, 10))
    later = Concord().decide(View(capacity(1), calls), NOW)
    assert later.drop == (), "without the option it waits until the deadline is out of reach"


def test_the_deadline_in_a_refusal_would_be_accepted() -> None:
    calls = [view(i, deadline=NOW + 3.0) for i in range(10)]
    (first, *_) = make_live_policy().decide(View(capacity(1), calls), NOW).drop
    assert first.earliest_feasible_s is not None and first.needs is not None
    assert f"needs at least {first.earliest_feasible_s:.3f} s" in first.reason
    patient = [call for call in calls if call.id < 3]
    patient.append(replace(calls[first.id], deadline=NOW + first.earliest_feasible_s))
    assert make_live_policy().decide(View(capacity(1), patient), NOW).drop == ()


def test_running_calls_and_the_engines_own_queue_count() -> None:
    """The engine works on one call and holds three more."""
    inside = [running(i, SloClass.DEADLINE, 110, deadline=NOW + 60) for i in range(4)]
    call = view(9, deadline=NOW + 2.0)
    engine = replace(capacity(1, 4), queue=100)
    assert [r.id for r in make_live_policy().decide(View(engine, [call], inside), NOW).drop] == [9]
    assert make_live_policy().decide(View(engine, [call], inside[:1]), NOW).drop == ()


def test_a_displaceable_slot_counts_as_free() -> None:
    inside = [running(0, SloClass.BEST_EFFORT, 5000)]
    call = view(9, deadline=NOW + 2.0)
    assert make_live_policy().decide(View(capacity(1, 1), [call], inside), NOW).drop
    verdict = make_live_policy().decide(View(capacity(1, 1, can_preempt=True), [call], inside), NOW)
    assert (verdict.drop, verdict.preempt) == ((), (0,))


def test_started_calls_and_best_effort_are_not_refused() -> None:
    calls = [view(i, deadline=NOW + 3.0) for i in range(6)]
    begun = [replace(view(10 + i, deadline=NOW + 3.0), generated=5) for i in range(3)]
    free = [view(20 + i, SloClass.BEST_EFFORT) for i in range(6)]
    verdict = make_live_policy().decide(View(capacity(1), [*calls, *begun, *free]), NOW)
    assert all(refusal.id < 10 for refusal in verdict.drop) and verdict.drop


def test_without_refusal_late_calls_are_served_last() -> None:
    calls = [view(i, deadline=NOW + 3.0) for i in range(10)]
    assert make_live_policy(refuse=False).decide(View(capacity(1), calls), NOW).drop == ()
    assert make_live_policy(foresee=False).decide(View(capacity(1), calls), NOW).drop == ()


@given(
    slots=st.integers(1, 4),
    calls=st.lists(st.tuples(st.floats(0.5, 20.0), st.integers(1, 400)), min_size=1, max_size=30),
)
def test_each_call_is_ordered_or_refused_and_free_slots_refuse_nobody(
    slots: int, calls: list[tuple[float, int]]
) -> None:
    views = [view(i, length=length, deadline=NOW + due) for i, (due, length) in enumerate(calls)]
    foresees = Concord(ConcordOptions.from_names(foresee=True)).decide(View(capacity(slots), views), NOW)
    plain = Concord().decide(View(capacity(slots), views), NOW)
    dropped = {refusal.id for refusal in foresees.drop}
    assert dropped | set(foresees.order) == {call.id for call in views}
    assert not dropped & set(foresees.order)
    assert dropped >= {refusal.id for refusal in plain.drop}
    if len(plain.order) <= slots:
        assert dropped == {refusal.id for refusal in plain.drop}


@pytest.mark.parametrize("name", ["edf", "calm-thesis"])
def test_other_policies_do_not_foresee(name: str) -> None:
    assert type(make_live_policy(name)).__name__ in ("EarliestDeadlineFirst", "Calm")


def test_the_fixed_cost_of_a_start_does_not_slow_others() -> None:
    """Twenty calls have just started, at half a second each, while tokens come as before."""
    room = Capacity(32, 0, None, StepModel(10.0, 0.0, 0.0, 0.0, per_call_ms=500.0))
    policy, begun = make_live_policy(), [running(i, SloClass.DEADLINE, deadline=NOW + 100) for i in range(20)]
    policy.decide(View(room, [view(i, length=1000, deadline=NOW + 100) for i in range(20)]), NOW)
    full = replace(room, running=20)
    policy.decide(View(full, [], begun), NOW)
    assert policy.decide(View(full, [view(99, deadline=NOW + 1.7)], begun), NOW).drop == (), "it needs 1.5 s"
    assert policy.decide(View(full, [view(98, deadline=NOW + 1.3)], begun), NOW).drop, "which are reckoned with"


def test_an_unstreamed_call_is_nearer_its_end_the_longer_it_runs() -> None:
    """Unstreamed answers: 1.01 s for each of two calls, and 2.1 s for both."""
    policy, first, second = make_live_policy(), view(1, deadline=NOW + 60), view(2, deadline=NOW + 2.1)
    assert policy.decide(View(capacity(1), [first]), NOW).admit == (1,)
    runs = running(1, SloClass.DEADLINE, 100, generated=0, computed=0, deadline=NOW + 60)
    for at in (0.0, 0.5, 0.9, 1.0):
        assert policy.decide(View(capacity(1, 1), [second], [runs]), NOW + at).drop == ()
    moved_on = replace(runs, generated=64)
    assert policy.decide(View(capacity(1, 1), [second], [moved_on]), NOW + 1.0).drop == (), "0.36 s are left of it"
