"""The simulation of pools: what holds for every contender, and that its arrivals are what they are said to be."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev

import pytest

from benchmarks import scaling
from benchmarks.pool_scaling.contenders import ALL, ORACLE, OURS, PACKED, QUART, Contender
from benchmarks.pool_scaling.simulation import Outcome, Servers, Simulation
from benchmarks.pool_scaling.two_models import BUDGET, DRAFT, PLAN, Pipeline, Share
from benchmarks.pool_scaling.workloads import workload
from benchmarks.replay.errors import BadTrace
from ramify.serving.scaling.lookahead import Lookahead
from ramify.serving.scaling.pools import PoolLimits, PoolLoad


def run(
    contender: Contender,
    *,
    cv: float = 4.0,
    load: float = 0.4,
    start_s: float = 2.0,
    servers: Servers | None = None,
) -> Outcome:
    made = workload(7, 150.0, 20, load, cv=cv)
    simulation = Simulation(
        made,
        contender.make(20),
        20,
        start_s,
        foresight=contender.foresight,
        oracle=contender.oracle,
        servers=servers,
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


def test_the_controller_chooses_the_server_and_no_server_holds_too_many() -> None:
    """A server with more replicas than places is BadPool."""
    servers = Servers((11, 6, 3), warm_s=0.2)
    spread, packed = run(QUART, servers=servers), run(PACKED, servers=servers)
    assert 0 < spread.cold < spread.starts and 0 < packed.cold < packed.starts
    assert (spread.cold, spread.latency_s) != (packed.cold, packed.latency_s)


@pytest.mark.parametrize("cv", [0.1, 1.0, 4.0])
def test_gamma_arrivals_have_the_cv_that_is_asked_for(cv: float) -> None:
    times = [one.at for one in workload(1, 40_000.0, 20, 0.5, cv=cv)]
    gaps = [b - a for a, b in pairwise(times)]
    assert pstdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.15)


def test_one_replica_moves_between_two_pools() -> None:
    """To the plans while they wait, and to the drafts before a workflow's plan is done."""
    pipeline = Pipeline(Lookahead(BUDGET))
    limits = PoolLimits(1, 2, 0.5)
    busy = PoolLoad("replicas", 1.0, 1.0, 1, queue=3, running=1, limits=limits)
    idle = PoolLoad("replicas", 1.0, 1.0, 1, limits=limits)

    def decided(plan: PoolLoad, draft: PoolLoad, now: float) -> tuple[int, int]:
        Share(DRAFT, pipeline).decide([draft], (), now)
        first = Share(PLAN, pipeline).decide([plan], (), now).replicas["replicas"]
        return first, Share(DRAFT, pipeline).decide([draft], (), now).replicas["replicas"]

    assert Share(PLAN, pipeline).decide([busy], (), 0.0).replicas == {"replicas": 1}, "the other is not known yet"
    assert decided(busy, idle, 0.0) == (2, 1)
    assert decided(idle, busy, 1.0) == (1, 2)
    pipeline.planning[1] = 99.3
    assert decided(idle, idle, 100.0) == (1, 2), "three drafts come in 0.3 s"


def test_a_trace_that_cannot_be_read_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").touch()
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--trace", str(tmp_path / "empty")])
    monkeypatch.setattr(scaling, "starts_of", lambda *_: pytest.fail("it measures"))
    with pytest.raises(BadTrace, match="empty"):
        scaling.main()
