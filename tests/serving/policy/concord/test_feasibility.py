"""`feasible_set` keeps the jobs that the plain algorithm keeps, on one job index that follows changing views."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramify.serving.policy.concord.feasibility import Reserve, feasible_set, feasible_set_plainly
from ramify.serving.policy.concord.job_index import JobIndex
from ramify.serving.policy.registry import UnknownPolicy, make_policy
from ramify.serving.policy.types import CompoundView, GroupView, RequestView, SloClass, State, View
from tests.samples import sample
from tests.serving.policy.concord.test_policy import capacity
from tests.serving.policy.views import NOW, view


def crowd(chance: random.Random, old: dict[int, RequestView], now: float, anew: float) -> View:
    """Forty calls that want more than there is time for, a share `anew` of them new. Few values, so that many tie."""
    calls = {}
    ids = chance.sample(sorted(old), len(old)) if old and anew < 0.1 else chance.sample(range(60), 40)
    for id_ in ids if anew >= 0.1 else [*ids[1:], chance.choice(sorted({*range(60)}.difference(ids)))]:
        kind, due = chance.choice(list(SloClass)), now + chance.choice([-1, 1, 2, 4, 8, 16, 32])
        calls[id_] = view(
            id_,
            kind,
            chance.choice([50, 100, 200]),
            arrived=NOW - chance.choice([1, 2]),
            deadline=due if kind is SloClass.DEADLINE else None,
            ttft=due if kind is SloClass.LATENCY else None,
            compound=CompoundView(f"c{chance.randrange(4)}", deadline=due) if kind is SloClass.COMPOUND else None,
            group=GroupView(f"g{chance.randrange(3)}", 4, 2) if chance.random() < 0.2 else None,
            weight=chance.choice([1.0, 1.0, 5.0]),
            state=chance.choice([State.WAITING, State.PREEMPTED]) if id_ < 50 else State.RUNNING,
        )
        if id_ in old and chance.random() >= anew:
            calls[id_] = old[id_]
    by_running = [[call for call in calls.values() if (call.state is State.RUNNING) is it] for it in (False, True)]
    return View(capacity(8), *by_running)


@given(
    st.integers(0, 2**32),
    st.sampled_from(
        [Reserve(0.1, 20.0, 0.1), Reserve(0.3, 4.0, 0.1), Reserve(1.0, 8.0, 0.3), Reserve(1.0, 0.0, 2.0)]
    ),
    st.floats(0, 2),
    st.sampled_from([1.0, 1.2]),
    st.sampled_from([0.2, 0.03]),
)
@example(3391265013, Reserve(0.1, 20.0, 0.1), 0.98, 1.0, 0.03)  # a job with no time to spare, and nothing before it
@settings(max_examples=sample(25, 150), deadline=None)
def test_the_fast_algorithm_keeps_what_the_plain_one_keeps(
    seed: int, reserve: Reserve, step_s: float, slower: float, anew: float
) -> None:
    index, chance, now, token_s = JobIndex(0.5, 0.1, 120.0, 0.25), random.Random(seed), NOW, 0.01
    old: dict[int, RequestView] = {}
    for _ in range(6):
        seen = crowd(chance, old, now, anew)
        old = {call.id: call for call in (*seen.waiting, *seen.running)}
        index.follow(seen, token_s)
        waiting, running = list(index.jobs(index.by_laxity())), index.jobs_of(seen.running)
        waiting.sort(key=lambda job: (job.due, job.id))
        assert index.by_deadline().due.tolist() == [job.due for job in waiting]  # type: ignore[attr-defined]
        by_due = index.running.by_due()
        assert by_due == sorted([(job.due, job.work_s, job.late_at) for job in running])
        assert index.running.by_end() == sorted([job.slot_s for job in running])
        kept = feasible_set(index.promised(), by_due, reserve, now)
        assert kept == feasible_set_plainly(index.promised(), by_due, reserve, now)
        assert index.next_late() == min([job.late_at for job in waiting])
        assert index.heaviest() == max([job.weight for job in waiting])
        now, token_s = now + step_s, token_s * slower


def test_later_time_is_given_away_more_freely() -> None:
    """Three times the work is left. With a quarter of it given away one job is left out; with more of the time
    after the first third both are kept."""
    calls = [view(i, SloClass.DEADLINE, 1000, arrived=NOW, deadline=NOW + 30.0 + i) for i in range(2)]
    index = JobIndex(0.5, 0.1, 120.0, 0.25)
    index.follow(View(capacity(1), calls), 0.001)
    work_s = index.jobs_of(calls)[0].work_s
    at = NOW + 30.0 - 3.0 * work_s  # three times the work is left before the first of them must have ended
    assert len(feasible_set(index.promised(), [], Reserve(4.0, 1e9, 4.0), at)) == 1
    assert len(feasible_set(index.promised(), [], Reserve(4.0, work_s, 4 / 3), at)) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"later_reserve": 0.0}, "later_reserve is 0: it must be above 0"),
        ({"later_reserve": float("nan")}, "later_reserve is nan: it must be a number"),
        ({"reserve": -1.0}, "reserve is -1: it must not be below 0"),
        ({"reserve_s": "20s"}, "reserve_s is '20s': it must be a number"),
        ({"headroom": None}, "headroom is None: it must be a number"),
        ({"queue_s": -1.0}, "queue_s is -1: it must not be below 0"),
        ({"queue_s": True}, "queue_s is True: it must be a number"),
        ({"queue_s": 10**400}, "it must be a number"),
    ],
)
def test_an_invalid_option_is_named_when_the_policy_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownPolicy, match=said):
        make_policy("concord", **options)


def test_an_infinite_reserve_keeps_only_the_densest() -> None:
    calls = [view(i, SloClass.DEADLINE, 1000, arrived=NOW, deadline=NOW + 300.0 + i) for i in range(3)]
    index = JobIndex(0.5, 0.1, 120.0, 0.25)
    index.follow(View(capacity(1), calls), 0.001)
    assert len(feasible_set(index.promised(), [], Reserve(float("inf"), 20.0, 4 / 3), NOW)) == 1
