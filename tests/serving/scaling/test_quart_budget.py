"""A capacity that pools share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import NoRoom
from ramify.serving.scaling.quart import within_budget


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=1, max_size=6), st.integers(0, 40))
def test_the_budget_is_kept_and_used(pools: list[tuple[int, int]], budget: int) -> None:
    least = {str(i): low for i, (low, _) in enumerate(pools)}
    wanted = {str(i): want for i, (_, want) in enumerate(pools)}
    floor = sum(least.values())
    if budget < floor:
        with pytest.raises(NoRoom):
            within_budget(wanted, least, budget)
        return
    given_ = within_budget(wanted, least, budget)
    asked = sum(max(wanted[name], least[name]) for name in least)
    assert sum(given_.values()) == min(budget, asked)
    assert all(least[name] <= given_[name] <= max(wanted[name], least[name]) for name in least)
