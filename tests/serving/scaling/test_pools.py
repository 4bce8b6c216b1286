"""Rates and burstiness from the times of calls.

The list of key stages, and which warm replicas are ended.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.scaling.pools import KeyStages, Observation, WarmReplica, to_end


def test_rate_and_cv_of_the_window() -> None:
    seen = Observation(0.5, window_s=10.0)
    assert seen.rate(0.0) == 0.0 and seen.cv(0.0) == 1.0
    for i in range(21):
        seen.arrived(i * 0.5)
    assert seen.rate(10.0) == pytest.approx(2.1) and seen.cv(10.0) == pytest.approx(0.0, abs=1e-9)
    assert seen.rate(100.0) == 0.0


def test_bursts_have_a_high_cv() -> None:
    seen = Observation(0.5)
    for burst in range(5):
        for i in range(10):
            seen.arrived(burst * 10 + i * 0.01)
    assert seen.cv(45.0) > 2


def test_the_service_time_follows_what_is_measured() -> None:
    seen = Observation(1.0)
    for _ in range(60):
        seen.served(0.25)
    assert seen.service_rate == pytest.approx(4.0, rel=0.01)


def test_a_key_stage_is_remembered_for_a_while() -> None:
    keys = KeyStages(forget_s=10.0)
    keys.scaled_up("a", 0.0)
    keys.scaled_up("b", 5.0)
    keys.scaled_up("a", 8.0)
    assert keys.list(14.0) == ("a", "b")
    assert keys.list(16.0) == ("a",)
    assert keys.list(30.0) == ()


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 9)), max_size=12), st.integers(0, 300))
def test_the_least_recently_used_are_ended_until_memory_suffices(warm: list[tuple[int, float]], other: int) -> None:
    replicas = [WarmReplica(f"{i:02}", "pool", size, used) for i, (size, used) in enumerate(warm)]
    used = other + sum(size for size, _ in warm)
    ended = to_end(replicas, used, 200)
    kept = [one for one in replicas if one not in ended]
    left = used - sum(one.bytes for one in ended)
    assert left <= 170 or not kept
    assert not ended or left + ended[-1].bytes > 170, "no replica more than needed"
    assert all(a.used_at <= b.used_at for a in ended for b in kept)
