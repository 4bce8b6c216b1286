"""Least QoE slack first: the request whose reader has the least left to read is served first (Andes, §6.1)."""

from __future__ import annotations

import numpy as np

from ramify.serving.policy.andes.packing import Packed
from ramify.serving.policy.andes.policy import Andes, AndesOptions, Decision


class LeastSlack(Andes):
    """Andes's triggers, victims and refiner under an order that does not look at the KV that a request takes."""

    def __init__(self, options: AndesOptions | None = None) -> None:
        super().__init__(options)
        self.decision = _BySlack


class _BySlack(Decision):
    def packed(self) -> Packed:
        best = super().packed()
        order = np.argsort(self.columns.ahead_s(self.now), kind="stable")
        fits = int(np.searchsorted(np.cumsum(self.columns.context[order]), self.memory, side="right"))
        chosen = order[: min(self.view.capacity.slots, fits)]
        return Packed(chosen, order, best.gain, float(best.gain[chosen].sum()))
