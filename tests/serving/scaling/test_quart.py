"""QUART's controller.

A capacity that pools share.

The corrector's PID.

Erlang's C and the formulas beside it, against exact sums and published values.

QUART's smoother and CPU compensator.
"""

from __future__ import annotations

from math import factorial, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import BadPool, NoRoom
from ramify.serving.scaling.pools import PoolLimits, PoolLoad
from ramify.serving.scaling.quart import (
    PID,
    Compensation,
    CpuProfile,
    Gains,
    Quart,
    bursty_sojourn_s,
    compensate,
    departure_cv,
    erlang_c,
    replicas_for,
    smoothed,
    sojourn_s,
    within_budget,
)

LIMITS = PoolLimits(1, 10, start_s=2.0)


def pool(name: str, rate: float, replicas: int, **more: float) -> PoolLoad:
    return PoolLoad(name, rate, 1.0, replicas, limits=LIMITS, **more)  # type: ignore[arg-type]


def test_the_stage_that_holds_the_pipeline_back_is_scaled_and_listed() -> None:
    decided = Quart(12).decide([pool("a", 0.2, 1), pool("b", 2.5, 2), pool("c", 0.2, 1)], (), 0.0)
    assert decided.replicas["b"] > 2 and decided.key == ("b",)
    assert sum(decided.replicas.values()) <= 12


def test_a_pool_that_is_not_needed_shrinks_to_its_least_one_by_one() -> None:
    quart, replicas = Quart(12), 4
    for now in range(10):
        after = quart.decide([pool("a", 0.01, replicas)], (), float(now)).replicas["a"]
        assert after in (replicas, replicas - 1)
        replicas = after
    assert replicas == 1


def test_a_queue_counts_although_the_mean_rate_is_low() -> None:
    assert Quart(12).decide([pool("a", 0.1, 1, queue=20)], (), 0.0).replicas["a"] > 1


def test_cores_replace_a_replica_where_they_suffice_and_no_stage_is_passed_by() -> None:
    """Algorithm 1 returns inside its loop, so that only the first stage would be looked at."""
    enough, short = CpuProfile((1, 2), (1.5, 0.8)), CpuProfile((1, 2), (3.0, 2.9))
    quart = Quart(12, profiles={"a": short, "b": enough}, most_cores=4)
    decided = quart.decide([pool("a", 0.1, 3), pool("b", 0.1, 3)], (), 0.0)
    assert decided.replicas == {"a": 3, "b": 2}
    assert decided.cpus == {"a": 4, "b": 2}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=1, max_size=6), st.integers(0, 40))
def test_the_budget_is_kept_and_used(pools: list[tuple[int, int]], budget: int) -> None:
    least = {str(i): low for i, (low, _) in enumerate(pools)}
    wanted = {str(i): want for i, (_, want) in enumerate(pools)}
    floor = sum(least.values())
    if budget < floor:
        with pytest.raises(NoRoom):
            within_budget(wanted, least, budget)
        return
    given_ = within_budget(wanted, least, budget)
    asked = sum(max(wanted[name], least[name]) for name in least)
    assert sum(given_.values()) == min(budget, asked)
    assert all(least[name] <= given_[name] <= max(wanted[name], least[name]) for name in least)


def test_a_slow_pool_gets_replicas_and_a_fast_one_loses_them() -> None:
    """Algorithm 1 prints the error the other way round."""
    assert PID().step(3.0, 1.0, 0.0) > 0 > PID().step(0.5, 1.0, 0.0)


def test_an_infinite_time_is_a_finite_wish() -> None:
    assert PID(most=3.0).step(inf, 1.0, 0.0) == 3.0


def test_the_integral_stands_still_at_the_limit() -> None:
    pid = PID(Gains(0.0, 1.0, 0.0), most=2.0)
    for now in range(100):
        pid.step(inf, 1.0, float(now))
    falls = [pid.step(0.0, 1.0, 100.0 + i) for i in range(6)]
    assert min(falls) < 0, "a long overload is forgotten within a few steps"


def test_senseless_steps_are_refused() -> None:
    pid = PID()
    pid.step(1.0, 1.0, 5.0)
    with pytest.raises(BadPool, match="before its last"):
        pid.step(1.0, 1.0, 4.0)
    with pytest.raises(BadPool, match="target"):
        pid.step(1.0, 0.0, 6.0)


