"""Concord, decision by decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.serving.policy.concord.job_index import JobIndex
from ramify.serving.policy.concord.jobs import JobFactory
from ramify.serving.policy.concord.options import ConcordOptions
from ramify.serving.policy.concord.policy import Concord
from ramify.serving.policy.cost_model import Goodput, LengthPrior
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import (
    Capacity,
    CompoundView,
    GroupView,
    RequestId,
    RequestView,
    SloClass,
    StageEstimate,
    State,
    StepModel,
    View,
)
from ramify.serving.protocol.length_sketch import LengthSketch
from tests.samples import sample
from tests.serving.policy.views import NOW, capacity, running, situations, view


def test_while_everything_fits_the_earliest_latest_start_is_first() -> None:
    calls = [
        view(1, deadline=NOW + 60),
        view(2, deadline=NOW + 30, length=100),
        view(3, deadline=NOW + 31, length=900),
    ]
    verdict = Concord().decide(View(capacity(1), calls), NOW)
    assert verdict.order == (3, 2, 1)  # 3 is due later than 2, and takes longer
    assert verdict.admit == (3,)


def test_when_not_everything_fits_the_densest_is_first() -> None:
    calls = [view(1, deadline=NOW + 11, length=1000), *(view(i, deadline=NOW + 12, length=300) for i in range(2, 8))]
    assert Concord().decide(View(capacity(1), calls), NOW).order == (2, 3, 4, 5, 6, 7, 1)


@pytest.mark.parametrize(("goodput", "first"), [("workflow", 2), ("request", 2), ("token", 1)])
def test_the_operator_chooses_the_goodput(goodput: str, first: int) -> None:
    """The first has fifty times the tokens of another, in one and a half times the GPU time."""
    calls = [view(1, deadline=NOW + 4, prompt_tokens=5000), *(view(i, deadline=NOW + 4) for i in range(2, 6))]
    order = make_policy("concord", goodput=goodput).decide(View(capacity(1), calls), NOW).order
    assert (order[0], order.index(RequestId(1))) == (first, 0 if first == 1 else 4)


def test_a_workflows_tokens_are_those_of_all_its_stages() -> None:
    """Two siblings of 200 tokens and one later call of 300; one of three stages is over."""
    stage = CompoundView("run", 1, 3, 2, False, NOW + 60, (StageEstimate(1, 200, 100),))
    calls = [view(i, SloClass.COMPOUND, compound=stage) for i in (1, 2)]
    book = JobIndex(0.5, 0.1, 120.0, 0.25, Goodput.TOKEN)
    book.follow(View(capacity(1), [*calls, view(3, SloClass.LATENCY, ttft=NOW + 1)]))
    one, other, stream = book.jobs([RequestId(i) for i in (1, 2, 3)])
    assert one.weight == other.weight == pytest.approx((200 + 200 + 300) * 3 / 2)
    assert stream.weight == 100, "of a stream the answer counts"
    assert one.density == pytest.approx(one.weight / (one.work_s + other.work_s))
    book.follow(View(capacity(1), calls[1:]))
    assert book.heaviest() == book.worth() == pytest.approx((200 + 300) * 3 / 2)
    book.follow(View(capacity(1)))
    assert book.worth() == 0


def test_the_price_is_the_whole_remaining_program() -> None:
    """Both calls are equal, but a long stage follows one of them, so its goodput costs more."""
    rest = (StageEstimate(4, 500, 1000, 0.0),)
    long = CompoundView("long", 0, 2, 1, False, NOW + 60, rest)
    short = CompoundView("short", 0, 2, 1, False, NOW + 60)
    calls = [
        view(1, SloClass.COMPOUND, compound=long),
        view(2, SloClass.COMPOUND, compound=short),
        *(view(i, deadline=NOW + 2, length=150) for i in range(3, 6)),
    ]
    order = Concord().decide(View(capacity(1), calls), NOW).order
    assert order.index(RequestId(2)) < order.index(RequestId(1))


def test_siblings_of_a_stage_are_together_at_its_price() -> None:
    stage = CompoundView("run", 0, 1, 3, True, NOW + 5)
    calls = [
        *(view(i, SloClass.COMPOUND, length=150, compound=stage) for i in (1, 2, 3)),
        *(view(i, deadline=NOW + 5, length=200) for i in (4, 5, 6)),
    ]
    order = Concord().decide(View(capacity(1), calls), NOW).order
    assert order == (4, 5, 6, 1, 2, 3)  # 150 alone would be before 200; 3 × 150 is not


def test_calls_of_a_fork_group_are_ordered_together() -> None:
    sketch = LengthSketch((0.0, 1.0), (0.0, 400.0))
    first_of_three = GroupView("g", 3, 1)
    calls = [view(i, prompt_tokens=3000, sketch=sketch, deadline=NOW + 3, group=first_of_three) for i in (1, 2, 3)]
    others = [view(i, prompt_tokens=3000, length=200, deadline=NOW + 3) for i in (4, 5, 6)]
    order = Concord().decide(View(capacity(1), [*others, *calls]), NOW).order
    assert order[-3:] == (1, 2, 3)


def test_a_fork_group_works_until_as_many_are_done_as_it_needs() -> None:
    """Of three answers of 0 to 400 tokens, equally likely, the k-th shortest has 100 k tokens in the mean."""
    sketch = LengthSketch((0.0, 1.0), (0.0, 400.0))
    factory = JobFactory(LengthPrior(), 0.5, 0.1, 120.0, 0.25)
    work = [
        factory.job(view(1, prompt_tokens=100, sketch=sketch, deadline=NOW + 3, group=GroupView("g", 3, need)),
                    capacity(1), 0.01).work_s
        for need in (1, 2, 3)
    ]  # fmt: skip
    assert work == pytest.approx([1.01, 2.01, 3.01], abs=0.005)


def test_a_refusal_names_a_deadline_that_is_then_accepted() -> None:
    sketch = LengthSketch((0.0, 0.1, 0.5, 1.0), (100.0, 300.0, 400.0, 900.0))
    call = view(1, sketch=sketch, deadline=NOW + 2.5)
    (refusal,) = Concord().decide(View(capacity(1), [call]), NOW).drop
    assert refusal.reason == "its deadline is in 2.500 s and it needs at least 4.010 s", "one number in one refusal"
    assert refusal.earliest_feasible_s == pytest.approx(4.01)
    again = Concord().decide(View(capacity(1), [replace(call, deadline=NOW + refusal.earliest_feasible_s)]), NOW)
    assert (again.admit, again.drop) == ((1,), ())


def test_ranked_by_the_median_but_refused_only_on_the_optimistic_quantile() -> None:
    sketch = LengthSketch((0.0, 0.1, 0.5, 1.0), (100.0, 300.0, 400.0, 900.0))
    assert not Concord().decide(View(capacity(1), [view(1, sketch=sketch, deadline=NOW + 3.1)]), NOW).drop


@pytest.mark.parametrize(("prompts_s", "refused"), [(10.0, True), (0.0, False)])
def test_prompts_slow_the_token_pace(prompts_s: float, refused: bool) -> None:
    """A prompt took half of the last ten seconds: 100 tokens take 2 s and not 1. Later this is forgotten."""
    policy = Concord(ConcordOptions.from_names(prompts_s=prompts_s))
    policy.decide(View(capacity(2), [view(1, prompt_tokens=50_000, deadline=NOW + 100)]), NOW)
    began = running(1, SloClass.DEADLINE, prompt_tokens=50_000, computed=50_010, deadline=NOW + 100)
    policy.decide(View(capacity(2, 1), [], [began]), NOW)
    urgent = view(2, prompt_tokens=1, deadline=NOW + 1.5)
    assert bool(policy.decide(View(capacity(2, 1), [urgent], [began]), NOW).drop) is refused
    later = view(3, prompt_tokens=1, deadline=NOW + 31.5)
    assert not policy.decide(View(capacity(2, 1), [later], [began]), NOW + 30).drop


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    policy = Concord()
    policy.decide(View(capacity(2), [view(1, prompt_tokens=5000, deadline=NOW + 100)]), NOW)
    began = running(1, SloClass.DEADLINE, prompt_tokens=5000, computed=5010, deadline=NOW + 100)
    policy.decide(View(capacity(2, 1), [], [began]), NOW)
    before, back = policy._slowdown(NOW), NOW - 20_000
    assert before > 1.0
    policy.decide(View(capacity(2, 1), [], [began]), back)
    assert policy._slowdown(back) == before
    assert policy._slowdown(back + 100) < before


def test_a_late_call_that_began_to_answer_goes_last() -> None:
    late = view(1, deadline=NOW - 1, generated=5, state=State.PREEMPTED)
    verdict = Concord().decide(View(capacity(1), [late, view(2, deadline=NOW + 60)]), NOW)
    assert (verdict.order, verdict.drop) == ((2, 1), ())


@pytest.mark.parametrize("slo_class", [SloClass.BEST_EFFORT, SloClass.DEADLINE])
def test_a_call_is_refused_when_it_has_waited_as_long_as_it_may(slo_class: SloClass) -> None:
    deadline = NOW + 900 if slo_class is SloClass.DEADLINE else None
    busy = View(capacity(1, 1), [view(1, slo_class, deadline=deadline, admit_by=NOW + 5)])
    policy = Concord()
    waits = policy.decide(busy, NOW)
    assert (waits.order, waits.wake_at) == ((1,), NOW + 5)
    (refusal,) = policy.decide(busy, NOW + 5).drop
    assert "it was not admitted within" in refusal.reason


@pytest.mark.parametrize("refuse", [True, False])
def test_a_call_whose_turn_has_come_by_its_age_is_not_refused_and_begun_at_once(refuse: bool) -> None:
    old = view(1, SloClass.BEST_EFFORT, arrived=NOW - 1e5, length=4000, admit_by=NOW)
    calls = [old, *(view(i, deadline=NOW + 3, length=200) for i in range(2, 9))]
    verdict = Concord(ConcordOptions.from_names(refuse=refuse)).decide(View(capacity(1), calls), NOW)
    refused = [refusal.id for refusal in verdict.drop]
    assert sorted([*verdict.order, *refused]) == list(range(1, 9))
    assert (1 in refused) is refuse
    assert (verdict.order[0] == 1) is not refuse


def test_best_effort_goes_first_after_its_default_deadline() -> None:
    old = view(1, SloClass.BEST_EFFORT, arrived=NOW - 1e5, length=4000)
    calls = [old, *(view(i, deadline=NOW + 3, length=200) for i in range(2, 9))]
    verdict = Concord().decide(View(capacity(1), calls), NOW)
    assert verdict.drop == ()
    assert verdict.order[0] == 1


def test_the_floor_of_latency_sensitive_requests_holds_whatever_the_weights() -> None:
    heavy = [view(i, deadline=NOW + 2, length=150, weight=1e6) for i in range(1, 9)]
    latency = [view(i, SloClass.LATENCY, ttft=NOW + 1, length=150) for i in (11, 12)]
    with_floor = Concord().decide(View(capacity(4), heavy + latency), NOW)
    assert with_floor.admit[0] in (11, 12)
    without = Concord(ConcordOptions.from_names(floors={})).decide(View(capacity(4), heavy + latency), NOW)
    assert not {11, 12} & set(without.admit)


@pytest.mark.parametrize(
    ("prompt", "queue_s", "first"),
    [(20_000, 0.1, 9), (20_000, 30.0, 1), (20_000, 10.0, 9), (100, 0.1, 1)],
    ids=["a queue", "none for this operator", "together longer", "short prompts"],
)
def test_with_free_slots_long_prompts_form_a_queue(prompt: int, queue_s: float, first: int) -> None:
    """Eight prompts of 2 s, due in 8 s: not all can be in time. A stream that must start in 7.5 s could wait longest,
    and goes first by its class's floor."""
    long = [view(i, deadline=NOW + 8, prompt_tokens=prompt) for i in range(1, 9)]
    stream = view(9, SloClass.LATENCY, ttft=NOW + 7.5, tbt=0.1)
    verdict = Concord(ConcordOptions.from_names(queue_s=queue_s)).decide(View(capacity(64), [*long, stream]), NOW)
    assert verdict.order[0] == verdict.admit[0] == first
    assert len(verdict.admit) == 9


