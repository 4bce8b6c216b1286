"""What a scaling controller sees (`PoolLoad`, `FutureCalls`) and decides (`Scaling`). Times in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
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
            raise BadPool(f"a pool has between 0 and `most` replicas at least, got {self.least}:{self.most}")
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
