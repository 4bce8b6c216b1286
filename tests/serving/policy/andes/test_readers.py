"""The columns say what `Reading` says, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.andes.packing import Readers
from ramify.serving.policy.types import RequestView, SloClass, State
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
