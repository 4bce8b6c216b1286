"""Rate, burstiness and service rate of a pool, from the times of its calls. Times are passed in."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from math import sqrt

_FEWEST = 3  # arrivals in the window before a CV is more than chance
_FADE = 0.1  # weight of a new service time


class Observation:
    """One pool's arrivals of the last `window_s` seconds, and the mean service time of one replica."""

    def __init__(self, service_s: float, *, window_s: float = 60.0) -> None:
        self.service_s = service_s
        self._window_s = window_s
        self._arrivals: deque[float] = deque()
        self._began: float | None = None

    def arrived(self, now: float) -> None:
        if self._began is None:
            self._began = now
        self._arrivals.append(now)
        self._forget(now)

    def served(self, took_s: float) -> None:
        """A call was served. `took_s`: seconds of a replica, divided by the calls that it worked on at once."""
        self.service_s += _FADE * (took_s - self.service_s)

    @property
    def service_rate(self) -> float:
        return 1 / max(self.service_s, 1e-9)

    def rate(self, now: float) -> float:
        """Arrivals a second in the window, or since the first if that is later."""
        self._forget(now)
        if self._began is None:
            return 0.0
        return len(self._arrivals) / max(min(self._window_s, now - self._began), self.service_s)

    def cv(self, now: float) -> float:
        """The coefficient of variation of the times between arrivals; 1 while too few have come."""
        self._forget(now)
        times = list(self._arrivals)
        gaps = [b - a for a, b in pairwise(times)]
        mean = sum(gaps) / len(gaps) if gaps else 0.0
        if len(times) < _FEWEST or mean <= 0:
            return 1.0
        return sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean

    def _forget(self, now: float) -> None:
        while self._arrivals and self._arrivals[0] < now - self._window_s:
            self._arrivals.popleft()
