"""A pessimistic estimate is tested now and then, at times that depend only on the clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.policy.refusals import RefusalProbe


def test_a_call_within_the_usual_factor_is_always_admitted() -> None:
    doubt = RefusalProbe()
    assert [doubt.should_admit(1.9, 1.0, now) for now in (0.0, 0.0, 1.0)] == [True] * 3


def test_a_call_without_time_left_is_never_a_test() -> None:
    doubt = RefusalProbe()
    assert not any(doubt.should_admit(1.0, left, now) for left in (0.0, -1.0) for now in (0.0, 1e6))


def test_a_call_beyond_the_factor_is_admitted_after_a_while() -> None:
    doubt = RefusalProbe()
    seen = [now for now in range(200) if doubt.should_admit(8.0, 1.0, float(now))]
    assert seen == [30, 60, 90, 120, 150, 180], "twice the factor of 2 takes 15 s, and four times it 30 s"


@given(st.floats(1e-3, 100.0), st.floats(1e-3, 0.99))
def test_a_call_with_a_256th_of_its_need_is_admitted_within_two_minutes(needs_s: float, share: float) -> None:
    doubt, left_s = RefusalProbe(), needs_s / (256.0 * share)
    assert any(doubt.should_admit(needs_s, left_s, float(now)) for now in (0, 120))
    hopeless = RefusalProbe()
    assert not any(hopeless.should_admit(needs_s, needs_s / 1000.0, float(now)) for now in range(0, 100_000, 50))


def test_a_clock_that_is_set_back_starts_it_anew() -> None:
    doubt = RefusalProbe()
    assert not doubt.should_admit(8.0, 1.0, 1e6)
    assert not doubt.should_admit(8.0, 1.0, 0.0)
    assert doubt.should_admit(8.0, 1.0, 31.0)
