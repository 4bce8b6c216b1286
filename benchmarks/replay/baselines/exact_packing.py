"""`andes` with the exact knapsack in place of the greedy one (Andes, algorithm 2 and figure 2.14)."""

from __future__ import annotations

import numpy as np

from ramify.serving.policy.andes.packing import Floats, Packed, pack
from ramify.serving.policy.andes.policy import Andes, AndesOptions, Decision

_UNIT = 128  # tokens: contexts are rounded up to so many, or the table would have a column for each token of KV


class ExactPacking(Andes):
    """Andes's triggers, victims and refiner; whom to serve is the best choice, not a good one."""

    def __init__(self, options: AndesOptions | None = None) -> None:
        super().__init__(options)
        self.decision = _Exactly


class _Exactly(Decision):
    def pack(self, gain: Floats, batch: int, order_by: Floats) -> Packed:
        return exact(gain, self.columns.context, self.memory, batch, order_by)


def exact(gain: Floats, context: Floats, memory: float, batch: int, order_by: Floats, unit: int = _UNIT) -> Packed:
    """Return the requests with the greatest sum of gains that fit: at most `batch`, in `memory` tokens.

    Requests that gain nothing fill up what is left, as with `pack`.
    """
    greedy = pack(gain, context, memory, batch, order_by)
    sizes = np.maximum(1, np.ceil(context / unit)).astype(int)
    room = int(memory // unit)
    best = np.zeros((batch + 1, room + 1))
    taken = np.zeros((len(gain), batch + 1, room + 1), dtype=bool)
    for at, size in enumerate(sizes.tolist()):
        if gain[at] <= 0 or size > room:
            continue
        with_it = best[:-1, : room + 1 - size] + gain[at]
        better = with_it > best[1:, size:]
        taken[at, 1:, size:] = better
        best[1:, size:] = np.where(better, with_it, best[1:, size:])
    chosen, left, free = set[int](), batch, room
    for at in range(len(gain) - 1, -1, -1):
        if taken[at, left, free]:
            chosen.add(at)
            left, free = left - 1, free - int(sizes[at])
    for at in greedy.order.tolist():
        if at not in chosen and left > 0 and sizes[at] <= free:
            chosen.add(at)
            left, free = left - 1, free - int(sizes[at])
    places = np.array([at for at in greedy.order.tolist() if at in chosen], dtype=np.intp)
    return Packed(places, greedy.order, gain, float(gain[places].sum()))
