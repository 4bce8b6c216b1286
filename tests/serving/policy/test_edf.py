"""Earliest deadline first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.edf import EarliestDeadlineFirst
from ramify.serving.policy.types import Capacity, CompoundView, RequestId, RequestView, Verdict, View

NOW = 1000.0
ONE_SLOT = Capacity(slots=1, running=0)

moments = st.floats(900, 1200).map(lambda x: round(x, 3))
calls = st.lists(
    st.builds(
        RequestView,
        id=st.integers(0, 10_000).map(RequestId),
        arrived=st.floats(900, NOW).map(lambda x: round(x, 3)),
        deadline=st.none() | moments,
        admit_by=st.none() | moments,
    ),
    unique_by=lambda call: call.id,
    max_size=30,
).map(tuple)


def call(id_: int, deadline: float | None, arrived: float = NOW, admit_by: float | None = None) -> RequestView:
    return RequestView(RequestId(id_), arrived, deadline=deadline, admit_by=admit_by)


def decided(
    pending: tuple[RequestView, ...], now: float = NOW, policy: EarliestDeadlineFirst | None = None
) -> Verdict:
    return (policy or EarliestDeadlineFirst()).decide(View(ONE_SLOT, pending), now)


def order(*pending: RequestView, policy: EarliestDeadlineFirst | None = None) -> tuple[int, ...]:
    return decided(pending, NOW, policy).order


def test_the_earliest_deadline_goes_first_whatever_the_arrival() -> None:
    assert order(call(1, NOW + 30, NOW - 9), call(2, NOW + 10), call(3, NOW + 20, NOW - 5)) == (2, 3, 1)


def test_a_stage_is_due_by_its_share_of_the_deadline_and_not_refused_for_missing_it() -> None:
    late = RequestView(
        RequestId(1), NOW - 9, deadline=NOW + 60, compound=CompoundView("run", deadline=NOW + 60, due=NOW - 1)
    )
    soon = RequestView(
        RequestId(2), NOW - 9, deadline=NOW + 60, compound=CompoundView("other", deadline=NOW + 60, due=NOW + 20)
    )
    verdict = decided((call(3, NOW + 30), soon, call(4, NOW + 10), late))
    assert verdict.order == (1, 4, 2, 3)
    assert not verdict.drop


def test_ties_go_by_arrival() -> None:
    assert order(call(1, NOW + 5, NOW - 1), call(2, NOW + 5, NOW - 2), call(3, NOW + 5, NOW - 1)) == (2, 1, 3)


def test_best_effort_waits_for_deadlines_until_it_has_aged() -> None:
    fresh, old, tagged = call(1, None), call(2, None, NOW - 119), call(3, NOW + 60)
    assert order(fresh, old, tagged) == (2, 3, 1)


def test_best_effort_is_never_refused_however_old() -> None:
    verdict = decided((call(1, None, NOW - 1e6),))
    assert (verdict.order, verdict.drop, verdict.wake_at) == ((1,), (), None)


def test_a_late_call_is_refused_with_a_reason() -> None:
    late, unpunctual = call(1, NOW - 2), call(2, NOW + 9, NOW - 5, admit_by=NOW)
    verdict = decided((late, unpunctual, call(3, NOW + 1)))
    assert verdict.order == (3,)
    assert [(r.id, r.reason) for r in verdict.drop] == [
        (1, "its deadline passed 2.000 s ago"),
        (2, "it was not admitted within 5.000 s"),
    ]
    assert verdict.wake_at == NOW + 1


@given(calls)
def test_every_call_is_ordered_or_refused_and_the_order_is_by_urgency(
    pending: tuple[RequestView, ...],
) -> None:
    policy = EarliestDeadlineFirst()
    verdict = decided(pending)
    refused = [refusal.id for refusal in verdict.drop]
    assert verdict.admit == verdict.order[:1]
    assert sorted([*verdict.order, *refused]) == sorted(c.id for c in pending)
    by_id = {c.id: c for c in pending}
    due = [by_id[i].deadline or by_id[i].arrived + policy.best_effort_s for i in verdict.order]
    assert due == sorted(due)
    assert verdict == decided(tuple(reversed(pending))) or refused
    assert verdict.wake_at is None or verdict.wake_at > NOW


@given(calls, st.floats(0, 1000))
def test_a_waiting_best_effort_call_is_passed_only_by_calls_due_before_it_has_aged(
    pending: tuple[RequestView, ...], later: float
) -> None:
    policy = EarliestDeadlineFirst()
    mine = call(20_000, None)
    verdict = decided((*pending, mine), NOW + later)
    passed_by = verdict.order[: verdict.order.index(mine.id)]
    deadlines = {c.id: c.deadline or c.arrived + policy.best_effort_s for c in pending}
    assert all(deadlines[i] <= mine.arrived + policy.best_effort_s for i in passed_by)


def test_a_first_token_that_is_late_is_refused_although_the_answer_could_still_be_in_time() -> None:
    """As the other policies and vLLM's scheduler read the limits: each of them binds."""
    both = {"ttft": NOW - 1, "deadline": NOW + 60}
    waiting, begun = (
        RequestView(RequestId(1), NOW - 9, **both),
        RequestView(RequestId(2), NOW - 9, generated=3, **both),
    )
    verdict = decided((waiting, begun))
    assert verdict.order == (2,) and [one.id for one in verdict.drop] == [1]
    assert verdict.wake_at == NOW + 60
    assert order(call(1, NOW + 30), RequestView(RequestId(2), NOW, ttft=NOW + 5, deadline=NOW + 60)) == (2, 1)


def test_capacity_is_never_negative() -> None:
    assert (Capacity(2, 1).free, Capacity(2, 5).free) == (1, 0)
