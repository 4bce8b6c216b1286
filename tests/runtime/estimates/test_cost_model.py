"""Costs are predicted from what was observed; running again is chosen only where that is surely cheaper."""

from __future__ import annotations

import pytest

from ramify.runtime.estimates.cost_model import Cost, CostModel


def observed(again_s: float, over_s: float, times: int) -> CostModel:
    costs = CostModel()
    for _ in range(times):
        costs.observe(Cost.RECOMPUTE, again_s, name="make")
        costs.observe(Cost.RESTORE, over_s, size=3)
    return costs


def test_a_line_through_two_sizes_predicts_a_third() -> None:
    costs = CostModel()
    assert costs.predict(Cost.FORK, size=1) is None
    for layers in (1, 5):
        costs.observe(Cost.FORK, 0.1 + 0.01 * layers, size=layers)
    assert costs.predict(Cost.FORK, size=9) == pytest.approx(0.19)


@pytest.mark.parametrize(
    ("again_s", "over_s", "times", "chosen"),
    [
        (0.001, 0.005, 5, True),
        (0.001, 0.005, 3, False),  # not sure yet
        (0.004, 0.005, 5, False),  # cheaper, but not clearly
        (0.500, 0.005, 5, False),
    ],
)
def test_running_again_must_be_surely_cheaper(again_s: float, over_s: float, times: int, chosen: bool) -> None:
    found = observed(again_s, over_s, times).again_instead("make", layers=3)
    assert (found is not None) == chosen
    if found is not None:
        assert found.chose == "run again"
        assert (found.predicted_s, found.instead_s) == pytest.approx((again_s, over_s))


def test_what_was_never_observed_is_not_chosen() -> None:
    assert observed(0.001, 0.005, 5).again_instead("another", layers=3) is None
