"""The simpler rules, ours, and tiers.

Algorithm 3 on cases that can be worked out by hand.
"""

from __future__ import annotations

import random

import pytest

from ramify.serving.matching import (
    FEWEST,
    Atom,
    Fifo,
    Group,
    JobId,
    RandomOrder,
    Request,
    ScarcityPriced,
    Srsf,
    TierMatching,
    Venn,
    allocate,
)

A, B, C = (Group(name) for name in "abc")
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


def atom(*groups: Group) -> Atom:
    return frozenset(groups)


def a_request(job: str, group: Group, remaining: int, **fields: float) -> Request:
    return Request(JobId(job), group, remaining, fields.pop("arrived", 0.0), **fields)


EMOJI_AND_KEYBOARD = {atom(A): 4.0, atom(A, B): 1.0}
"""The paper's figure 4.3: everything can serve group a, a fifth of it group b as well."""


def test_scarce_devices_are_kept_for_those_who_can_use_nothing_else() -> None:
    assert allocate({A: 1, B: 1}, EMOJI_AND_KEYBOARD) == {atom(A): A, atom(A, B): B}


def test_a_long_queue_of_the_abundant_group_takes_the_intersection() -> None:
    """Lemma 3: group a goes first on shared devices if m_a / (1 - x) > m_b / x."""
    assert allocate({A: 5, B: 1}, EMOJI_AND_KEYBOARD)[atom(A, B)] == A
    assert allocate({A: 4, B: 1}, EMOJI_AND_KEYBOARD)[atom(A, B)] == B


def test_the_ratio_is_of_what_the_other_group_holds_now() -> None:
    """Line 12 prints |S_k|: 6/4 > 2/2. Group b holds only one of the two devices that it may use: 6/4 < 2/1."""
    rates = {atom(A): 4.0, atom(A, B): 1.0, atom(B, C): 1.0}
    assert allocate({A: 6, B: 2, C: 9}, rates) == {atom(A): A, atom(A, B): B, atom(B, C): C}


def test_devices_of_a_third_group_are_not_taken() -> None:
    """Line 13 prints S_j ∩ S_k, and with it group a would take from c what it was to take from b only."""
    rates = {atom(A): 3.0, atom(A, B): 1.0, atom(A, B, C): 1.0}
    assert allocate({A: 4, B: 1, C: 9}, rates) == {atom(A): A, atom(A, B): A, atom(A, B, C): C}


def test_jobs_of_a_group_go_by_what_they_still_need_and_no_device_is_idle() -> None:
    asked = [a_request("large", A, 9), a_request("small", A, 2), a_request("scarce", B, 5)]
    order = Venn().order(asked, EMOJI_AND_KEYBOARD)
    assert order[atom(A)] == ["small", "large"]
    assert order[atom(A, B)] == ["scarce", "small", "large"]


def test_the_demand_may_be_that_of_all_rounds() -> None:
    asked = [a_request("long", A, 2, left=90.0), a_request("short", A, 9, left=9.0), a_request("unknown", A, 20)]
    assert Venn(whole_jobs=True).order(asked, {atom(A): 1.0})[atom(A)] == ["short", "unknown", "long"]


def test_fairness_prefers_who_received_less_service() -> None:
    asked = [a_request("served", A, 2, served_s=50, fair_s=100), a_request("not yet", A, 3, served_s=5, fair_s=100)]
    assert Venn().order(asked, {atom(A): 1.0})[atom(A)] == ["served", "not yet"]
    assert Venn(epsilon=1.0).order(asked, {atom(A): 1.0})[atom(A)] == ["not yet", "served"]


@pytest.mark.parametrize("epsilon", [0.0, 2.0])
def test_without_requests_there_is_no_order(epsilon: float) -> None:
    assert Venn(epsilon).order([], {atom(A): 1.0}) == {atom(A): []}