@pytest.mark.parametrize(("queue_s", "first"), [(0.1, 2), (30.0, 1)])
def test_with_free_slots_the_longest_prompt_goes_last(queue_s: float, first: int) -> None:
    long = view(1, deadline=NOW + 10, prompt_tokens=80_000)
    short = [view(i, deadline=NOW + 10.5, prompt_tokens=20_000) for i in range(2, 6)]
    order = Concord(ConcordOptions.from_names(queue_s=queue_s)).decide(View(capacity(64), [long, *short]), NOW).order
    assert (order[0], order.index(RequestId(1))) == (first, 4 if first == 2 else 0)


def test_with_free_slots_a_refusal_counts_waiting_prompts() -> None:
    prompts = [view(i, deadline=NOW + 60, prompt_tokens=20_000) for i in range(1, 6)]
    late = view(9, deadline=NOW + 0.5)
    (refusal,) = Concord().decide(View(capacity(64), [*prompts, late]), NOW).drop
    assert refusal.earliest_feasible_s == pytest.approx(1.01 + 5 * 2.0)


def two_urgent() -> list[RequestView]:
    return [view(i, SloClass.LATENCY, ttft=NOW + 1, length=8) for i in (101, 102)]


def test_urgent_calls_pause_with_kv_and_preempt_without() -> None:
    long = [running(i) for i in range(10)]
    able = capacity(10, 10, can_pause=True, can_preempt=True, kv_free=10_000)
    paused = Concord().decide(View(able, two_urgent(), long), NOW)
    assert (len(paused.pause), paused.preempt, paused.admit) == (2, (), (101, 102))
    tight = replace(able, kv_free=50)
    preempted = Concord().decide(View(tight, two_urgent(), long), NOW)
    assert (preempted.pause, len(preempted.preempt), preempted.admit) == ((), 2, (101, 102))
    unable = capacity(10, 10)
    left_alone = Concord().decide(View(unable, two_urgent(), long), NOW)
    assert (left_alone.pause, left_alone.preempt, left_alone.admit) == ((), (), ())


