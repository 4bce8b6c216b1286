"""Static priority by class: what an operator gets from vLLM's `priority` field, with the slots looked at too."""

from __future__ import annotations

from functools import partial

from ramify.serving.policy.types import RequestView, SloClass
from ramify.serving.replay.baselines.keys import late_at
from ramify.serving.replay.baselines.ordered import Ordered, Scene, never

ORDER = (SloClass.LATENCY, SloClass.DEADLINE, SloClass.COMPOUND, SloClass.BEST_EFFORT)


def by_class(call: RequestView, scene: Scene, order: tuple[SloClass, ...] = ORDER) -> float:
    return float(order.index(call.slo_class))


def classes(order: tuple[SloClass, ...] = ORDER, refuse: bool = True, displace: bool = False) -> Ordered:
    """Within a class by arrival."""
    return Ordered(partial(by_class, order=order), late_at if refuse else never, 0.0 if displace else None)
