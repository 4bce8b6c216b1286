"""The verdict of a row: met at its target; no multiple of next to nothing."""

from __future__ import annotations

import pytest

from benchmarks.replay.report.comparisons import Estimate, Pair, against, at_least, at_most


def pair(ours: float, theirs: float) -> Pair:
    return Pair(ours, theirs, Estimate(ours - theirs, 0.0, 1), (None,))


@pytest.mark.parametrize(("ours", "met"), [(0.7499, False), (0.75, True), (0.7501, True)])
def test_at_least_is_met_at_the_target(ours: float, met: bool) -> None:
    row = at_least("a", ours, "x", "b", pair(ours, 1.0), 0.75, "")
    assert (row["met"], row["target"]) == (met, ">= 0.75 x")


@pytest.mark.parametrize(("ours", "met"), [(0.0099, True), (0.01, True), (0.0101, False)])
def test_at_most_is_met_at_the_target(ours: float, met: bool) -> None:
    row = at_most("a", ours, "share", "b", pair(ours, 1.0), 0.01, "")
    assert (row["met"], row["target"]) == (met, "<= 0.01")


def test_without_a_target_it_is_reported() -> None:
    row = at_least("a", 0.5, "", "b", pair(0.5, 1.0), None, "")
    assert (row["met"], row["target"], row["ratio"]) == (None, "reported", 0.5)


@pytest.mark.parametrize(("ours", "met"), [(0.019, False), (0.02, True), (0.9, True)])
def test_a_target_over_next_to_nothing_still_requires_the_multiple(ours: float, met: bool) -> None:
    row = against("a", "concord", "fcfs", pair(ours, 0.004), 5.0)
    assert (row["ours"], row["ratio"], row["met"]) == (None, None, met)


def test_nothing_is_no_multiple_of_nothing() -> None:
    assert against("a", "concord", "fcfs", pair(0.0, 0.0), 5.0)["met"] is False


@pytest.mark.parametrize(("theirs", "said"), [(0.0049, False), (0.005, True)])
def test_half_a_point_is_enough_for_a_multiple(theirs: float, said: bool) -> None:
    assert (pair(0.5, theirs).ratio is not None) is said
