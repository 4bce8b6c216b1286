"""The simpler rules, ours, and tiers."""

from __future__ import annotations

import random

from ramify.serving.matching import (
    FEWEST,
    Fifo,
    Group,
    JobId,
    RandomOrder,
    Request,
    ScarcityPriced,
    Srsf,
    TierMatching,
)

A, B = Group("a"), Group("b")
ALL, BOTH = frozenset({A}), frozenset({A, B})
RATES = {ALL: 3.0, BOTH: 1.0}
ASKED = [
    Request(JobId("first"), A, 9, 0.0, left=90, age_s=10.0, fair_s=5.0),
    Request(JobId("small"), A, 2, 1.0, left=200, age_s=9.0, fair_s=9.0),
    Request(JobId("scarce"), B, 5, 2.0, left=300, age_s=8.0, fair_s=9.0),
]


def test_fifo_and_srsf_see_only_who_may_use_a_device() -> None:
    assert Fifo().order(ASKED, RATES) == {ALL: ["first", "small"], BOTH: ["first", "small", "scarce"]}
    assert Srsf().order(ASKED, RATES)[BOTH] == ["small", "scarce", "first"]


def test_a_random_order_is_one_order_for_all_devices() -> None:
    order = RandomOrder(random.Random(1)).order(ASKED, RATES)
    assert [job for job in order[BOTH] if job != "scarce"] == list(order[ALL])


def test_our_price_counts_later_rounds_and_who_else_could_use_the_devices() -> None:
    assert ScarcityPriced().order(ASKED, RATES)[BOTH] == ["scarce", "first", "small"]
    unknown = [Request(one.job, one.group, one.remaining, one.arrived) for one in ASKED]
    assert ScarcityPriced().order(unknown, RATES)[BOTH] == ["scarce", "small", "first"]


def test_patience_lowers_the_price_of_a_job_beyond_its_fair_share_only() -> None:
    assert ScarcityPriced(patience=3.0).order(ASKED, RATES)[BOTH] == ["first", "scarce", "small"]


def profiled(tiers: int, seed: int = 0) -> TierMatching:
    made = TierMatching(tiers, random.Random(seed))
    for number in range(FEWEST * tiers):
        made.responded(float(number), 100.0 - number)
    return made


def test_tiers_are_used_where_responses_take_longer_than_devices() -> None:
    made = profiled(3)
    made.begin(schedule_s=100.0, response_s=1.0)
    assert all(made.accepts(float(capability)) for capability in range(24))
    chosen = set()
    for _ in range(20):
        made.begin(schedule_s=0.1, response_s=1000.0)
        chosen.add(tuple(capability for capability in range(24) if made.accepts(float(capability))))
    # the slowest tier saves nothing: its percentile is that of all devices
    assert chosen == {tuple(range(24)), tuple(range(8, 16)), tuple(range(16, 24))}


def test_a_job_that_was_not_served_takes_every_device() -> None:
    made = TierMatching(3, random.Random(0))
    made.begin(schedule_s=0.1, response_s=1000.0)
    assert made.accepts(0.0) and made.accepts(1e9)
