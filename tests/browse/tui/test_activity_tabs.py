from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from ramify.browse.tui.activity_tabs import _where_time_went, axis
from ramify.serving.types import Ledger

TIMES = st.integers(0, 100_000).map(float)
SPANS = st.lists(st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair))), min_size=1, max_size=12)


@given(SPANS, TIMES, TIMES)
def test_axis_is_monotonic_and_keeps_proportions_of_work(
    spans: list[tuple[float, float]], one: float, other: float
) -> None:
    over = axis(spans)
    first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
    assert 0.0 <= over.at(one) <= 1.0
    assert over.at(min(one, other)) <= over.at(max(one, other))
    assume(last > first)
    assert over.at(first) == 0.0
    assert abs(over.at(last) - 1.0) < 1e-9


def test_a_long_pause_is_cut_and_a_short_one_is_not() -> None:
    over = axis([(0, 10), (11, 20), (20 + 86_400, 20 + 86_400 + 10)])
    assert len(over.cuts) == 1
    worked = over.at(10) - over.at(0)
    assert abs((over.at(86_430) - over.at(86_420)) - worked) < 1e-9  # ten seconds are as wide on either side
    assert abs((over.at(11) - over.at(10)) - worked / 10) < 1e-9
    assert over.at(86_420) - over.at(20) < worked / 5
    assert over.at(20) < over.cuts[0] < over.at(86_420)


def test_instantaneous_moment_has_a_position() -> None:
    over = axis([(5, 5), (5, 5)])
    assert (over.at(4), over.cuts) == (0.0, ())
    assert 0.0 <= over.at(5) <= 1.0


def test_a_stream_tells_its_quality_of_experience_beside_its_times() -> None:
    ledger = Ledger(0.1, 0.2, 2.0, qoe=0.8125)
    assert _where_time_went(ledger) == "queued 0.10 s, first token 0.20 s, quality of experience 0.81"
