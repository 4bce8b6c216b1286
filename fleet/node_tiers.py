"""Tiers of fast and slow nodes for jobs that wait less than they work (Venn's algorithm 4). No I/O.

A node's capability is its speed: the time that slots of a kind are usually held, over the time on that node.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ramify.fleet.types import NodeId
from ramify.serving.matching import JobId, TierMatching

_LEARN = 0.2
"""The weight of a new time in a mean."""


@dataclass(slots=True)
class _Profile:
    """Of a job. waited_s, held_s: mean times before and of its slots."""

    tiers: TierMatching
    waited_s: float
    held_s: float = 0.0


class NodeTiers:
    """tiers: their number. source: chooses the tier of a job's next slots."""

    def __init__(self, tiers: int, source: random.Random) -> None:
        self._tiers, self._random = tiers, source
        self._speeds: dict[NodeId, float] = {}
        self._profiles: dict[JobId, _Profile] = {}

    def began(self, job: JobId, waited_s: float) -> None:
        """A job got a slot after that time."""
        if (one := self._profiles.get(job)) is None:
            self._profiles[job] = _Profile(TierMatching(self._tiers, self._random), waited_s)
        else:
            one.waited_s = _mean(one.waited_s, waited_s)

    def ended(self, job: JobId, node: NodeId, took_s: float, usual_s: float, *, round_over: bool) -> None:
        """A job gave back a slot. usual_s: for how long such slots are held on all nodes. round_over: it holds none,
        and so a tier is chosen for those that it asks for next."""
        speed = self._speeds.get(node, 1.0)
        if took_s > 0:
            self._speeds[node] = _mean(speed, usual_s / took_s)
        if (one := self._profiles.get(job)) is None:
            return
        one.held_s = _mean(one.held_s, took_s) if one.held_s else took_s
        one.tiers.responded(speed, took_s)
        if round_over:
            one.tiers.begin(one.waited_s, one.held_s)

    def accepts(self, job: JobId, node: NodeId) -> bool:
        """Whether a node is in the tier that was chosen for a job."""
        one = self._profiles.get(job)
        return one is None or one.tiers.accepts(self._speeds.get(node, 1.0))

    def forget(self, job: JobId) -> None:
        self._profiles.pop(job, None)


def _mean(before: float, new: float) -> float:
    return before + _LEARN * (new - before)
