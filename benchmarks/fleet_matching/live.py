"""Jobs on the two unlike nodes of a Ray cluster of this machine, for each rule of the fleet's queue.

The jobs are those of `slots`, in seconds: a batch of runs whose step waits, or a search whose forks each wait in a
command. They wait rather than compute, so the cores of this machine do not limit them. Half of the jobs need what
only one node has. Each rule has a fleet of its own, with one slot a node, and all fleets get the same jobs at the
same time: so what else the machine does affects all rules alike.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import mean, median

from benchmarks.fleet_cluster import ONE_NODE
from benchmarks.fleet_matching.slots import RULES, FleetJob, fleet_jobs
from benchmarks.rows import Row, median_row
from ramify import Runtime, step, workflow
from ramify.fleet.fleet import Fleet
from ramify.fleet.types import Needs

UNIT_S, QUICK_UNIT_S = 1.0, 0.3
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


async def _perform(fleet: Fleet, job: FleetJob, unit_s: float) -> None:
    needs = Needs(resources=dict.fromkeys(job.needs, 1))
    works = [work * unit_s for work in job.works]
    if not job.searches:
        await asyncio.gather(*(fleet.start(one_run, (work,), needs=needs, job=job.id) for work in works))
        return
    at_once = asyncio.Semaphore(fleet.slots)
    async with fleet.world(needs=needs, job=job.id) as world:

        async def rollout(work: float) -> None:
            async with at_once:
                (fork,) = await world.fork()
                async with fork:
                    await fork.exec(["sleep", f"{work:.3f}"], check=True)

        await asyncio.gather(*(rollout(work) for work in works))


async def _mean_s(fleet: Fleet, jobs: Sequence[FleetJob], unit_s: float) -> float:
    """The mean completion time of the jobs."""
    begun = time.perf_counter()

    async def completion_s(job: FleetJob) -> float:
        arrives = job.arrives * unit_s
        await asyncio.sleep(begun + arrives - time.perf_counter())
        await _perform(fleet, job, unit_s)
        return time.perf_counter() - begun - arrives

    return mean(await asyncio.gather(*(completion_s(one) for one in jobs)))


async def _rounds(runtime: Runtime, address: str, quick: bool) -> dict[str, list[float]]:
    """The mean completion times by rule."""
    many, seeds, unit_s = (6, 1, QUICK_UNIT_S) if quick else (16, 3, UNIT_S)
    rules = ("random", *RULES)
    took: dict[str, list[float]] = {rule: [] for rule in rules}
    async with AsyncExitStack() as stack:
        opening = [Fleet(runtime, address, matching=rule, random=random.Random(1)) for rule in rules]
        fleets = [await stack.enter_async_context(fleet) for fleet in opening]
        for searches in (False, True):  # opens stores
            warm = FleetJob("warm", 0.0, frozenset(), (0.1,) * 8, "", searches)
            await asyncio.gather(*(_perform(fleet, warm, unit_s) for fleet in fleets))
        for seed in range(seeds):
            abilities = [frozenset[str](), frozenset({ONE_NODE})]
            jobs = fleet_jobs(many, abilities, fleets[0].slots, LOAD, seed, most=20)
            jobs = [replace(one, id=f"{one.id} of {seed}") for one in jobs]
            means = await asyncio.gather(*(_mean_s(fleet, jobs, unit_s) for fleet in fleets))
            for rule, seconds in zip(rules, means, strict=True):
                took[rule].append(seconds)
    return took


async def rows(runtime: Runtime, address: str, quick: bool) -> list[Row]:
    """How many times sooner jobs are done than in a random order, by rule."""
    took = await _rounds(runtime, address, quick)
    chance = took["random"]
    gains = {rule: [theirs / ours for theirs, ours in zip(chance, took[rule], strict=True)] for rule in RULES}
    simpler = max(("fifo", "srsf"), key=lambda rule: median(gains[rule]))
    found = []
    for rule in RULES:
        said = f"mean completion {median(took[rule]):.1f} s, random {median(chance):.1f} s; {len(chance)} seeds"
        compared = rule not in ("fifo", "srsf")
        peer = {"peer": simpler, "peer_value": round(median(gains[simpler]), 3)} if compared else {}
        values = [round(one, 3) for one in gains[rule]]
        found.append(median_row(_named(rule), values, "x over random", note=said, **peer))
    return found
