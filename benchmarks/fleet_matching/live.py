"""Jobs on the two unlike nodes of a Ray cluster of this machine, once for each rule of the fleet's queue.

The jobs are those of `slots`, in seconds: a batch of runs whose step waits, or a search whose forks each wait in a
command. They wait rather than compute, so the cores of this machine do not limit them. A node has one slot. Half of
the jobs need what only one of the nodes has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from statistics import mean, median

from benchmarks.fleet_cluster import ONE_NODE
from benchmarks.fleet_matching.slots import RULES, FleetJob, fleet_jobs
from benchmarks.rows import Row, median_row
from ramify import step, workflow
from ramify.fleet.fleet import Fleet
from ramify.fleet.job_order import order_of
from ramify.fleet.types import Needs

UNIT_S = 0.2
LOAD = 0.9


def _named(rule: str) -> str:
    return f"{rule}, jobs on two unlike nodes"


NAMES = tuple(_named(rule) for rule in RULES)


@step
async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow
async def one_run(seconds: float) -> None:
    await pause(seconds)


async def _perform(fleet: Fleet, job: FleetJob, name: str) -> None:
    needs = Needs(resources=dict.fromkeys(job.needs, 1))
    works = [work * UNIT_S for work in job.works]
    if not job.searches:
        await asyncio.gather(*(fleet.start(one_run, (work,), needs=needs, job=name) for work in works))
        return
    at_once = asyncio.Semaphore(fleet.slots)
    async with fleet.world(needs=needs, job=name) as world:

        async def rollout(work: float) -> None:
            async with at_once:
                (fork,) = await world.fork()
                async with fork:
                    await fork.exec(["sleep", f"{work:.3f}"], check=True)

        await asyncio.gather(*(rollout(work) for work in works))


async def _mean_s(fleet: Fleet, jobs: Sequence[FleetJob], rule: str, seed: int) -> float:
    """The mean completion time of the jobs under a rule."""
    fleet._nodes.queue.order = order_of(rule, None, random.Random(seed))
    begun = time.perf_counter()

    async def completion_s(job: FleetJob) -> float:
        arrives = job.arrives * UNIT_S
        await asyncio.sleep(begun + arrives - time.perf_counter())
        await _perform(fleet, job, f"{rule} {seed} {job.id}")
        return time.perf_counter() - begun - arrives

    return mean(await asyncio.gather(*(completion_s(one) for one in jobs)))


async def rows(fleet: Fleet, quick: bool) -> list[Row]:
    """How many times faster jobs are done than in a random order, by rule."""
    many, seeds = (6, 1) if quick else (16, 3)
    took: dict[str, list[float]] = {rule: [] for rule in ("random", *RULES)}
    warm = [FleetJob(f"warm {searches}", 0.0, frozenset(), (0.1,) * 8, "", searches) for searches in (False, True)]
    await _mean_s(fleet, warm, "fifo", 0)  # opens stores
    for seed in range(seeds):
        jobs = fleet_jobs(many, [frozenset(), frozenset({ONE_NODE})], fleet.slots, LOAD, seed, most=20)
        rules = list(took)
        for rule in rules[seed % len(rules) :] + rules[: seed % len(rules)]:
            took[rule].append(await _mean_s(fleet, jobs, rule, seed))
    gains = {rule: [chance / ours for chance, ours in zip(took["random"], took[rule], strict=True)] for rule in RULES}
    simpler = max(("fifo", "srsf"), key=lambda rule: median(gains[rule]))
    found = []
    for rule in RULES:
        said = f"mean completion {median(took[rule]):.1f} s, random {median(took['random']):.1f} s; {seeds} seeds"
        compared = rule not in ("fifo", "srsf")
        peer = {"peer": simpler, "peer_value": round(median(gains[simpler]), 3)} if compared else {}
        values = [round(one, 3) for one in gains[rule]]
        found.append(median_row(_named(rule), values, "x over random", note=said, **peer))
    return found
