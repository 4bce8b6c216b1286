"""What distinguishes each baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.replay.baselines.contenders import contender
from benchmarks.replay.baselines.plas import Plas, PlasOptions
from benchmarks.replay.baselines.program_srpt import PacedProgramSrpt, ProgramSrpt
from benchmarks.replay.baselines.single_key import LearningToRank, classes, edf, fcfs, least_laxity, srpt
from benchmarks.replay.types import Stock
from ramify.serving.policy.cost_model import pace_s
from ramify.serving.policy.types import (
    Capacity,
    CompoundView,
    Finished,
    Policy,
    RequestView,
    SloClass,
    StageEstimate,
    State,
    StepModel,
    View,
)
from ramify.serving.protocol.length_sketch import LengthSketch
from tests.serving.policy.views import NOW, running, view

TIGHT = Capacity(slots=4, running=4, kv_free=100_000, can_preempt=True, can_pause=True)


def order(policy: Policy, waiting: Sequence[RequestView], now: float = NOW) -> tuple[int, ...]:
    return policy.decide(View(Capacity(4, 4), waiting), now).order


def named(name: str) -> Policy:
    engine = contender(name).engine
    assert not isinstance(engine, Stock)
    return engine()


def compound(id_: int, program: str, stage: int = 0, **more: object) -> RequestView:
    rest = more.pop("rest", ())
    return view(id_, SloClass.COMPOUND, compound=CompoundView(program, stage, deadline=NOW + 60.0, rest=rest), **more)


def test_fcfs_serves_by_arrival_and_drops_what_has_waited_too_long() -> None:
    old, new = view(1, arrived=NOW - 4.0, deadline=NOW + 9.0), view(2, arrived=NOW - 1.0, deadline=NOW + 5.0)
    assert order(fcfs(None), [new, old]) == (1, 2)
    later = fcfs(5.0).decide(View(Capacity(4, 4), [new, old]), NOW + 2.0)
    assert [refusal.id for refusal in later.drop] == [1]
    assert later.order == (2,)
    assert later.wake_at == NOW + 4.0, "when the other one will have waited for 5 s"


def test_fcfs_never_drops_best_effort() -> None:
    old = view(1, SloClass.BEST_EFFORT, arrived=NOW - 100.0)
    assert fcfs(5.0).decide(View(Capacity(4, 4), [old]), NOW).drop == ()


def test_classes_are_served_in_order_and_by_arrival_within() -> None:
    waiting = [
        compound(1, "p", arrived=NOW - 9.0),
        view(2, SloClass.LATENCY, ttft=NOW + 2.0, tbt=0.1),
        view(3, SloClass.LATENCY, ttft=NOW + 1.0, tbt=0.1, arrived=NOW - 1.0),
        view(4, deadline=NOW + 20.0),
    ]
    assert order(classes(), waiting) == (3, 2, 4, 1)


def test_edf_serves_the_earliest_deadline_and_refuses_only_with_a_filter() -> None:
    hopeless = view(1, deadline=NOW + 0.01, length=500)
    due = [view(2, deadline=NOW + 30.0), compound(3, "p"), view(4, SloClass.LATENCY, ttft=NOW + 2.0, tbt=0.1)]
    assert order(edf(), [*due, hopeless]) == (1, 4, 2, 3)
    filtered = edf(0.1).decide(View(Capacity(4, 4), [*due, hopeless]), NOW)
    assert [refusal.id for refusal in filtered.drop] == [1]
    assert filtered.order == (4, 2, 3)


def test_edf_with_the_plan_refuses_for_later_stages() -> None:
    """Equal deadlines and lengths: only the call whose later stages take too long cannot be met."""
    stage = StageEstimate(calls=1, prefill=100, output_median=900.0, tool_s_before=2.0)
    short, long = compound(1, "p", rest=(stage,)), compound(2, "q", rest=(stage,) * 40)
    verdict = named("edf-plan").decide(View(Capacity(4, 4), [short, long]), NOW)
    assert ([refusal.id for refusal in verdict.drop], verdict.order) == ([2], (1,))


def test_edf_with_the_plan_refuses_by_the_median() -> None:
    """A length at the tenth percentile would be in time; the median would not."""
    uncertain = view(1, deadline=NOW + 5.0, sketch=LengthSketch((0.0, 0.2, 0.5, 1.0), (10.0, 20.0, 5000.0, 9000.0)))
    drops = [named(name).decide(View(Capacity(4, 4), [uncertain]), NOW).drop for name in ("edf-plan", "edf-feasible")]
    assert [len(drop) for drop in drops] == [1, 0]


def test_least_laxity_serves_the_longer_of_two_with_one_deadline() -> None:
    assert order(
        least_laxity(), [view(1, deadline=NOW + 60.0, length=10), view(2, deadline=NOW + 60.0, length=900)]
    ) == (
        2,
        1,
    )


def test_least_laxity_and_srpt_refuse_what_cannot_be_met_where_asked_to() -> None:
    hopeless, fine = view(1, deadline=NOW + 0.01, length=500), view(2, deadline=NOW + 30.0, length=600)
    waiting = View(Capacity(4, 4), [hopeless, fine])
    for policy in (least_laxity(0.1), srpt()):
        verdict = policy.decide(waiting, NOW)
        assert ([refusal.id for refusal in verdict.drop], verdict.order) == ([1], (2,))
    for policy in (least_laxity(), srpt(refuse=False)):
        verdict = policy.decide(waiting, NOW)
        assert (verdict.drop, verdict.order) == ((), (1, 2))


def test_srpt_serves_the_shortest_call_whatever_its_program() -> None:
    waiting = [
        compound(1, "p", length=10, rest=(StageEstimate(3, 2000, 900),)),
        view(2, length=50, deadline=NOW + 60.0),
        view(3, length=400, deadline=NOW + 60.0),
    ]
    assert order(srpt(), waiting) == (1, 2, 3)
    assert order(ProgramSrpt(), waiting) == (2, 3, 1), "by the program the first is the longest"


def test_srpt_by_gpu_time_puts_a_long_prompt_behind_a_long_answer() -> None:
    """It ends sooner in its slot, and takes more GPU time from the others."""
    waiting = [view(1, length=10, prompt_tokens=20_000), view(2, length=200)]
    assert order(srpt(refuse=False), waiting) == (1, 2)
    assert order(srpt(gpu=True, refuse=False), waiting) == (2, 1)


def test_srpt_counts_what_is_left_and_displaces_the_longest_that_runs() -> None:
    short = view(9, length=20, deadline=NOW + 60.0)
    busy = [running(i, length=800.0) for i in range(3)] + [running(3, length=800.0, generated=790, computed=890)]
    kept = srpt().decide(View(TIGHT, [short], busy), NOW)
    assert (kept.pause, kept.preempt, kept.admit) == ((), (), ())
    moved = srpt(displace=0.5).decide(View(TIGHT, [short], busy), NOW)
    assert moved.admit == (9,)
    assert moved.pause == (2,), "of equals the last to come; never the one that is nearly done"
    unpausable = replace(TIGHT, can_pause=False)
    assert srpt(displace=0.5).decide(View(unpausable, [short], busy), NOW).preempt == (2,)


@pytest.mark.parametrize("full", [replace(TIGHT, kv_free=0, can_preempt=False), Capacity(4, 4)])
def test_nothing_is_displaced_without_room(full: Capacity) -> None:
    busy = [running(i, length=800.0) for i in range(4)]
    verdict = srpt(displace=0.5).decide(View(full, [view(9, length=20)], busy), NOW)
    assert verdict.pause == verdict.preempt == verdict.admit == ()


def test_a_paused_call_has_its_own_place_in_the_queue() -> None:
    held = running(1, length=30.0, state=State.PAUSED)
    room = Capacity(4, 3, can_pause=True)
    verdict = srpt().decide(View(room, [view(2, length=500)], [running(3)], [held]), NOW)
    assert verdict.resume == (1,)
    assert verdict.admit == ()
    verdict = srpt().decide(View(room, [view(2, length=5)], [running(3)], [held]), NOW)
    assert (verdict.resume, verdict.admit) == ((), (2,))


def test_learning_to_rank_sorts_by_score_and_promotes_starved_calls() -> None:
    waiting = [view(1, length=900, arrived=NOW - 8.0), view(2, length=10, arrived=NOW - 1.0), view(3, length=20)]
    assert order(LearningToRank(), waiting) == (2, 3, 1)
    starving = LearningToRank(starving_s=5.0).decide(View(Capacity(4, 3), waiting), NOW)
    assert starving.order == (1, 2, 3)
    assert starving.admit == (1,)
    assert starving.wake_at == NOW + 4.0, "then the next one starves"


def test_preempting_learning_to_rank_displaces_lower_ranked_calls() -> None:
    busy = [running(i, length=100.0 * (i + 1)) for i in range(4)]
    short = View(TIGHT, [view(9, length=20, deadline=NOW + 60.0)], busy)
    assert LearningToRank().decide(short, NOW).admit == ()
    moved = LearningToRank(displace=0.0).decide(short, NOW)
    assert (moved.admit, moved.pause) == ((9,), (3,))


def test_learning_to_rank_scores_a_call_once() -> None:
    sketch = LengthSketch((0.0, 0.5, 1.0), (10.0, 100.0, 1000.0))
    begun = view(1, sketch=sketch, generated=200, state=State.PREEMPTED)
    assert order(LearningToRank(), [begun, view(2, length=150)]) == (1, 2)


def served(policy: Plas, call: RequestView, tokens: int) -> None:
    policy.decide(View(Capacity(4, 4), [call]), NOW)
    policy.observe(Finished(replace(call, generated=tokens), NOW, True))


def test_plas_demotes_programs_that_were_served_much() -> None:
    policy = Plas()
    served(policy, compound(1, "long"), 900)
    assert order(policy, [compound(3, "long", 1, arrived=NOW - 5.0), compound(4, "new")]) == (4, 3)


@pytest.mark.parametrize("name", ["plas", "ltr"])
def test_published_baselines_also_run_in_a_refusing_form(name: str) -> None:
    """The order is the same except for calls that cannot be met."""
    waiting = [view(1, deadline=NOW + 0.01, length=500), view(2, deadline=NOW + 60.0), view(3, deadline=NOW + 60.0)]
    plain, refusing = (named(form).decide(View(Capacity(4, 4), waiting), NOW) for form in (name, f"{name}, refusing"))
    assert (plain.drop, {1, 2, 3}) == ((), set(plain.order))
    assert [refusal.id for refusal in refusing.drop] == [1]
    assert refusing.order == tuple(id_ for id_ in plain.order if id_ != 1)


@pytest.mark.parametrize(
    ("cautious", "bold"),
    [
        ("plas, refusing", "plas-plan, refusing"),
        ("ltr, refusing", "ltr-plan, refusing"),
        ("ltr-preempting, refusing", "ltr-plan-preempting, refusing"),
        ("least-laxity", "least-laxity, by medians"),
        ("edf-feasible", "edf-plan"),
    ],
)
def test_medians_refuse_more_than_optimistic_lengths(cautious: str, bold: str) -> None:
    """Calls that are in time with a short answer and late with a median one."""
    wide = view(1, deadline=NOW + 4.0, sketch=LengthSketch((0.0, 0.2, 0.3, 1.0), (10.0, 10.0, 2000.0, 2000.0)))
    dropped = [named(form).decide(View(Capacity(4, 4), [wide]), NOW).drop for form in (cautious, bold)]
    assert [len(drop) for drop in dropped] == [0, 1]


def test_plas_that_refuses_displaces_nothing() -> None:
    policy, busy = named("plas, refusing"), [running(i, generated=3000, computed=3100) for i in range(4)]
    assert policy.decide(View(TIGHT, [view(9)], busy), NOW).pause == ()
    assert Plas().decide(View(TIGHT, [view(9)], busy), NOW).pause != ()


DROPS = [("fcfs-drop", 2.0), ("fcfs-drop, 1 s", 1.0), ("fcfs-drop, 0.5 s", 0.5), ("fcfs-drop, 0.25 s", 0.25)]


@pytest.mark.parametrize(("name", "waits"), DROPS)
def test_fcfs_drops_after_as_long_as_it_says(name: str, waits: float) -> None:
    old = view(1, deadline=NOW + 60.0)
    drops = [named(name).decide(View(Capacity(4, 4), [old]), NOW + waits * part).drop for part in (0.99, 1.01)]
    assert [len(drop) for drop in drops] == [0, 1]


def test_plas_knows_queues_and_not_lengths() -> None:
    policy = Plas()
    served(policy, compound(1, "a"), 20)
    served(policy, compound(2, "b"), 40)
    assert order(policy, [compound(4, "b", 1, arrived=NOW - 1.0, length=900), compound(3, "a", 1)]) == (4, 3), (
        "both were served less than the first queue's bound: who came first"
    )


def test_plas_reckons_what_was_served_in_the_pace_that_the_engine_has_now() -> None:
    """A pace that is 5 % slower recomputes no other key, but takes this call over its queue's bound."""
    policy, begun = Plas(), view(1, generated=80, state=State.PREEMPTED, arrived=NOW - 1.0)
    for step, expected in ((StepModel(24.0, 0.0, 0.0, 0.0), (1, 2)), (StepModel(25.2, 0.0, 0.0, 0.0), (2, 1))):
        assert policy.decide(View(Capacity(4, 4, step=step), [begun, view(2)]), NOW).order == expected


