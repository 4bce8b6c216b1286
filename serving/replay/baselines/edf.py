"""Earliest deadline first: optimal while all can be met (Liu and Layland 1973), and known to collapse when not.

With a feasibility filter it refuses what cannot be met any more, which is the usual cure.
"""

from __future__ import annotations

from functools import partial

from ramify.serving.policy.types import RequestView
from ramify.serving.replay.baselines.keys import due, late_at
from ramify.serving.replay.baselines.ordered import Ordered, Scene, never


def deadline(call: RequestView, scene: Scene) -> float:
    return due(call)


def edf(quantile: float | None = None, displace: bool = False) -> Ordered:
    """`quantile`: of the length, for saying that a call cannot be met; None: nothing is refused."""
    refuse = never if quantile is None else partial(late_at, quantile=quantile)
    return Ordered(deadline, refuse, 0.0 if displace else None)
