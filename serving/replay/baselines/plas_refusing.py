"""PLAS that refuses what cannot be met any more: no form of its paper, which knows neither lengths nor deadlines."""

from __future__ import annotations

from functools import partial

from ramify.serving.replay.baselines.keys import late_at
from ramify.serving.replay.baselines.ordered import Ordered
from ramify.serving.replay.baselines.plas import Plas, PlasOptions


class RefusingPlas(Plas):
    """By this quantile of a length that a predictor tells, as EDF does; of what runs it displaces nothing."""

    def __init__(self, quantile: float = 0.1) -> None:
        super().__init__(PlasOptions(preempts=False))
        self._order = Ordered(self._level, partial(late_at, quantile=quantile))
