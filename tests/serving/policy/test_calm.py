"""CALM against the thesis: equation 4.1, algorithm 4.1 and the safeguards of §4.2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.calm import CANDIDATES, Calm, CalmOptions, Cutoff, Ranked, window
from ramify.serving.policy.cost_model import Goodput
from ramify.serving.policy.types import Capacity, CompoundView, Finished, RequestView, SloClass, StepModel, View
from tests.serving.policy.views import NOW, running, view

STEP = StepModel(10.0, 0.0, 0.0, 0.1)
TOKEN_S = 0.01


def analysed(*calls: RequestView, **options: object) -> list[Ranked]:
    calm = Calm(CalmOptions(starvation_step=0, **options))  # type: ignore[arg-type]
    return calm.analyse(list(calls), NOW, TOKEN_S, 50 * TOKEN_S)


def test_priority_is_goodput_over_generation_time() -> None:
    """Equation 4.1, with len_rem · v_token as the denominator, and input and output as the numerator."""
    (ranked,) = analysed(view(1, length=200, deadline=NOW + 10))
    assert ranked.gen_s == pytest.approx(200 * TOKEN_S)
    assert ranked.priority == pytest.approx((100 + 200) / 2)


def test_by_tokens_a_latency_sensitive_priority_is_the_constant_one_over_v() -> None:
    """This is why token goodput starves them: their priority is 1 / v for any length."""
    ranked = analysed(*(view(i, SloClass.LATENCY, length=10.0**i, tbt=0.1) for i in (1, 2, 3)))
    assert [r.priority for r in ranked] == pytest.approx([1 / TOKEN_S] * 3)


def test_a_compound_request_counts_its_whole_stage() -> None:
    stage = CompoundView("run", 0, width=2)
    both = analysed(
        view(1, SloClass.COMPOUND, length=100, compound=stage), view(2, SloClass.COMPOUND, length=300, compound=stage)
    )
    assert [r.gen_s for r in both] == pytest.approx([4.0, 4.0])
    assert [r.goodput for r in both] == pytest.approx([600.0, 600.0])


@pytest.mark.parametrize(
    ("goodput", "expected"), [(Goodput.TOKEN, 400.0), (Goodput.REQUEST, 2.0), (Goodput.WORKFLOW, 1.0)]
)
def test_the_goodput_can_be_chosen(goodput: Goodput, expected: float) -> None:
    stage = CompoundView("run", 0, width=2)
    calls = [view(i, SloClass.COMPOUND, length=100, compound=stage) for i in (1, 2)]
    assert analysed(*calls, goodput=goodput)[0].goodput == pytest.approx(expected)


def test_the_last_call_of_a_compound_request_may_be_latency_sensitive() -> None:
    last = CompoundView("run", 2, width=1, last=True)
    (ranked,) = analysed(view(1, SloClass.COMPOUND, length=100, compound=last, ttft=NOW + 2))
    assert ranked.goodput == 100


def test_waiting_raises_the_goodput_by_delta_a_frame() -> None:
    calm = Calm(CalmOptions(starvation_step=2.0, goodput=Goodput.REQUEST))
    waited = view(1, arrived=NOW - 5.1, length=100, deadline=NOW + 9)
    (ranked,) = calm.analyse([waited], NOW, TOKEN_S, frame_s=0.5)
    assert ranked.goodput == pytest.approx(1 + 2.0 * 10)


def test_fairness_is_mixed_into_the_priority() -> None:
    (ranked,) = analysed(view(1, length=100), goodput=Goodput.REQUEST, fairness=0.25, fair=lambda r, now: 40.0)
    assert ranked.priority == pytest.approx(0.75 * 1.0 + 0.25 * 40.0)


def ranked_of(priorities: list[float], lengths: list[int]) -> list[Ranked]:
    made = [
        Ranked(view(i, prompt_tokens=length), 1.0, priority, priority)
        for i, (priority, length) in enumerate(zip(priorities, lengths, strict=True))
    ]
    return sorted(made, key=lambda r: -r.priority)


def test_the_window_trades_priority_for_equal_lengths_only_within_the_cutoff() -> None:
    queue = ranked_of([10, 9.8, 9.7, 9.6, 1], [100, 5000, 110, 120, 115])
    assert window(queue, 2, 1.0) == {0, 1}
    assert window(queue, 3, 0.9) == {0, 2, 3}


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.integers(1, 50)), min_size=1, max_size=14),
    st.integers(1, 6),
    st.floats(0.1, 1),
)
def test_the_window_is_the_best_of_all_neighbourhoods(
    calls: list[tuple[float, int]], size: int, cutoff: float
) -> None:
    """Compared with algorithm 4.1, taken literally."""
    queue = ranked_of([p for p, _ in calls], [n for _, n in calls])
    chosen = window(queue, size, cutoff)
    assert len(chosen) == min(size, len(queue))
    if len(queue) <= size:
        return
    bar = queue[size - 1].priority * cutoff
    candidates = sorted((r for r in queue if r.priority >= bar), key=lambda r: (r.view.prompt_tokens, r.view.id))
    sums = [sum(r.priority for r in candidates[i : i + size]) for i in range(len(candidates) - size + 1)]
    assert sum(r.priority for r in queue if r.view.id in chosen) == pytest.approx(max(sums))


def capacity(slots: int, running_now: int, preempt: bool = True) -> Capacity:
    return Capacity(slots, running_now, step=STEP, can_preempt=preempt)


def test_a_displacement_must_gain_more_than_its_prefill() -> None:
    calm = CalmOptions(goodput=Goodput.REQUEST, cutoff=1.0, appendix=False)
    short = view(1, length=20, deadline=NOW + 5)
    cheap, dear = running(9, length=1000), running(9, length=1000, computed=1_000_000)
    assert Calm(calm).decide(View(capacity(1, 1), [short], [cheap]), NOW).preempt == (9,)
    assert Calm(calm).decide(View(capacity(1, 1), [short], [dear]), NOW).preempt == ()
    alike = view(1, length=990, deadline=NOW + 50)
    assert Calm(calm).decide(View(capacity(1, 1), [alike], [cheap]), NOW).preempt == ()


@pytest.mark.parametrize(("appendix", "first"), [(True, 2), (False, 1)])
def test_a_request_that_cannot_end_in_time_comes_after_what_can(appendix: bool, first: int) -> None:
    """The scheduling filter of appendix B: 1 is denser, but needs 1 s of the .9 s that are left."""
    calls = [view(1, length=100, deadline=NOW + 0.9), view(2, length=200, deadline=NOW + 9)]
    options = CalmOptions(goodput=Goodput.REQUEST, cutoff=1.0, appendix=appendix)
    verdict = Calm(options).decide(View(capacity(1, 0), calls), NOW)
    assert verdict.admit == (first,)
    assert not verdict.drop, "its length is only an upper bound: it waits"
    assert Calm(options).decide(View(capacity(2, 0), calls), NOW).admit == (first, 3 - first), "a free slot is used"


def test_a_stage_is_in_time_if_its_longest_call_is() -> None:
    stage = CompoundView("run", 0, width=2, deadline=NOW + 1.5)
    calls = [view(i, SloClass.COMPOUND, length=length, compound=stage) for i, length in ((1, 100), (2, 140))]
    assert [one.is_feasible for one in analysed(*calls)] == [True, True], "although their sum is 2.4 s"
    calls.append(view(3, SloClass.COMPOUND, length=160, compound=stage))
    assert not any(one.is_feasible for one in analysed(*calls)), "a stage ends with all of its calls"


def test_a_stage_must_end_by_its_share_of_the_deadline() -> None:
    """The sub-deadline D_s = φ(s)·D of §4.1: both programs have 9 s, of which the first stage of 1 has .5."""
    stages = [CompoundView(f"run{i}", 0, deadline=NOW + 9, due=NOW + due) for i, due in ((1, 0.5), (2, 3.0))]
    calls = [view(i, SloClass.COMPOUND, length=90 + i, compound=stages[i - 1]) for i in (1, 2)]
    assert [one.is_feasible for one in analysed(*calls)] == [False, True]
    assert not any(refused for refused in Calm().decide(View(capacity(1, 0), calls), NOW).drop)


def test_only_what_is_worth_more_preempts() -> None:
    """Equation D.5 with δ = .1: R(A) > 1.1 R(B), however long the two are."""
    calm = CalmOptions(goodput=Goodput.REQUEST, cutoff=1.0, starvation_step=0.0)
    held = running(9, length=1000)
    for weight, preempted in ((1.0, ()), (1.1, ()), (1.2, (9,))):
        short = view(1, length=20, deadline=NOW + 5, weight=weight)
        assert Calm(calm).decide(View(capacity(1, 1), [short], [held]), NOW).preempt == preempted
    hopeless = running(9, SloClass.DEADLINE, length=1000, deadline=NOW + 2)
    verdict = Calm(calm).decide(View(capacity(1, 1), [view(1, length=20, deadline=NOW + 5)], [hopeless]), NOW)
    assert verdict.preempt == (9,), "it would end too late"


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.integers(1, 50), st.booleans()), min_size=1, max_size=14),
    st.integers(1, 6),
)
def test_the_batch_holds_what_cannot_be_in_time_only_where_slots_are_left(
    calls: list[tuple[float, int, bool]], slots: int
) -> None:
    queue = [
        Ranked(view(i, prompt_tokens=length), 1.0, priority, priority, able)
        for i, (priority, length, able) in enumerate(calls)
    ]
    queue.sort(key=lambda ranked: (not ranked.is_feasible, -ranked.priority))
    chosen = Calm()._batch(queue, slots)
    able = {one.view.id for one in queue if one.is_feasible}
    assert len(chosen) == min(slots, len(queue))
    assert len(chosen & able) == min(slots, len(able))


def test_within_a_frame_nothing_is_displaced() -> None:
    calm = Calm(CalmOptions(goodput=Goodput.REQUEST, cutoff=1.0, appendix=False))
    first = calm.decide(View(capacity(1, 1), [view(1, length=990, deadline=NOW + 50)], [running(9)]), NOW)
    assert first.wake_at == pytest.approx(NOW + 50 * TOKEN_S)
    urgent = View(capacity(1, 1), [view(2, length=20, deadline=NOW + 5)], [running(9)])
    assert calm.decide(urgent, NOW + 0.2).preempt == ()
    assert calm.decide(urgent, NOW + 0.6).preempt == (9,)


def test_a_call_is_dropped_after_its_waiting_time_unless_best_effort() -> None:
    old = NOW - 5.0
    calls = [view(1, arrived=old), view(2, SloClass.BEST_EFFORT, arrived=old), view(3, arrived=old, admit_by=NOW + 1)]
    verdict = Calm().decide(View(capacity(1, 0), calls), NOW)
    assert [(r.id, r.reason) for r in verdict.drop] == [(1, "it was not admitted within 5.000 s")]
    assert set(verdict.order) == {2, 3}


def test_a_call_of_unknown_length_uses_learnt_lengths() -> None:
    calm = Calm(CalmOptions(goodput=Goodput.REQUEST))
    calls = [view(1, length=100), view(2, sketch=None)]
    seen = View(capacity(1, 1), calls, [running(9)])
    assert calm.decide(seen, NOW).order == (1, 2)
    for _ in range(20):
        calm.observe(Finished(view(3, generated=5), NOW, met=True))
    assert calm.decide(seen, NOW).order == (2, 1)


def test_calls_that_left_are_forgotten() -> None:
    calm = Calm()
    calm.decide(View(capacity(1, 1), [view(1), view(2)], [running(9)]), NOW)
    calm.decide(View(capacity(1, 0), [view(2)]), NOW)
    assert list(calm._known) == [2]


def test_the_cutoff_tries_each_threshold_and_settles_on_the_one_that_earns_most() -> None:
    cutoff, now, used = Cutoff(turn_frames=10), 0.0, []
    for _ in range(6000):
        cutoff.frame(now)
        cutoff.earned(3.0 if cutoff.value == 0.8 else 1.0)
        used.append(cutoff.value)
        now += 0.5
    assert set(used) == set(CANDIDATES)
    assert used[-1000:].count(0.8) / 1000 > 0.8


def test_a_fixed_cutoff_stays() -> None:
    cutoff = Cutoff(0.7)
    for i in range(500):
        cutoff.frame(float(i))
    assert cutoff.value == 0.7


def test_density_alone_can_lose_99_percent() -> None:
    """Why theorem 4.1 is not claimed: one slot; A is worth 100 and needs all 100 s, B is worth 1 and needs half a
    second.
    """
    calm = Calm(CalmOptions(goodput=Goodput.REQUEST, cutoff=1.0, starvation_step=0))
    a = view(1, length=100 / TOKEN_S, weight=100, deadline=NOW + 100)
    b = view(2, length=0.5 / TOKEN_S, weight=1, deadline=NOW + 0.5)
    assert calm.decide(View(capacity(1, 0), [a, b]), NOW).admit == (2,)