def test_plas_adds_up_and_atlas_takes_the_longest_chain() -> None:
    wide, deep = [compound(i, "wide") for i in range(4)], compound(9, "deep")
    nexts = [compound(10, "wide", 1), compound(11, "deep", 1, arrived=NOW + 1.0)]
    orders = []
    for critical_path in (False, True):
        policy = Plas(PlasOptions(critical_path=critical_path, first_s=0.5))
        for call in wide:
            served(policy, call, 250)
        served(policy, deep, 400)
        orders.append(order(policy, nexts))
    assert orders == [(11, 10), (10, 11)]


def test_plas_demotes_a_running_call_for_a_new_one_and_promotes_a_starved_one() -> None:
    policy = Plas()
    worn = [running(i, generated=900, computed=1000) for i in range(4)]
    verdict = policy.decide(View(TIGHT, [view(9)], worn), NOW)
    assert (verdict.admit, verdict.pause) == ((9,), (3,))
    patient = Plas(PlasOptions(beta=5.0))
    served(patient, compound(1, "long"), 900)
    again = compound(2, "long", 1, arrived=NOW - 500.0)
    assert order(policy, [again, view(3, arrived=NOW - 900.0)]) == (3, 2)
    assert order(patient, [again, view(3)])[0] == 2


def test_program_srpt_takes_siblings_as_one() -> None:
    def sibling(id_: int, length: float) -> RequestView:
        return view(id_, SloClass.COMPOUND, length, compound=CompoundView("p", width=2, deadline=NOW + 60.0))

    waiting = [sibling(1, 10), sibling(2, 300), view(3, length=100, deadline=NOW + 60.0)]
    assert order(ProgramSrpt(), waiting) == (3, 1, 2)


