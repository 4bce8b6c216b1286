"""Algorithm 3 on cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from ramify.serving.matching import Atom, Group, JobId, Request, Venn, allocate

A, B, C = (Group(name) for name in "abc")


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
