"""When programs return, and how many do, learnt from those that did and those that are still away."""

from __future__ import annotations

import pytest

from ramify.serving.policy.kv_retention import ReturnTimes


def seen(*gaps: float, away: int = 0, since: float = 0.0) -> ReturnTimes:
    times = ReturnTimes()
    for number, gap in enumerate(gaps):
        times.left(f"back {number}", 0.0)
        times.returned(f"back {number}", gap)
    for number in range(away):
        times.left(f"away {number}", since)
    return times


def test_the_time_left_is_that_of_those_who_stayed_as_long() -> None:
    times = seen(*[1.0] * 200, *[60.0] * 40)
    assert times.remaining(0.0, 0.0)[0] == 1.0
    assert times.remaining(45.0, 0.0)[0] == pytest.approx(15.0)
    assert times.remaining(100.0, 0.0)[1] == 0.0


def test_without_experience_all_are_expected_back() -> None:
    assert ReturnTimes().remaining(0.0, 0.0) == (10.0, 1.0)


@pytest.mark.parametrize(
    ("back", "away", "low", "high"), [(90, 10, 0.85, 0.95), (10, 90, 0.05, 0.2), (0, 200, 0, 0.1)]
)
def test_the_chance_is_the_share_that_returned(back: int, away: int, low: float, high: float) -> None:
    times = seen(*[5.0] * back, away=away)
    assert low <= times.remaining(0.0, 1000.0)[1] <= high
    assert low <= times.share <= high


def test_those_who_left_just_now_say_nothing_yet() -> None:
    assert seen(*[5.0] * 20, away=100, since=999.0).remaining(0.0, 1000.0)[1] > 0.95


def test_a_program_that_says_that_it_is_over_does_not_count() -> None:
    times = seen(*[5.0] * 20, away=100)
    for number in range(100):
        times.over(f"away {number}")
    assert times.remaining(0.0, 1000.0)[1] > 0.95


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_the_chance_is_right_after_hours_too(share: float) -> None:
    """However many have left, the rare ones do not stay in memory for longer than the others."""
    times, debt = ReturnTimes(), 0.0
    for number in range(20_000):
        times.left(f"p{number}", 100.0 + number)
        debt += share
        if debt >= 1:
            debt -= 1
            times.returned(f"p{number}", 5.0)
    assert times.remaining(0.0, 25_000.0)[1] == pytest.approx(share, abs=0.03)


def test_a_return_after_what_is_remembered_teaches_nothing() -> None:
    times = seen(away=2000)
    times.returned("away 0", 3600.0)
    assert times.longest_s == 40.0
