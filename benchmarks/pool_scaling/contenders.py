"""The rules that the controllers of `ramify.serving.scaling` are compared with, and the contenders by name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from ramify.serving.scaling.lookahead import Lookahead
from ramify.serving.scaling.pools import Controller, FutureCalls, PoolLoad, Scaling
from ramify.serving.scaling.quart import Quart, within_budget


class WholePipeline:
    """Replicas of the pipeline as a whole: each pool has as many as the others, by what the busiest needs."""

    def __init__(self, budget: int, utilisation: float = 0.7) -> None:
        self._budget, self._utilisation = budget, utilisation

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        needs = max(
            (pool.arrival_rate / pool.service_rate / self._utilisation + pool.queue for pool in pools), default=1
        )
        each = max(1, min(self._budget // len(pools), ceil(needs)))
        return Scaling(dict.fromkeys((pool.name for pool in pools), each))


class QueueRule:
    """KEDA's rule: a replica for every `target` calls that wait or run, and fewer only after `window_s` of need for
    fewer (the autoscaler's stabilisation window)."""

    def __init__(self, budget: int, target: float = 1.0, window_s: float = 300.0) -> None:
        self._budget, self._target, self._window_s = budget, target, window_s
        self._wishes: dict[str, deque[tuple[float, int]]] = {}

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        wanted = {}
        for pool in pools:
            wishes = self._wishes.setdefault(pool.name, deque())
            wishes.append((now, ceil((pool.queue + pool.running) / self._target)))
            while wishes[0][0] < now - self._window_s:
                wishes.popleft()
            wanted[pool.name] = pool.limits.within(max(count for _, count in wishes))
        return Scaling(within_budget(wanted, {pool.name: pool.limits.least for pool in pools}, self._budget))


class Packed:
    """The decisions of another controller, without its placement: all replicas are packed."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        return self._controller.decide(pools, future, now)


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    make: Callable[[int], Controller]
    foresight: bool = False
    oracle: bool = False


OURS = Contender("ours, with plans", Lookahead, foresight=True)
BLIND = Contender("ours, without plans", Lookahead)
QUART = Contender("QUART: M/M/c + PID", Quart)
PACKED = Contender("QUART, packed", lambda budget: Packed(Quart(budget)))
WHOLE = Contender("the whole pipeline", WholePipeline)
RULES = tuple(
    Contender(f"queue rule, window {window:g} s", lambda budget, w=window: QueueRule(budget, window_s=w))  # type: ignore[misc]
    for window in (0.0, 15.0, 300.0)
)
ORACLE = Contender("oracle", Lookahead, oracle=True)
ALL = (OURS, BLIND, QUART, WHOLE, *RULES, ORACLE)
