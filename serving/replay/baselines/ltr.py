"""Learning to rank (Fu et al., NeurIPS 2024): the answers that a ranking model takes for the shortest go first.

The model is `benchmarks/ranker.py`'s: a ListMLE head on a small language model's embedding of the prompt. Only the
order of its scores means anything, so only the order is used here. As in the paper a call that has starved for a
while is put before all others.
"""

from __future__ import annotations

from dataclasses import replace

from ramify.serving.policy.types import RequestView, Verdict, View
from ramify.serving.policy.work import remaining
from ramify.serving.replay.baselines.keys import late_at
from ramify.serving.replay.baselines.ordered import Ordered, Scene, never


def score(call: RequestView, scene: Scene) -> float:
    """The model's; it is asked once, at arrival, and not refined: the paper's predictor sees the prompt alone."""
    length = remaining(call, scene.prior, 0.5) if call.sketch is None else call.sketch.quantile(0.5)
    return length if call.max_tokens is None else min(length, float(call.max_tokens))


class LearningToRank(Ordered):
    """`starving_s`: waited for so long, it goes first, the oldest before the others; None: nobody is promoted."""

    def __init__(self, starving_s: float | None = None, refuse: bool = False, displace: float | None = None) -> None:
        super().__init__(score, late_at if refuse else never, displace)
        self._starving_s = starving_s

    def decide(self, view: View, now: float) -> Verdict:
        verdict = super().decide(view, now)
        if self._starving_s is None:
            return verdict
        return _promoted(verdict, view, now - self._starving_s, self._starving_s)


def _promoted(verdict: Verdict, view: View, before: float, starving_s: float) -> Verdict:
    """The same, with what came before that time at the head of the order."""
    arrived = {call.id: call.arrived for call in view.waiting}
    starved = sorted((i for i in verdict.order if arrived[i] <= before), key=lambda i: (arrived[i], i))
    placed = set(starved)
    order = (*starved, *[i for i in verdict.order if i not in placed])
    nexts = [arrived[i] + starving_s for i in order if i not in placed]
    wakes = [at for at in (verdict.wake_at, min(nexts, default=None)) if at is not None]
    return replace(verdict, admit=order[: len(verdict.admit)], order=order, wake_at=min(wakes, default=None))
