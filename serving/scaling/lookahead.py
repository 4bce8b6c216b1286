"""Ours: move replicas before the queue forms, to where the plans of live workflows will need them.

A decision gives the budget's replicas one by one to the pool whose predicted waiting falls most. The prediction for a
pool with r replicas is a fluid one, over `horizon_s` in steps: the backlog of now, the calls that live workflows will
make (`future`), and the calls of workflows that have not come yet, at the observed rate. A workflow that has not come
needs time to reach a late pool, so these calls count there only after the service times of the pools before. A
replica that a pool does not have yet works after its start time. To that comes the wait of GI/G/c for what the fluid
does not see: bursts. Waiting is divided by a stage's width, because a workflow waits once for all calls of a stage.

With an empty `future` this is a reactive controller: all calls are then predicted at the observed rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from ramify.serving.errors import NoRoom
from ramify.serving.scaling.key_stages import KeyStages
from ramify.serving.scaling.queueing import bursty_sojourn_s
from ramify.serving.scaling.types import FutureCalls, PoolLoad, Scaling


@dataclass(frozen=True, slots=True)
class LookaheadOptions:
    """horizon_s: how far to look: a start and a few service times, since what is needed later can be moved later.
    steps: of that time.

    worth: a replica is held if it saves so many seconds of waiting for each of its seconds.
    stay: how much more a replica counts where it already is.
    """

    horizon_s: float = 8.0
    steps: int = 16
    worth: float = 0.005
    stay: float = 1.15


@dataclass(slots=True)
class _Demand:
    """One pool's predicted work in replica-seconds: now, and by step."""

    pool: PoolLoad
    backlog: float
    comes: list[float]


class Lookahead:
    """budget: replicas of all pools together."""

    def __init__(self, budget: int, options: LookaheadOptions = LookaheadOptions()) -> None:
        self._budget, self._options = budget, options
        self._keys = KeyStages()

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        demands = self._demands(pools, future)
        given = {pool.name: pool.limits.least for pool in pools}
        left = self._budget - sum(given.values())
        if left < 0:
            raise NoRoom(
                f"the pools need at least {sum(given.values())} replicas, of {self._budget}: lower their least"
            )
        gains = {name: self._gain(demand, given[name]) for name, demand in demands.items()}
        hold = self._options.worth * self._options.horizon_s
        while left:
            best = max(gains, key=lambda name: (gains[name], name))
            if gains[best] < hold:
                break
            given[best] += 1
            left -= 1
            gains[best] = self._gain(demands[best], given[best])
        for pool in pools:
            if given[pool.name] > pool.replicas:
                self._keys.scaled_up(pool.name, now)
        return Scaling(given, self._keys.list(now))

    def _demands(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls]) -> dict[str, _Demand]:
        options = self._options
        step_s = options.horizon_s / options.steps
        out: dict[str, _Demand] = {}
        lead_s = 0.0
        for pool in pools:
            service_s = 1 / pool.service_rate
            unknown_from = lead_s if future else 0.0
            comes = [
                pool.arrival_rate * step_s * service_s if (i + 0.5) * step_s >= unknown_from else 0.0
                for i in range(options.steps)
            ]
            out[pool.name] = _Demand(pool, (pool.queue + 0.5 * pool.running) * service_s, comes)
            lead_s += service_s
        for calls in future:
            at = int(calls.after_s / step_s)
            if calls.pool in out and at < options.steps:
                out[calls.pool].comes[max(0, at)] += calls.calls * calls.service_s
        return out

    def _gain(self, demand: _Demand, replicas: int) -> float:
        """The waiting that one replica more saves, in seconds over the horizon."""
        pool = demand.pool
        if replicas >= pool.limits.most:
            return -1.0
        less = self._waiting(demand, replicas) - self._waiting(demand, replicas + 1)
        return less * (self._options.stay if replicas < pool.replicas else 1.0)

    def _waiting(self, demand: _Demand, replicas: int) -> float:
        pool, options = demand.pool, self._options
        step_s, service_s = options.horizon_s / options.steps, 1 / pool.service_rate
        backlog, waited = demand.backlog, 0.0
        for i, comes in enumerate(demand.comes):
            working = replicas if (i + 0.5) * step_s >= pool.limits.start_s else min(replicas, pool.replicas)
            backlog += comes
            backlog -= min(backlog, working * step_s)
            waited += backlog * pool.service_rate * step_s
        rate = sum(demand.comes) * pool.service_rate / options.horizon_s
        wait_s = bursty_sojourn_s(rate, pool.service_rate, max(1, replicas), pool.cv) - service_s
        if isinf(wait_s) or replicas == 0:
            wait_s = options.horizon_s / 2
        waited += rate * options.horizon_s * min(wait_s, options.horizon_s / 2)
        return waited / pool.width
