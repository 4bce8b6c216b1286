"""The simulation of pools: what holds for every contender, and that its arrivals are what they are said to be."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, pstdev

import pytest

from benchmarks.pool_scaling.contenders import ALL, ORACLE, OURS, Contender
from benchmarks.pool_scaling.simulation import Outcome, Simulation
from benchmarks.pool_scaling.workloads import workload


def run(contender: Contender, *, cv: float = 4.0, load: float = 0.4, start_s: float = 2.0) -> Outcome:
    made = workload(7, 150.0, 20, load, cv=cv)
    simulation = Simulation(
        made, contender.make(20), 20, start_s, foresight=contender.foresight, oracle=contender.oracle
    )
    out = simulation.run()
    assert out.workflows == len(made), "every workflow ends: no call is cut or lost"
    return out


@pytest.mark.parametrize("contender", ALL, ids=lambda one: one.name)
def test_all_use_the_same_capacity_and_lose_nothing(contender: Contender) -> None:
    assert run(contender).most_used <= 20


def test_an_almost_empty_system_takes_the_time_of_the_work_alone() -> None:
    made = workload(7, 600.0, 20, 0.01, cv=0.1)
    out = Simulation(made, ORACLE.make(20), 20, 0.0, oracle=True).run()
    assert out.goodput == 1.0 and out.late_s == 0.0
    assert out.latency_s < 1.2 * mean(one.alone_s for one in made)


def test_slow_starts_make_it_worse() -> None:
    assert run(OURS, start_s=0.1).latency_s < run(OURS, start_s=8.0).latency_s


@pytest.mark.parametrize("cv", [0.1, 1.0, 4.0])
def test_gamma_arrivals_have_the_cv_that_is_asked_for(cv: float) -> None:
    times = [one.at for one in workload(1, 40_000.0, 20, 0.5, cv=cv)]
    gaps = [b - a for a, b in pairwise(times)]
    assert pstdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.15)
