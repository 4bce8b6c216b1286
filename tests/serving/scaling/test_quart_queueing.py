"""Erlang's C and the formulas beside it, against exact sums and published values."""

from __future__ import annotations

from math import factorial, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import BadPool
from ramify.serving.scaling.quart import bursty_sojourn_s, departure_cv, erlang_c, replicas_for, sojourn_s

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
