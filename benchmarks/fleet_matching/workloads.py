"""Jobs and devices with the set-up of Venn's evaluation (section 4.5.1), as far as the paper gives it.

From the paper: 50 jobs, Poisson arrivals every 30 minutes on average, each randomly of one of four categories
(General, Compute-rich, Memory-rich, High-performance) over devices in four strata; 80 % of responses; deadlines of 5
to 15 minutes by the demand; five samples of the jobs. The traces themselves (FedScale's devices, figure 4.8b's jobs)
are not published with it. Here: log-normal demands and rounds, response times log-normal over the device's
capability, a supply that swings over the day, and 8 % of devices that never respond. `LOAD` sets the one free number,
how many devices come: so many that the jobs' demand is that share of what comes while they arrive.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from enum import StrEnum

from benchmarks.fleet_matching.simulation import Device, Job
from ramify.serving.matching import Atom, Group, JobId, Rates

GENERAL, COMPUTE, MEMORY, HIGH = (Group(name) for name in ("general", "compute", "memory", "high"))
GROUPS = (GENERAL, COMPUTE, MEMORY, HIGH)
STRATA: Rates = {
    frozenset({GENERAL}): 0.40,
    frozenset({GENERAL, COMPUTE}): 0.22,
    frozenset({GENERAL, MEMORY}): 0.22,
    frozenset(GROUPS): 0.16,
}
"""The share of each stratum of devices: poor in both, rich in one, rich in both."""

JOBS, BETWEEN_S, DAY_S = 50, 1800.0, 86400.0
LOAD, FAILS = 1.6, 0.08


class Workload(StrEnum):
    """Which jobs are sampled."""

    EVEN = "even"  # all
    SMALL = "small"  # total demand below the average
    LARGE = "large"  # above it
    LOW = "low"  # demand a round below the average
    HIGH = "high"  # above it


def jobs(workload: Workload, seed: int) -> list[Job]:
    source = random.Random(f"jobs {seed}")
    pool = [_shape(source) for _ in range(400)]
    totals = sum(demand * rounds for demand, rounds in pool) / len(pool)
    demands = sum(demand for demand, _ in pool) / len(pool)
    chosen = {
        Workload.EVEN: pool,
        Workload.SMALL: [one for one in pool if one[0] * one[1] < totals],
        Workload.LARGE: [one for one in pool if one[0] * one[1] >= totals],
        Workload.LOW: [one for one in pool if one[0] < demands],
        Workload.HIGH: [one for one in pool if one[0] >= demands],
    }[workload]
    made, at = [], 0.0
    for number in range(JOBS):
        at += source.expovariate(1 / BETWEEN_S)
        demand, rounds = source.choice(chosen)
        deadline = 300.0 + 600.0 * min(1.0, demand / 300)
        made.append(Job(JobId(f"job {number:02}"), at, source.choice(GROUPS), demand, rounds, 60.0, deadline))
    return made


def _shape(source: random.Random) -> tuple[int, int]:
    demand = min(400, max(5, round(source.lognormvariate(math.log(40), 0.9))))
    return demand, min(60, max(3, round(source.lognormvariate(math.log(12), 0.6))))


def rates_for(made: list[Job], load: float = LOAD) -> Rates:
    """Return the mean rates of the strata at which the jobs' whole demand is `load` of what comes while they
    arrive."""
    demand = sum(one.total for one in made)
    rate = demand / (load * JOBS * BETWEEN_S)
    return {atom: share * rate for atom, share in STRATA.items()}


def devices(rates: Rates, seed: int) -> Iterator[Device]:
    """Yield devices as they come, without end: a Poisson process that swings by half over a day."""
    source = random.Random(f"devices {seed}")
    whole = sum(rates.values())
    atoms: list[Atom] = list(rates)
    weights = [rates[atom] for atom in atoms]
    at = 0.0
    while True:
        at += source.expovariate(1.5 * whole)
        if source.random() * 1.5 > 1 + 0.5 * math.sin(2 * math.pi * at / DAY_S):
            continue
        atom = source.choices(atoms, weights)[0]
        capability = source.lognormvariate(0.15 * (len(atom) - 1), 0.35)
        yield Device(at, atom, capability, source.lognormvariate(0.0, 0.4), source.random() < FAILS)
