"""Ours: move replicas before the queue forms, to where the plans of live workflows will need them.

A pool needs a replica's slot for each call that waits, runs, or will come before a new replica could have started.
Replicas that the budget has left go to calls that come a little later, and then stay where they were needed lately.

Where the needs of now exceed the budget, workflows near their end come first, so that they leave sooner. If a start
takes less than a tenth of a call in every pool, moving a replica costs next to nothing: then the last pool of the
pipeline gets all that it needs, then the one before it, and so on. With slower starts that order would waste the
replicas on starts: they go one by one to the pool with the most need for each replica that it has, weighed by
1 / √(work that a workflow has ahead from there). A fluid prediction of the waiting for each allocation was worse than
this rule, with plans and with the true future (docs/decisions/090-pools-look-ahead.md).

Without a `future` this is a reactive rule on queue lengths. `future_calls` computes it from the plans of live
workflows: a plan is a compiled one (the tag `plan_rest`) or that of the most similar earlier workflow, which the
analyzer finds. A workflow reaches its next stage when its present one is done, so the queue there delays all that
follows. One whose tools take much longer than planned may be gone, and is not waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from ramify.serving.errors import NoRoom
from ramify.serving.policy.types import StageEstimate
from ramify.serving.scaling.pools import FutureCalls, KeyStages, PoolLoad, Scaling

_GONE_S = 30.0  # beyond the planned time of a workflow's tools
_QUICK = 0.1  # of a call: with starts quicker than that, the strict order is better (decision 090)


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A later stage: how many calls come to which pool, how long each takes, and the tools before them."""

    pool: str
    calls: float
    service_s: float
    tool_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LiveWorkflow:
    """Where a workflow is, and its stages to come. `since_s`: how long ago its present stage began."""

    pool: str
    service_s: float  # of a call of its present stage
    since_s: float
    rest: tuple[PlannedStage, ...]
    tools: bool = False  # its tools run: then `rest[0]` is next, and `since_s` counts from their start


def planned(rest: Sequence[StageEstimate], pool: str, token_s: float, prefill_s: float) -> tuple[PlannedStage, ...]:
    """Stages of a plan as a pool sees them. `token_s`, `prefill_s`: seconds of a replica for a token each."""
    return tuple(
        PlannedStage(
            pool, stage.calls, stage.output_median * token_s + stage.prefill * prefill_s, stage.tool_s_before
        )
        for stage in rest
    )


def future_calls(workflows: Sequence[LiveWorkflow], pools: Mapping[str, PoolLoad]) -> Iterator[FutureCalls]:
    """The calls to come. Pools that are not known are passed by."""
    drain_s = {name: pool.queue / (pool.service_rate * max(1, pool.replicas)) for name, pool in pools.items()}
    for workflow in workflows:
        if workflow.tools and workflow.rest and workflow.since_s > workflow.rest[0].tool_s + _GONE_S:
            continue
        if workflow.tools:
            at = -workflow.since_s
        else:
            here = workflow.service_s + drain_s.get(workflow.pool, 0.0)
            at = max(workflow.service_s / 4, here - workflow.since_s)  # overdue: soon
        for stage in workflow.rest:
            at = max(0.0, at + stage.tool_s)
            if stage.pool in pools:
                yield FutureCalls(stage.pool, stage.calls, at, stage.service_s)
                at += drain_s[stage.pool]
            at += stage.service_s


@dataclass(frozen=True, slots=True)
class LookaheadOptions:
    """near_s: beyond a start time, the calls that count like those of now. far_s: those that get what is left.

    hold_s: how long a replica stays that nobody needs.
    """

    near_s: float = 0.0
    far_s: float = 8.0
    hold_s: float = 60.0


class Lookahead:
    """budget: replicas of all pools together."""

    def __init__(self, budget: int, options: LookaheadOptions | None = None) -> None:
        self._budget, self._options = budget, options or LookaheadOptions()
        self._keys = KeyStages()
        self._needs: dict[str, deque[tuple[float, int]]] = {}

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        given = {pool.name: pool.limits.least for pool in pools}
        if (floor := sum(given.values())) > self._budget:
            raise NoRoom(f"the pools need at least {floor} replicas, and there is room for {self._budget}")
        near, far = self._wanted(pools, future)
        weights = _weights(pools)
        self._fill(given, near, None if _quick(pools) else weights)
        for wanted in (far, self._kept(pools, near, now)):
            self._fill(given, wanted, weights)
        for pool in pools:
            if given[pool.name] > pool.replicas:
                self._keys.scaled_up(pool.name, now)
        return Scaling(given, self._keys.list(now))

    def _wanted(
        self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """By pool: the replicas for the calls of now and soon, and those with the calls of later."""
        near = {pool.name: float(pool.queue + pool.running) for pool in pools}
        later = dict.fromkeys(near, 0.0)
        soon_s = {pool.name: pool.limits.start_s + self._options.near_s for pool in pools}
        for calls in future:
            if calls.pool in near and calls.after_s <= soon_s[calls.pool]:
                near[calls.pool] += calls.calls
            elif calls.pool in near and calls.after_s <= self._options.far_s:
                later[calls.pool] += calls.calls
        return (
            {pool.name: pool.limits.within(ceil(near[pool.name] / pool.slots)) for pool in pools},
            {
                pool.name: pool.limits.within(ceil((near[pool.name] + later[pool.name]) / pool.slots))
                for pool in pools
            },
        )

    def _kept(self, pools: Sequence[PoolLoad], near: Mapping[str, int], now: float) -> dict[str, int]:
        """The most that each pool needed lately, of the replicas that it has."""
        kept = {}
        for pool in pools:
            needs = self._needs.setdefault(pool.name, deque())
            while needs and needs[-1][1] <= near[pool.name]:  # the later and greater need covers it
                needs.pop()
            needs.append((now, near[pool.name]))
            while needs[0][0] < now - self._options.hold_s:
                needs.popleft()
            kept[pool.name] = min(pool.replicas, needs[0][1])
        return kept

    def _fill(self, given: dict[str, int], wanted: Mapping[str, int], weights: Mapping[str, float] | None) -> None:
        """Give what is left of the budget, one by one, until each pool has what it wants. Without weights, the last
        pools of the pipeline come first."""
        for _ in range(self._budget - sum(given.values())):
            short = [name for name in given if given[name] < wanted[name]]
            if not short:
                return
            if weights is None:
                given[short[-1]] += 1
                continue
            given[max(short, key=lambda name: weights[name] * wanted[name] / (given[name] + 0.5))] += 1


def _quick(pools: Sequence[PoolLoad]) -> bool:
    return all(pool.limits.start_s * pool.service_rate < _QUICK for pool in pools)


def _weights(pools: Sequence[PoolLoad]) -> dict[str, float]:
    """By pool, 1 / √(seconds of replicas that a workflow needs from there to its end)."""
    ahead, weights = 0.0, {}
    for pool in reversed(pools):
        ahead += pool.width / pool.service_rate
        weights[pool.name] = 1 / sqrt(ahead)
    return weights
