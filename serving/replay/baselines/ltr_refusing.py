"""Learning to rank that refuses what cannot be met any more: no form of its paper, which knows no deadlines."""

from __future__ import annotations

from functools import partial

from ramify.serving.replay.baselines.keys import late_at
from ramify.serving.replay.baselines.ltr import score
from ramify.serving.replay.baselines.ordered import Ordered


def ltr_refusing(quantile: float = 0.1, displace: bool = False) -> Ordered:
    """`quantile`: of the length, for saying that a call cannot be met, as EDF does."""
    return Ordered(score, partial(late_at, quantile=quantile), 0.0 if displace else None)