def test_program_srpt_refuses_what_cannot_be_met_and_displaces_by_programs() -> None:
    hopeless, fine = view(1, deadline=NOW + 0.5, length=500), view(2, deadline=NOW + 50.0, length=50)
    verdict = ProgramSrpt().decide(View(Capacity(4, 4), [hopeless, fine]), NOW)
    assert ([refusal.id for refusal in verdict.drop], verdict.order) == ([1], (2,))
    assert order(ProgramSrpt(refuse=None), [hopeless, fine]) == (2, 1)
    busy = [running(i, length=900.0) for i in range(5, 9)]
    assert ProgramSrpt(displace=0.5).decide(View(TIGHT, [fine], busy), NOW).pause == (8,)
    assert ProgramSrpt().decide(View(TIGHT, [fine], busy), NOW).pause == ()


@pytest.mark.parametrize(("policy", "refused"), [(ProgramSrpt, []), (PacedProgramSrpt, [99])])
def test_paced_program_srpt_reckons_with_the_prompts_that_came_of_late(
    policy: type[ProgramSrpt], refused: list[int]
) -> None:
    """Long prompts just got slots and take a share of every second: a call that would be in time by tokens alone
    is late."""
    one = policy()
    read = [view(i, length=400, prompt_tokens=60_000, deadline=NOW + 600.0) for i in range(4)]
    room = Capacity(8, 0)
    one.decide(View(room, read), NOW)
    busy = [replace(call, state=State.RUNNING, computed=60_000, generated=1) for call in read]
    one.decide(View(replace(room, running=4), (), busy), NOW + 0.1)
    tight = view(99, arrived=NOW + 0.2, length=300, deadline=NOW + 0.2 + 300 * 1.5 * pace_s(room, busy))
    verdict = one.decide(View(replace(room, running=4), [tight], busy), NOW + 0.2)
    assert [refusal.id for refusal in verdict.drop] == refused


def test_program_srpt_counts_gpu_time_with_prompts_that_are_not_cached() -> None:
    read_much = view(1, length=50, prompt_tokens=60_000, deadline=NOW + 60.0)
    waiting = [read_much, view(2, length=400, deadline=NOW + 60.0)]
    assert order(ProgramSrpt(), waiting) == (2, 1)
    assert order(ProgramSrpt(), [replace(read_much, cached_tokens=59_900), waiting[1]]) == (1, 2)
