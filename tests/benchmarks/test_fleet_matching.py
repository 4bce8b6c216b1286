"""The simulation of matching rules, and the integer program that bounds them."""

from __future__ import annotations

import math
import random
from itertools import islice
from statistics import mean

import pytest

from benchmarks.fleet_matching.integer_program import least_mean_delay
from benchmarks.fleet_matching.simulation import Device, Job, simulate
from benchmarks.fleet_matching.slots import ABILITIES, RULES, FleetJob, complete, fleet_jobs, nodes
from benchmarks.fleet_matching.workloads import GROUPS, STRATA, Workload, devices, jobs, rates_for
from ramify.fleet.job_order import order_of
from ramify.serving.matching import Fifo, Group, JobId, Matching, RandomOrder, ScarcityPriced, Srsf, Venn

A, B = Group("a"), Group("b")
ALL, BOTH = frozenset({A}), frozenset({A, B})


def a_job(name: str, group: Group, demand: int, **fields: float) -> Job:
    rounds = int(fields.pop("rounds", 1))
    return Job(JobId(name), fields.pop("arrives", 0.0), group, demand, rounds, fields.pop("task_s", 0.0), math.inf)


def test_a_round_begins_with_its_last_device_and_ends_with_the_response_of_four_in_five() -> None:
    ready = [Device(float(at), ALL, capability) for at, capability in enumerate((1, 2, 4, 4, 0.1, 1), 1)]
    made = simulate([a_job("one", A, 5, task_s=8.0)], ready, {ALL: 1.0}, Fifo())
    assert made.completion_s == {"one": 5.0 + 8.0} and made.delay_s == 5.0


def test_a_round_that_misses_its_deadline_is_repeated() -> None:
    job = Job(JobId("one"), 0.0, A, 1, 1, 8.0, 10.0)
    ready = [Device(1.0, ALL, 1.0, fails=True), Device(2.0, ALL, 1.0), Device(20.0, ALL, 1.0)]
    made = simulate([job], ready, {ALL: 1.0}, Fifo())
    assert (made.completion_s, made.aborted) == ({"one": 28.0}, 1)


def test_too_few_devices_are_an_error() -> None:
    with pytest.raises(ValueError, match="ran out"):
        simulate([a_job("one", A, 2)], [Device(1.0, ALL, 1.0)], {ALL: 1.0}, Fifo())


def test_no_rule_beats_the_integer_program() -> None:
    rules: list[Matching] = [Fifo(), Srsf(), RandomOrder(random.Random(0)), Venn(), ScarcityPriced()]
    for seed in range(6):
        source = random.Random(seed)
        asked = [a_job(f"job {n}", source.choice(GROUPS), source.randint(1, 3)) for n in range(4)]
        atoms = source.choices(list(STRATA), list(STRATA.values()), k=40)
        ready = [Device(float(at), atom, 1.0) for at, atom in enumerate(atoms, 1)]
        best = least_mean_delay([(one.at, one.atom) for one in ready], [(one.group, one.demand) for one in asked])
        for rule in rules:
            assert simulate(asked, ready, STRATA, rule).mean_s >= best - 1e-6


def test_the_integer_program_keeps_devices_from_jobs_that_cannot_use_them() -> None:
    """The printed constraint would let the first device work for the job of group b."""
    assert least_mean_delay([(1.0, ALL), (5.0, BOTH)], [(B, 1)]) == pytest.approx(5.0)
    assert least_mean_delay([(1.0, BOTH), (2.0, ALL)], [(A, 1), (B, 1)]) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="do not suffice"):
        least_mean_delay([(1.0, ALL)], [(B, 1)])


def test_workloads_have_the_papers_set_up() -> None:
    for workload in Workload:
        made = jobs(workload, 1)
        assert len(made) == 50 and {one.group for one in made} == set(GROUPS)
        assert all(300 <= one.deadline_s <= 900 for one in made)
    rates = rates_for(made)
    come = list(islice(devices(rates, 1), 5000))
    assert sum(rates.values()) * come[-1].at == pytest.approx(5000, rel=0.6)  # the supply swings over a day
    assert sum(one.atom == ALL or len(one.atom) == 1 for one in come) / 5000 == pytest.approx(0.4, abs=0.03)


async def test_a_slot_is_held_for_the_work_and_for_the_first_fetch() -> None:
    made = [
        FleetJob("batch", 0.0, frozenset(), (2.0, 2.0, 2.0), "", False),
        FleetJob("search", 1.0, frozenset({"GPU"}), (1.0,), "", True),
    ]
    done = complete(made, nodes(1)[:1] + nodes(1)[2:3], None, fetch_s=0.5)
    assert done == {"batch": 2.5 + 2.0, "search": 1.5 + 1.5}  # the node with the GPU is free at 2.5


async def test_the_price_serves_jobs_on_slots_sooner_than_simpler_rules() -> None:
    made_of, took = nodes(2), dict[str, list[float]]()
    for seed in range(3):
        made = fleet_jobs(40, ABILITIES, 10, 0.9, seed)
        for rule in RULES:
            done = complete(made, made_of, order_of(rule, None, random.Random(seed)), fetch_s=0.5)
            assert set(done) == {one.id for one in made}
            took.setdefault(rule, []).append(mean(done.values()))
    assert mean(took["price"]) < mean(took["venn"]) < mean(took["fifo"])
    assert mean(took["price"]) < mean(took["srsf"])
