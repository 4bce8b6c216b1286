"""Shortest remaining processing time, call by call. With true lengths it bounds what predicting them brings to
a scheduler that knows neither programs nor deadlines."""

from __future__ import annotations

from functools import partial

from ramify.serving.policy.types import RequestView
from ramify.serving.policy.work import decode_gpu_s, prefill_s, remaining
from ramify.serving.replay.baselines.keys import late_at
from ramify.serving.replay.baselines.ordered import Ordered, Scene, never


def remaining_s(call: RequestView, scene: Scene, gpu: bool = False) -> float:
    """Seconds to its end in a slot; `gpu`: of GPU time instead, its share of a full batch."""
    tokens = remaining(call, scene.prior, 0.5)
    prefill = prefill_s(scene.capacity.step, call.to_prefill)
    if not gpu:
        return prefill + tokens * scene.token_s
    return prefill + decode_gpu_s(scene.capacity.step, scene.capacity.slots, call.prompt_tokens, tokens)


def srpt(gpu: bool = False, refuse: bool = True, displace: float | None = None) -> Ordered:
    """`displace`: by how much shorter a call must be than the one whose slot it takes, as a share; None: never."""
    return Ordered(partial(remaining_s, gpu=gpu), late_at if refuse else never, displace)
