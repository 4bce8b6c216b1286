"""How far from the optimum policies come on one slot at worst, by how much densities and slacks differ.

Theorem 4.1 of the thesis promises a constant and has none (docs/decisions/050), so it is counted instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean

from ramify.serving.policy.calm import Calm, CalmOptions
from ramify.serving.policy.concord import Concord
from ramify.serving.policy.goodput import Goodput
from ramify.serving.policy.types import Policy
from ramify.serving.replay.baselines.edf import edf
from ramify.serving.replay.baselines.srpt import srpt
from ramify.serving.replay.bounds.one_slot import Job, earned, optimum


def calm() -> Policy:
    """`calm-thesis` as the proof has it: no window, no starvation term, no waiting limit, a frame of one step."""
    return Calm(
        CalmOptions(Goodput.REQUEST, frame_steps=1, starvation_step=0.0, waiting_s=None, cutoff=1.0, quantile=0.5)
    )


def _srpt() -> Policy:
    return srpt(displace=0.0)


def _edf() -> Policy:
    return edf(displace=True)


POLICIES: Mapping[str, Callable[[], Policy]] = {"concord": Concord, "calm-thesis": calm, "srpt": _srpt, "edf": _edf}


@dataclass(frozen=True, slots=True)
class Spread:
    """The densest is at most `density` times as dense as the least dense; none has more than `slack` times the time
    that it needs."""

    density: float
    slack: float


@dataclass(frozen=True, slots=True)
class Ratios:
    """Of the optimum."""

    worst: float
    mean: float


def draw(spread: Spread, chance: Random, most: int = 6) -> list[Job]:
    jobs = []
    for _ in range(chance.randint(2, most)):
        length, at = chance.randint(1, 40), chance.randint(0, 40)
        due = at + int(length * (1 + (spread.slack - 1) * chance.random()))
        jobs.append(Job(at, length, due, length * spread.density ** chance.random()))
    return jobs


def ratios(spread: Spread, cases: int, seed: int = 0) -> dict[str, Ratios]:
    """Of each of POLICIES over the same cases."""
    chance = Random(f"{spread}/{seed}")
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    for _ in range(cases):
        jobs = draw(spread, chance)
        best = optimum(jobs)
        for name, policy in POLICIES.items():
            found[name].append(earned(policy(), jobs) / best)
    return {name: Ratios(min(of), fmean(of)) for name, of in found.items()}
