"""The greedy packing against the exact dynamic program of Andes, algorithm 2."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ramify.serving.policy.andes.packing import Objective, batch_sizes, gains, pack
from ramify.serving.policy.types import StepModel


def exact(gain: list[float], context: list[int], memory: int, batch: int) -> float:
    """The greatest sum of gains of at most `batch` requests in `memory` tokens: O(M · N · B)."""
    best = [[0.0] * (memory + 1) for _ in range(batch + 1)]
    for g, length in zip(gain, context, strict=True):
        for b in range(batch, 0, -1):
            for m in range(memory, length - 1, -1):
                best[b][m] = max(best[b][m], best[b - 1][m - length] + g)
    return best[batch][memory]


def test_the_oracle_finds_what_greed_misses():
    assert exact([6, 5, 5], [6, 5, 5], 10, 3) == 10


def test_greedy_is_near_the_exact_program_and_never_above_it():
    chance, shares = random.Random(3), []
    for _ in range(60):
        count = chance.randrange(4, 14)
        gain = [chance.random() for _ in range(count)]
        context = [chance.randrange(1, 12) for _ in range(count)]
        memory, batch = chance.randrange(12, 50), chance.randrange(1, count)
        packed = pack(np.array(gain), np.array(context, float), memory, batch, np.arange(count, dtype=float))
        assert sum(context[i] for i in packed.chosen) <= memory
        assert len(packed.chosen) <= batch
        best = exact(gain, context, memory, batch)
        assert packed.value <= best + 1e-9
        shares.append(packed.value / best)
    # Greed stops at the first that does not fit, so a small case may lose much. On average it does not.
    assert sum(shares) / len(shares) > 0.8


@pytest.mark.parametrize(
    ("objective", "expected"),
    [(Objective.AVERAGE, [0.4, 0.5, 0.0]), (Objective.MAX_MIN, [0.1, 0.0, 0.0]), (Objective.PERFECT, [0, 1, 0])],
)
def test_objectives(objective, expected):
    served, waits, current = np.array([0.8, 1.0, 1.0]), np.array([0.4, 0.5, 1.0]), np.array([0.5, 1.0, 1.0])
    assert gains(objective, served, waits, current) == pytest.approx(expected)


def test_batches_slower_or_larger_than_useful_are_not_tried():
    context = np.full(20, 100.0)
    step = StepModel(base_ms=10, per_seq_ms=10, per_kctx_ms=0)
    assert batch_sizes(context, 1500, 64, step, 0.11, 3) == [15, 12, 10]
    assert batch_sizes(context, 1500, 64, step, 10.0, 3) == [15]
    assert batch_sizes(context, 1500, 8, step, 0.11, 3) == [8]
