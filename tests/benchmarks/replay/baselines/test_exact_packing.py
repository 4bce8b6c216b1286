"""The exact knapsack beside the greedy one."""

from __future__ import annotations

import numpy as np

from benchmarks.replay.baselines.exact_packing import exact
from ramify.serving.policy.andes.packing import pack


def test_the_exact_knapsack_finds_what_greed_misses_and_fills_up_what_is_left() -> None:
    gain, context, ties = np.array([6.0, 5.0, 5.0, 0.0]), np.array([6.0, 5.0, 5.0, 1.0]), np.arange(4.0)
    assert pack(gain, context, 10.0, 4, ties).value == 6.0
    found = exact(gain, context, 10.0, 4, ties, unit=1)
    assert (sorted(found.chosen.tolist()), found.value) == ([1, 2], 10.0)
    assert exact(gain, context, 10.0, 1, ties, unit=1).chosen.tolist() == [0]
    assert sorted(exact(np.array([6.0, 0, 0, 0]), context, 11.0, 4, ties, unit=1).chosen.tolist()) == [0, 1]
