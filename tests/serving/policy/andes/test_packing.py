"""The columns say what `Reading` says, one by one.

The greedy packing against the exact dynamic program of Andes, algorithm 2.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.andes.packing import Objective, Readers, batch_sizes, gains, pack
from ramify.serving.policy.types import RequestView, SloClass, State, StepModel
from ramify.serving.qoe import Reading
from tests.serving.policy.views import NOW, running, view

TIMES = st.lists(st.floats(0, 8), max_size=12).map(sorted)


def stream(id_: int, times: list[float], tbt_s: float = 0.2, ttft_s: float = 1.0) -> RequestView:
    """A stream that arrived at NOW - 10; its tokens came so many seconds later."""
    reading = Reading(NOW - 10 + ttft_s, tbt_s)
    for at in times:
        reading = reading.delivered(NOW - 10 + at)
    more = {"arrived": NOW - 10, "reading": reading, "generated": len(times)}
    return running(id_, SloClass.STREAM, **more) if times else view(id_, SloClass.STREAM, **more)


@given(st.lists(st.tuples(TIMES, st.sampled_from((0.1, 0.25))), min_size=1, max_size=6), st.floats(0.01, 0.5))
def test_all_at_once_is_one_by_one(made, every):
    calls = [stream(i, times, tbt) for i, (times, tbt) in enumerate(made)]
    columns = Readers().columns(calls)
    start, until = np.full(len(calls), 0.07), NOW + 6.0
    for one, waits, served in zip(
        calls,
        columns.qoe_at(until),
        columns.served(NOW, until, start, every).qoe_at(until),
        strict=True,
    ):
        assert one.reading is not None
        assert waits == pytest.approx(one.reading.qoe_at(until), abs=1e-6)
        assert served == pytest.approx(one.reading.if_served(NOW, until, 0.07, every), abs=1e-6)


def test_rows_follow_their_calls_through_growth_and_forgetting():
    readers = Readers()
    many = [stream(i, [0.1 * i]) for i in range(1, 400)]
    readers.columns(many)
    few = [many[5], stream(999, []), many[300]]
    again = readers.columns(few)
    assert list(again.tokens) == [1, 0, 1]
    assert again.read_at[2] == pytest.approx(NOW - 10 + 30.1)
    assert list(again.held > 0) == [True, False, True]
    assert readers.columns([]).tokens.size == 0


def test_a_call_that_is_no_stream_counts_as_read_in_time():
    columns = Readers().columns([running(1, SloClass.DEADLINE, arrived=NOW - 1, state=State.RUNNING)])
    assert columns.qoe_at(NOW)[0] == 1.0


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
