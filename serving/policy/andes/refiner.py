"""Which of the chosen changes are worth their overhead (§4.3): a prefill keeps every running stream waiting."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from ramify.serving.policy.andes.readers import Columns

_OVERHEADS_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


@dataclass(frozen=True, slots=True)
class Loss:
    """The QoE that all running streams lose while no token comes, by seconds."""

    points: tuple[float, ...]

    @classmethod
    def of(cls, running: Columns, now: float) -> Loss:
        """Compute the loss at a few overheads; `at` interpolates between them."""
        left = running.qoe_at(now + np.array(_OVERHEADS_S)[:, None]).sum(axis=1).tolist()
        return cls(tuple([left[0] - after for after in left]))

    def at(self, overhead_s: float) -> float:
        """Return the loss of so many seconds. Beyond the last overhead it grows no more."""
        above = bisect_right(_OVERHEADS_S, overhead_s)
        if above == len(_OVERHEADS_S):
            return self.points[-1]
        low, high, part = self.points[above - 1], self.points[above], _OVERHEADS_S[above - 1]
        return low + (high - low) * (overhead_s - part) / (_OVERHEADS_S[above] - part)


class Refiner:
    """Commits changes in order of priority, until one gains no more than it costs. What remains is cancelled.

    `loss`: None where the overhead does not matter, and nothing is cancelled.
    """

    def __init__(self, loss: Loss | None) -> None:
        self._loss = loss
        self._spent_s, self._lost = 0.0, 0.0

    def commits(self, gain: float, overhead_s: float) -> bool:
        """Is the gain more than what the streams lose by this overhead, after what was committed before?"""
        if self._loss is None or overhead_s <= 0:
            return True
        lost = self._loss.at(self._spent_s + overhead_s)
        if gain <= lost - self._lost:
            return False
        self._spent_s, self._lost = self._spent_s + overhead_s, lost
        return True
