"""The pace of a full batch if the KV, and not the slots, limits how many calls run at once; what a call is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ramify.serving.policy.concord.policy import Concord
from ramify.serving.policy.cost_model import Goodput, pace_of, worth
from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import Capacity, CompoundView, SloClass, View
from tests.serving.policy.views import NOW, capacity, running, view

LONG = 100_000  # tokens of context of an agent's call


def test_a_full_batch_holds_no_more_context_than_the_kv() -> None:
    unseen, seen = Capacity(slots=64), Capacity(slots=64, kv_free=600_000)
    step = unseen.step
    assert pace_of(unseen, 2 * LONG, 2) == pytest.approx(step.step_ms(64, 64 * LONG) / 1000)
    assert pace_of(seen, 2 * LONG, 2) == pytest.approx(step.step_ms(64, 8 * LONG) / 1000)
    assert pace_of(replace(seen, kv_free=0), 8 * LONG, 8) == pytest.approx(step.step_ms(64, 8 * LONG) / 1000)
    short = 2 * 1000  # 64 of them fit: nothing changes
    assert pace_of(seen, short, 2) == pace_of(unseen, short, 2)


def test_a_batch_that_the_kv_cannot_hold_refuses_nobody() -> None:
    """200 tokens in 20 s: 43 s at the pace of 64 such contexts, 6 s at that of the eight that fit."""
    busy = [running(i, prompt_tokens=LONG, computed=LONG + 10) for i in range(2, 4)]
    call = view(1, SloClass.DEADLINE, 200.0, deadline=NOW + 20.0)
    refused = []
    for kv_free in (None, 600_000):
        capacity = Capacity(slots=64, running=2, kv_free=kv_free)
        refused.append([one.id for one in Concord().decide(View(capacity, [call], busy), NOW).drop])
    assert refused == [[1], []]


@pytest.mark.parametrize("goodput", list(Goodput))
def test_the_last_calls_of_a_workflow_count_by_token_only_where_tokens_count(goodput: Goodput) -> None:
    """As `ramify.slo(last=True)` says. They have limits for tokens."""

    def worths(last: bool) -> tuple[float, ...]:
        call = view(1, SloClass.COMPOUND, compound=CompoundView("run", 1, last=last), ttft=NOW + 1, tbt=0.1)
        return worth(goodput, call, 50.0), worth(goodput, replace(call, ttft=None, tbt=None), 50.0)

    limited, unlimited = worths(last=True)
    assert worths(last=False) == (unlimited, unlimited)
    assert (limited == unlimited) is (goodput is not Goodput.TOKEN)


def test_concord_orders_last_calls_as_others_unless_it_counts_tokens() -> None:
    def order(last: bool, goodput: str) -> tuple[int, ...]:
        due = NOW + 1.2  # too little time for both: the one that is worth more comes first
        one, two = CompoundView("one", 1, last=last, deadline=due), CompoundView("two", 1, deadline=due)
        calls = [
            view(1, SloClass.COMPOUND, compound=one, tbt=1.0, prompt_tokens=150),
            view(2, SloClass.COMPOUND, compound=two, tbt=1.0),
        ]
        return make_policy("concord", goodput=goodput, refuse=False).decide(View(capacity(1), calls), NOW).order

    assert order(True, "workflow") == order(False, "workflow") == (2, 1)
    assert (order(False, "token"), order(True, "token")) == ((1, 2), (2, 1))
