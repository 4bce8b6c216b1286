"""Least laxity first: who has the least time to spare goes first (Dertouzos and Mok 1989)."""

from __future__ import annotations

from functools import partial

from ramify.serving.policy.types import RequestView
from ramify.serving.replay.baselines.keys import due, late_at, wall_s
from ramify.serving.replay.baselines.ordered import Ordered, Scene, never


def latest_start(call: RequestView, scene: Scene, quantile: float = 0.5) -> float:
    """Laxity at any time, but for that time itself, which is the same for all."""
    return due(call) - wall_s(call, scene, quantile)


def least_laxity(refuse: float | None = None, displace: bool = False) -> Ordered:
    """`refuse`: the quantile of the length for saying that a call cannot be met; None: nothing is refused."""
    late = never if refuse is None else partial(late_at, quantile=refuse)
    return Ordered(latest_start, late, 0.0 if displace else None)
