"""Whom to serve: the knapsack of equation 5 by priority (algorithm 1), the batch sizes that are worth a try, and
which of the chosen changes are worth their overhead (§4.3): a prefill keeps every running stream waiting."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from ramify.serving.policy.andes.readers import Columns, Floats
from ramify.serving.policy.types import StepModel
from ramify.serving.qoe import PERFECT

Places = npt.NDArray[np.intp]


class Objective(StrEnum):
    AVERAGE = "average"  # the mean QoE
    MAX_MIN = "max-min"  # the least QoE (equation 7)
    PERFECT = "perfect"  # how many have a perfect QoE (equation 8)


def gains(objective: Objective, served: Floats, waits: Floats, current: Floats) -> Floats:
    """Return the gain of serving each request: Q_serve, Q_wait and Q_current are their QoE."""
    match objective:
        case Objective.AVERAGE:
            more: Floats = served - waits
            return more
        case Objective.MAX_MIN:
            least: Floats = np.maximum(current.min(initial=1.0) - waits, 0.0)
            return least
        case Objective.PERFECT:
            good: Floats = (served >= PERFECT).astype(float) - (waits >= PERFECT)
            return np.where(current >= PERFECT, good, 0.0)


@dataclass(frozen=True, slots=True)
class Packed:
    chosen: Places  # places of the requests to serve, best first
    order: Places  # places of all requests, by priority
    gain: Floats  # of each request
    value: float  # sum of the gains of the chosen


def pack(gain: Floats, context: Floats, memory: float, batch: int, order_by: Floats) -> Packed:
    """Pack requests by gain for each token of context until one does not fit (algorithm 1).

    `order_by` breaks ties: the smaller goes first.
    """
    order = np.lexsort((order_by, -gain / np.maximum(1.0, context)))
    fits = int(np.searchsorted(np.cumsum(context[order]), memory, side="right"))
    chosen = order[: min(batch, fits)]
    return Packed(chosen, order, gain, float(gain[chosen].sum()))


def batch_sizes(
    context: Floats, memory: float, slots: int, step: StepModel, tightest_s: float, most: int
) -> list[int]:
    """Return at most `most` batch sizes from B_min to B_max, the largest first.

    B_max is as many as fit, the shortest contexts first. B_min is the largest batch that is still faster than the
    fastest reader: a smaller one makes tokens that nobody can read yet.
    """
    sizes = np.sort(context)
    largest = min(slots, len(sizes), int(np.searchsorted(np.cumsum(sizes), memory, side="right")))
    mean = float(context.mean()) if len(context) else 0.0
    spare_ms = tightest_s * 1000 - step.base_ms
    each_ms = step.per_seq_ms + step.per_kctx_ms * mean / 1000
    smallest = largest if each_ms <= 0 else int(max(1.0, min(float(largest), spare_ms / each_ms)))
    if largest <= smallest:
        return [max(1, largest)]
    return sorted({round(float(b)) for b in np.linspace(smallest, largest, most)}, reverse=True)


def best_packing(sizes: list[int], packed: Callable[[int], Packed]) -> Packed:
    """Return the packing of the batch size with the greatest value; of equals, the larger batch."""
    return max(map(packed, sizes), key=lambda one: one.value)


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
