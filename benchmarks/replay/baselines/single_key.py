"""Baselines with a single sort key: FCFS, static classes, EDF, least laxity, SRPT and learning to rank.

Learning to rank (Fu et al., NeurIPS 2024) serves the answers first that a ranking model takes for the shortest.

The model is `benchmarks/length_ranker.py`'s: a ListMLE head on a small language model's embedding of the prompt.
Only the order of its scores means anything, so only the order is used here. As in the paper a call that has starved
for a while is put before all others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.replay.baselines.ordered import Ordered, Scene, due, late_at, never, waited_out, wall_s
from ramify.serving.policy.cost_model import decode_gpu_s, prefill_s, remaining
from ramify.serving.policy.types import RequestView, SloClass, Verdict, View


def score(call: RequestView, scene: Scene) -> float:
    """Return the model's score. It is computed once, at arrival: the paper's predictor sees the prompt alone."""
    length = remaining(call, scene.prior, 0.5) if call.sketch is None else call.sketch.quantile(0.5)
    return length if call.max_tokens is None else min(length, float(call.max_tokens))


class LearningToRank(Ordered):
    """`starving_s`: a call that waited so long goes first, the oldest before others; None: no call is promoted."""

    def __init__(self, starving_s: float | None = None, refuse: bool = False, displace: float | None = None) -> None:
        super().__init__(score, late_at if refuse else never, displace)
        self._starving_s = starving_s

    def decide(self, view: View, now: float) -> Verdict:
        verdict = super().decide(view, now)
        if self._starving_s is None:
            return verdict
        return _promoted(verdict, view, now - self._starving_s, self._starving_s)


def _promoted(verdict: Verdict, view: View, before: float, starving_s: float) -> Verdict:
    """Return the verdict with calls that arrived before that time at the head of the order."""
    arrived = {call.id: call.arrived for call in view.waiting}
    starved = sorted((i for i in verdict.order if arrived[i] <= before), key=lambda i: (arrived[i], i))
    placed = set(starved)
    order = (*starved, *[i for i in verdict.order if i not in placed])
    nexts = [arrived[i] + starving_s for i in order if i not in placed]
    wakes = [at for at in (verdict.wake_at, min(nexts, default=None)) if at is not None]
    return replace(verdict, admit=order[: len(verdict.admit)], order=order, wake_at=min(wakes, default=None))


def ltr_refusing(quantile: float = 0.1, displace: bool = False) -> Ordered:
    """Learning to rank that refuses what cannot be met; its paper knows no deadlines.

    `quantile`: of the length, for saying that a call cannot be met.
    """
    return Ordered(score, partial(late_at, quantile=quantile), 0.0 if displace else None)


ORDER = (SloClass.LATENCY, SloClass.STREAM, SloClass.DEADLINE, SloClass.COMPOUND, SloClass.BEST_EFFORT)


def by_class(call: RequestView, scene: Scene, order: tuple[SloClass, ...] = ORDER) -> float:
    return float(order.index(call.slo_class))


def classes(order: tuple[SloClass, ...] = ORDER, refuse: bool = True, displace: bool = False) -> Ordered:
    """Static priority by class, as with vLLM's `priority` field; within a class by arrival."""
    return Ordered(partial(by_class, order=order), late_at if refuse else never, 0.0 if displace else None)


def deadline(call: RequestView, scene: Scene) -> float:
    return due(call)


def edf(quantile: float | None = None, displace: bool = False) -> Ordered:
    """Earliest deadline first (Liu and Layland 1973), optimal while all deadlines can be met.

    `quantile`: of the length, for refusing a call that cannot be met; None: nothing is refused.
    """
    refuse = never if quantile is None else partial(late_at, quantile=quantile)
    return Ordered(deadline, refuse, 0.0 if displace else None)


def arrival(call: RequestView, scene: Scene) -> float:
    return call.arrived


def fcfs(waiting_s: float | None = 5.0) -> Ordered:
    """First come, first served, as a policy. A call that waited `waiting_s` is dropped (chapter 5 of the thesis)."""
    return Ordered(arrival, never if waiting_s is None else partial(waited_out, waiting_s=waiting_s))


def latest_start(call: RequestView, scene: Scene, quantile: float = 0.5) -> float:
    """Return the latest start: the laxity plus the present time, which is the same for all calls."""
    return due(call) - wall_s(call, scene, quantile)


def least_laxity(refuse: float | None = None, displace: bool = False) -> Ordered:
    """Least laxity first (Dertouzos and Mok 1989).

    `refuse`: quantile of the length for refusing a call that cannot be met; None: nothing is refused.
    """
    late = never if refuse is None else partial(late_at, quantile=refuse)
    return Ordered(latest_start, late, 0.0 if displace else None)


def remaining_s(call: RequestView, scene: Scene, gpu: bool = False) -> float:
    """Return the seconds to a call's end in a slot; with `gpu` its GPU time, the share of a full batch."""
    tokens = remaining(call, scene.prior, 0.5)
    prefill = prefill_s(scene.capacity.step, call.to_prefill)
    if not gpu:
        return prefill + tokens * scene.token_s
    return prefill + decode_gpu_s(scene.capacity.step, scene.capacity.slots, call.prompt_tokens, tokens)


def srpt(gpu: bool = False, refuse: bool = True, displace: float | None = None) -> Ordered:
    """Shortest remaining processing time, call by call.

    `displace`: by what share a call must be shorter than the one whose slot it takes; None: never.
    """
    return Ordered(partial(remaining_s, gpu=gpu), late_at if refuse else never, displace)
