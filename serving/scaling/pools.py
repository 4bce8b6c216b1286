"""What a scaling controller sees of a pool (`PoolLoad`, `FutureCalls`) and decides (`Scaling`). Times in seconds.

`Observation` computes the rate, the burstiness and the service rate of a pool from the times of its calls, which are
passed in.

`KeyStages` says which pools' replicas are kept warm after they were taken back (QUART §6.1). A pool is a key stage
once the corrector has scaled it up; it stops to be one after `forget_s` without another, so that one burst more or
less does not change the list. Warm replicas are ended (`to_end`), the least recently used first, while the host uses
more than `most_memory` of its memory.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, sqrt
from typing import Protocol

from ramify.serving.errors import BadPool


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The least and the most replicas of a pool, and how long a new one takes. Raises BadPool."""

    least: int = 1
    most: int = 1
    start_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1:
            raise BadPool(
                f"a pool's least number of replicas is between 0 and its most, which is 1 or more: got "
                f"{self.least}:{self.most}"
            )
        if not (isfinite(self.start_s) and self.start_s >= 0):
            raise BadPool(f"the start time of a replica is a number of seconds, got {self.start_s}")

    def within(self, replicas: float) -> int:
        return max(self.least, min(self.most, int(replicas)))


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """One pool now. `service_rate` is of one replica, at the batch that it works on."""

    name: str
    arrival_rate: float
    service_rate: float
    replicas: int  # ready or starting, without those that are draining
    cv: float = 1.0  # of the times between arrivals
    queue: int = 0  # calls that wait
    running: int = 0  # calls in replicas
    width: float = 1.0  # calls of one stage of one workflow, which are waited for together
    slots: int = 1  # calls that one replica works on at once
    limits: PoolLimits = PoolLimits()

    def __post_init__(self) -> None:
        rates = (self.arrival_rate, self.service_rate, self.cv, self.width)
        if not all(isfinite(x) and x >= 0 for x in rates) or self.service_rate * self.width * self.slots == 0:
            raise BadPool(
                f"pool {self.name}: rates, CV and width must be finite, and a service rate above 0: got {rates}"
            )


@dataclass(frozen=True, slots=True)
class FutureCalls:
    """Calls that will come to a pool. `after_s` counts from now, if nothing before them waits."""

    pool: str
    calls: float
    after_s: float
    service_s: float  # of one call


@dataclass(frozen=True, slots=True)
class Scaling:
    """The replicas that each pool should have; the pools to keep warm replicas of, the last scaled first."""

    replicas: Mapping[str, int]
    key: tuple[str, ...] = ()
    cpus: Mapping[str, int] | None = None  # cores of a replica, where the controller sets them


class Controller(Protocol):
    """Decides over all pools. Deterministic; keeps only what it learnt in earlier decisions."""

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        """`pools` in the order of the pipeline; `future` may be empty."""


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


MOST_MEMORY = 0.85


class KeyStages:
    """The list of key stages."""

    def __init__(self, forget_s: float = 300.0) -> None:
        self._forget_s = forget_s
        self._scaled: OrderedDict[str, float] = OrderedDict()

    def scaled_up(self, pool: str, now: float) -> None:
        self._scaled[pool] = now
        self._scaled.move_to_end(pool)

    def list(self, now: float) -> tuple[str, ...]:
        """The key stages, the last scaled first."""
        while self._scaled and now - next(iter(self._scaled.values())) > self._forget_s:
            self._scaled.popitem(last=False)
        return tuple(reversed(self._scaled))


@dataclass(frozen=True, slots=True)
class WarmReplica:
    """A loaded replica that takes no calls. `bytes`: what its end frees, without pages that it shares."""

    id: str
    pool: str
    bytes: int
    used_at: float


def to_end(warm: list[WarmReplica], used: int, total: int, most_memory: float = MOST_MEMORY) -> list[WarmReplica]:
    """The warm replicas to end, the least recently used first, so that the host uses at most that share."""
    out = []
    for one in sorted(warm, key=lambda replica: (replica.used_at, replica.id)):
        if used <= most_memory * total:
            break
        out.append(one)
        used -= one.bytes
    return out