def test_nothing_is_displaced_for_a_call_that_can_wait() -> None:
    ending = [running(i, length=11 + i) for i in range(10)]
    able = capacity(10, 10, can_pause=True, can_preempt=True, kv_free=10_000)
    assert not Concord().decide(View(able, two_urgent(), ending), NOW).pause


def test_only_paced_streams_stand_aside_while_ahead() -> None:
    """A second aside is longer than its time between tokens, and it is twenty tokens ahead of its schedule."""
    stream = running(9, SloClass.LATENCY, ttft=NOW + 20, tbt=0.1)
    call = view(1, SloClass.LATENCY, ttft=NOW + 1, length=100)
    seen = View(capacity(1, 1, can_pause=True, kv_free=10_000), [call], [stream])
    assert Concord().decide(seen, NOW).pause == ()
    assert Concord(ConcordOptions.from_names(pace_streams=True)).decide(seen, NOW).pause == (9,)


def test_frames_space_displacements() -> None:
    framed = Concord(ConcordOptions.from_names(frame_s=1.0))
    able = capacity(10, 10, can_pause=True, kv_free=10_000)
    seen = View(able, two_urgent()[:1], [running(i) for i in range(10)])
    moved = [len(framed.decide(seen, NOW + at).pause) for at in (0.0, 0.5, 0.9)]
    assert moved == [1, 0, 0]