servers = st.integers(1, 40)
shares = st.floats(0.01, 0.99)


def exact(c: int, a: float) -> float:
    """The textbook sum."""
    last = a**c / factorial(c) * c / (c - a)
    return last / (sum(a**k / factorial(k) for k in range(c)) + last)


@given(servers, shares)
def test_erlang_c_is_the_textbook_sum(c: int, share: float) -> None:
    assert erlang_c(c, share * c) == pytest.approx(exact(c, share * c), rel=1e-9)


@given(servers, shares)
def test_waiting_falls_with_servers_and_rises_with_load(c: int, share: float) -> None:
    a = share * c
    assert erlang_c(c + 1, a) < erlang_c(c, a) <= 1
    assert erlang_c(c, a * 0.9) < erlang_c(c, a)
    assert sojourn_s(a, 1.0, c + 1) <= sojourn_s(a, 1.0, c)


def test_a_thousand_servers_neither_overflow_nor_cancel() -> None:
    assert 0 < erlang_c(1000, 950) < 1


def test_quarts_equation_1_is_corrected() -> None:
    """It prints P_0·λ/(rμ(μ - λ/r)) + 1/μ, which is 1.9 here; one server at .9 takes 10 service times."""
    rate, mu, idle = 0.9, 1.0, 0.1
    assert idle * rate / (mu * (mu - rate)) + 1 / mu == pytest.approx(1.9)
    assert sojourn_s(rate, mu, 1) == pytest.approx(10.0)


def test_overload_takes_for_ever() -> None:
    assert sojourn_s(2.0, 1.0, 2) == inf == sojourn_s(3.0, 1.0, 2)


@given(st.floats(0.1, 20), st.floats(0.1, 5), st.floats(1.05, 5), st.floats(0, 8))
def test_replicas_for_is_the_least_that_keeps_the_target(rate: float, mu: float, target: float, cv: float) -> None:
    found = replicas_for(rate, mu, target / mu, cv=cv)
    assert bursty_sojourn_s(rate, mu, found, cv) <= target / mu
    assert found == 1 or bursty_sojourn_s(rate, mu, found - 1, cv) > target / mu


def test_departures_are_as_bursty_as_arrivals_when_idle_and_as_service_when_busy() -> None:
    assert departure_cv(4.0, 0.0, 1) == pytest.approx(4.0)
    assert departure_cv(4.0, 1.0, 1, 0.5) == pytest.approx(0.5)
    assert departure_cv(1.0, 0.7, 3) == pytest.approx(1.0)  # Burke: Poisson in, Poisson out


@pytest.mark.parametrize(("c", "a"), [(0, 1.0), (1, -1.0), (1, float("nan"))])
def test_senseless_numbers_are_refused(c: int, a: float) -> None:
    with pytest.raises(BadPool):
        erlang_c(c, a)


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(0, 8)), min_size=1, max_size=8))
def test_smoothing_stays_between_the_pool_and_its_neighbours(stages: list[tuple[float, float]]) -> None:
    wanted, cvs = [w for w, _ in stages], [c for _, c in stages]
    for i, value in enumerate(smoothed(wanted, cvs)):
        near = wanted[max(0, i - 1) : i + 2]
        assert min(near) - 1e-9 <= value <= max(near) + 1e-9


def test_a_calm_stage_takes_its_neighbours_mean_and_a_bursty_one_keeps_its_own() -> None:
    assert smoothed([2.0, 9.0, 4.0], [0.0, 0.0, 0.0])[1] == 3.0
    assert smoothed([2.0, 9.0, 4.0], [0.0, 1e9, 0.0])[1] == pytest.approx(9.0)


def test_cores_by_regression_over_their_inverse() -> None:
    profile = CpuProfile((1, 2, 4), (1.2, 0.7, 0.45))  # .2 + 1 / cores
    assert compensate(profile, 0.46, most=8) == Compensation(4, enough=True)
    assert compensate(profile, 0.1, most=8) == Compensation(8, enough=False)
    with pytest.raises(BadPool, match="two numbers"):
        CpuProfile((2, 2), (1.0, 1.0))
