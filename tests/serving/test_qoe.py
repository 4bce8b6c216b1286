"""QoE of streams: the closed forms against the definition, and the properties that the definition has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.qoe import READING_TBT_S, READING_TOKENS_S, SPEAKING_TBT_S, Reading, speeds, usual_ttft_s

GAPS = st.lists(st.floats(0, 3), min_size=1, max_size=40)
TBT = st.sampled_from((0.1, 0.2, 0.25))


def read(times: list[float], tbt_s: float = 0.2, first_due: float = 1.0) -> Reading:
    reading = Reading(first_due, tbt_s)
    for at in times:
        reading = reading.delivered(at)
    return reading


def by_definition(times: list[float], tbt_s: float, first_due: float = 1.0, now: float | None = None) -> float:
    """QoE as equations 1 to 3 say it, token by token."""
    ideal = [first_due + i * tbt_s for i in range(4000)]
    reads: list[float] = []
    for at in times:
        reads.append(max(at, reads[-1] + tbt_s if reads else first_due))
    if now is not None:
        done = [a for a in reads if a <= now + 1e-12]
        due = sum(t <= now for t in ideal)
        reads = done + [now] * (due - len(done))
    if not reads:
        return 1.0
    delay = sum(a - t for a, t in zip(reads, ideal, strict=False))
    whole = sum(reads[-1] - t for t, _ in zip(ideal, reads, strict=False))
    return 1.0 if delay < 1e-9 * len(reads) else 1 - delay / whole


def cumulated(gaps: list[float]) -> list[float]:
    return [sum(gaps[: i + 1]) for i in range(len(gaps))]


@given(GAPS, TBT)
def test_the_digest_is_the_definition_token_by_token(gaps, tbt):
    times = cumulated(gaps)
    reading = read(times, tbt)
    assert reading.qoe() == pytest.approx(by_definition(times, tbt), abs=1e-6)
    now = times[-1] + 0.3337
    assert reading.qoe_at(now) == pytest.approx(by_definition(times, tbt, now=now), abs=1e-6)


@given(GAPS, TBT, st.floats(0.01, 0.6), st.integers(1, 30))
def test_tokens_at_an_even_pace_are_those_tokens_one_by_one(gaps, tbt, every, count):
    times = cumulated(gaps)
    more = [times[-1] + 0.05 + i * every for i in range(count)]
    one, other = read([*times, *more], tbt), read(times, tbt).delivered(more[0], count, every)
    assert (other.tokens, other.read_at) == (one.tokens, pytest.approx(one.read_at))
    assert other.delay_s == pytest.approx(one.delay_s, abs=1e-6)


@given(GAPS, TBT)
def test_it_is_between_0_and_1_and_early_tokens_are_perfect(gaps, tbt):
    reading = read(cumulated(gaps), tbt)
    assert 0 <= reading.qoe() <= 1
    assert read([1.0 + i * tbt - 0.01 for i in range(len(gaps))], tbt).qoe() == 1
    assert read([0.0] * len(gaps), tbt).qoe() == 1


@given(st.integers(2, 40), st.floats(0, 5), st.floats(0, 5), TBT)
def test_a_later_start_is_never_better(count, delay, more, tbt):
    on_time = [1.0 + i * tbt for i in range(count)]
    assert (
        read([t + delay for t in on_time], tbt).qoe() >= read([t + delay + more for t in on_time], tbt).qoe() - 1e-9
    )


@given(GAPS, TBT, st.floats(0, 1000))
def test_it_does_not_depend_on_where_the_clock_begins_nor_on_the_unit_of_time(gaps, tbt, shift):
    times = cumulated(gaps)
    here = read(times, tbt).qoe()
    assert read([t + shift for t in times], tbt, 1.0 + shift).qoe() == pytest.approx(here, abs=1e-5)
    assert read([t * 4 for t in times], tbt * 4, 4.0).qoe() == pytest.approx(here, abs=1e-6)


@given(GAPS, TBT, st.floats(0.1, 20))
def test_serving_is_never_worse_than_waiting(gaps, tbt, horizon):
    reading = read(cumulated(gaps), tbt)
    now = sum(gaps)
    assert reading.if_served(now, now + horizon, 0.05, tbt / 2) >= reading.qoe_at(now + horizon) - 1e-9


@pytest.mark.parametrize(("length", "qoe"), [(10, 0.474), (100, 0.908), (1000, 0.990)])
def test_a_second_of_delay_costs_a_short_answer_more(length, qoe):
    assert read([2.0 + 0.2 * i for i in range(length)]).qoe() == pytest.approx(qoe, abs=6e-4)


def test_a_single_token_that_is_late_counts_as_nothing_and_one_in_time_as_all():
    assert (read([1.0]).qoe(), read([1.1]).qoe(), Reading(1.0, 0.2).qoe()) == (1.0, 0.0, 1.0)


def test_a_reader_ahead_has_a_buffer_and_one_behind_has_none():
    assert read([0.5] * 11).ahead_s(1.0) == pytest.approx(2.2)
    assert read([0.5]).ahead_s(2.0) == pytest.approx(-0.8)


def test_the_table_of_readers_has_the_mean_that_its_rows_give():
    assert (round(READING_TOKENS_S, 2), round(1 / SPEAKING_TBT_S, 2)) == (4.5, 3.25)
    assert sum(share for share, _ in speeds()) == pytest.approx(1)
    assert (usual_ttft_s(100), usual_ttft_s(10_000)) == (1.0, 2.0)
    assert sum(share / tbt for share, tbt in speeds()) == pytest.approx(1 / READING_TBT_S)


def test_a_reader_needs_time_for_a_token():
    with pytest.raises(ValueError, match="above 0"):
        Reading(0.0, 0.0)
