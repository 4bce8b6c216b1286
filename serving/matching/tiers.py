"""Venn's second half: give a request devices of one tier of capability, so that its slowest one is not slow
(algorithm 4).

Tiers cost time to fill and save time to respond. A tier u of V is used if V + g_u·c < 1 + c, where c is the job's
response time over its scheduling delay, and g_u the 95th percentile of tier u's response times over that of all.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

FEWEST = 8
"""Responses that each tier needs before its percentile says anything."""


@dataclass(slots=True)
class TierMatching:
    """The tiers of one job. tiers: V. random: chooses the tier of each request; the paper's `randint(0, V)` would
    include V, which is no tier.

    Higher capability is faster. A job that was not served before has no thresholds, and takes every device.
    """

    tiers: int
    random: random.Random
    _profile: list[tuple[float, float]] = field(default_factory=list)  # (capability, response time)
    _bounds: list[float] = field(default_factory=list)
    _chosen: int | None = None

    def responded(self, capability: float, response_s: float) -> None:
        """Note a device that responded to this job."""
        self._profile.append((capability, response_s))

    def begin(self, schedule_s: float, response_s: float) -> None:
        """Choose for the next request. schedule_s, response_s: the job's means over earlier requests."""
        self._chosen = None
        if self.tiers < 2 or len(self._profile) < FEWEST * self.tiers or schedule_s <= 0:
            return
        capable = sorted(self._profile)
        width = len(capable) / self.tiers
        cut = [capable[round(width * tier) : round(width * (tier + 1))] for tier in range(self.tiers)]
        self._bounds = [part[0][0] for part in cut[1:]]
        tier = self.random.randrange(self.tiers)
        slowest = _percentile([time for _, time in capable])
        gain = _percentile([time for _, time in cut[tier]]) / slowest if slowest else 1.0
        ratio = response_s / schedule_s
        if self.tiers + gain * ratio < 1 + ratio:
            self._chosen = tier

    def accepts(self, capability: float) -> bool:
        """Whether a device is for the present request."""
        return self._chosen is None or bisect_right(self._bounds, capability) == self._chosen


def _percentile(times: Sequence[float], at: float = 0.95) -> float:
    return sorted(times)[min(len(times) - 1, int(at * len(times)))]
