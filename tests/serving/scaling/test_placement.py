"""Spread placement under capacity."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import NoRoom
from ramify.serving.scaling.placement import divergence, spread


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 8))
def test_greedy_keeps_capacities_and_is_near_the_best_of_all(room: list[int], wanted: int) -> None:
    free = {f"host{i}": count for i, count in enumerate(room)}
    if wanted > sum(room):
        with pytest.raises(NoRoom, match=f"{wanted} replicas"):
            spread(wanted, free)
        return
    placed = spread(wanted, free)
    assert sum(placed.values()) == wanted and all(placed[h] <= free[h] for h in free)
    if wanted:
        ways = (dict(zip(free, way, strict=True)) for way in product(*(range(c + 1) for c in room)))
        best = min(divergence(way, free) for way in ways if sum(way.values()) == wanted)
        assert divergence(placed, free) <= best + 0.2


def test_equal_hosts_get_equal_shares() -> None:
    assert spread(6, {"a": 4, "b": 4, "c": 4}) == {"a": 2, "b": 2, "c": 2}