def test_the_price_of_a_preemption_is_the_prefill_to_be_done_again() -> None:
    """The victim is worth a hundred times as much, and 100 000 tokens would be computed again: no trade."""
    dear = [
        running(i, SloClass.DEADLINE, length=40, computed=100_000, weight=100, deadline=NOW + 1000) for i in range(2)
    ]
    call = view(9, SloClass.LATENCY, ttft=NOW + 0.1, length=8)
    able = capacity(2, 2, can_preempt=True)
    assert not Concord().decide(View(able, [call], dear), NOW).preempt
    cached = [replace(victim, cached_tokens=100_000) for victim in dear]
    assert len(Concord().decide(View(able, [call], cached), NOW).preempt) == 1


@pytest.mark.parametrize(("length", "moved"), [(150, 0), (10, 1)])
def test_contested_slots_require_a_clear_gain(length: int, moved: int) -> None:
    """Three equal calls that must start now, and one slot. Against 300 tokens, 150 are too small a gain."""
    able = capacity(1, 1, can_preempt=True)
    victim = running(9, SloClass.DEADLINE, length=310, deadline=NOW + 3.2, cached_tokens=110)
    calls = [view(i, deadline=NOW + 0.02 + length / 100, length=length) for i in (1, 2, 3)]
    assert len(Concord().decide(View(able, calls, [victim]), NOW).preempt) == moved
    eager = Concord(ConcordOptions.from_names(contested_margin=0.1))
    assert len(eager.decide(View(able, calls, [victim]), NOW).preempt) == 1


