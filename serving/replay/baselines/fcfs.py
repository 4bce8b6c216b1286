"""First come, first served: vLLM's order. A policy only where something is dropped; without that, `Stock` is it."""

from __future__ import annotations

from functools import partial

from ramify.serving.policy.types import RequestView
from ramify.serving.replay.baselines.keys import waited_out
from ramify.serving.replay.baselines.ordered import Ordered, Scene, never


def arrival(call: RequestView, scene: Scene) -> float:
    return call.arrived


def fcfs(waiting_s: float | None = 5.0) -> Ordered:
    """`waiting_s`: what has not been admitted by then is dropped (the thesis's own admission control, chapter 5)."""
    return Ordered(arrival, never if waiting_s is None else partial(waited_out, waiting_s=waiting_s))