@pytest.mark.parametrize(("urgent", "moved"), [(1, 1), (3, 0)])
def test_a_late_victim_has_a_price_if_slots_are_contested(urgent: int, moved: int) -> None:
    able = capacity(1, 1, can_preempt=True)
    late = running(9, SloClass.DEADLINE, length=310, deadline=NOW + 2, cached_tokens=110)  # it needs 3 s
    calls = [view(i, deadline=NOW + 1.6, length=150) for i in range(1, urgent + 1)]
    assert len(Concord().decide(View(able, calls, [late]), NOW).preempt) == moved


def test_paused_calls_resume_in_free_slots() -> None:
    paused = [running(i, state=State.PAUSED) for i in (1, 2)]
    verdict = Concord().decide(View(capacity(10, 8, can_pause=True), [], [], paused), NOW)
    assert sorted(verdict.resume) == [1, 2]
    assert (verdict.order, verdict.admit) == ((), ())


def test_it_wakes_before_the_first_waiting_call_must_start() -> None:
    full = [running(1, SloClass.DEADLINE, deadline=NOW + 1000)]
    verdict = Concord().decide(View(capacity(1, 1), [view(2, deadline=NOW + 60)], full), NOW)
    assert verdict.wake_at == pytest.approx(NOW + 60 - 1.01)


@pytest.mark.parametrize(
    ("base_ms", "prefill_ms", "budget"),
    [
        (10.0, 0.1, 900),  # 90 ms of 100 are left for prompts
        (99.0, 0.1, 64),
        (200.0, 0.1, 64),  # even without any the stream is late
        (10.0, 0.0, None),  # as a gateway measures it whose first tokens come as quickly as any
        (200.0, 0.0, 64),
        (10.0, 1e-320, None),
    ],
)
def test_the_prompt_budget_protects_the_tightest_stream(
    base_ms: float, prefill_ms: float, budget: int | None
) -> None:
    room = Capacity(2, 2, step=StepModel(base_ms, 0.0, 0.0, prefill_ms))
    streams = [running(i, SloClass.LATENCY, ttft=NOW, tbt=tbt) for i, tbt in ((1, 0.1), (2, 0.3))]
    waits = [view(3, deadline=NOW + 600)]
    assert Concord().decide(View(room, waits, streams), NOW).budget == budget
    assert Concord().decide(View(room, waits, [running(1)]), NOW).budget is None


@given(situations(), situations(), st.floats(0, 30))
@settings(max_examples=sample(20, 60), deadline=None)
def test_earlier_views_do_not_change_a_verdict(before: View, seen: View, later: float) -> None:
    """What is kept between decisions could be computed again, except the time that prompts took."""
    fresh, used = (Concord(ConcordOptions.from_names(prompts_s=0.0)) for _ in range(2))
    used.decide(replace(before, capacity=seen.capacity), NOW - 1)
    used.decide(replace(seen, waiting=seen.waiting[1:]), NOW - 1)
    assert set(used.decide(seen, NOW + later).order) == set(fresh.decide(seen, NOW + later).order)
