"""Event-driven simulation of pools of replicas that share one capacity.

A replica serves one call at a time. A replica that starts, or drains its last call, takes its place in the capacity.
A running call is never cut: a pool that shrinks gives up replicas that start, then idle ones; busy ones end theirs.

With several servers, each has places of its own. A replica starts warm where the server's memory has the pool's
weights: while a loaded replica of the pool is there, and afterwards for as long as the controller lists the pool as
a key stage. The controller says where replicas start if it is a `Placer`; else they are packed.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from benchmarks.pool_scaling.workloads import POOLS, Stage, Workflow, planned_service_s
from ramify.serving.scaling.lookahead import LiveWorkflow, PlannedStage, future_calls
from ramify.serving.scaling.pools import Controller, FutureCalls, Observation, PoolLimits, PoolLoad, Scaling
from ramify.serving.scaling.quart import Placer, Server, dense

PERIOD_S = 0.5
SLO = 1.5  # times a workflow's time on an empty system


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to the workflows. `late_s`: mean seconds beyond the limit; `control`: share of a core."""

    latency_s: float
    goodput: float  # share of workflows within the limit
    late_s: float
    control: float
    workflows: int
    most_used: int  # replicas at once
    starts: int  # of replicas
    cold: int  # of these, where the server's memory did not have the weights


@dataclass(frozen=True, slots=True)
class Servers:
    """The replicas that each server has room for, and the seconds of a start where its memory has the weights."""

    places: tuple[int, ...]
    warm_s: float


@dataclass(slots=True)
class _Live:
    workflow: Workflow
    stage: int = 0
    began: float = 0.0  # of the stage, or of its tools
    left: int = 0  # calls of the stage without an answer
    tools: bool = True


@dataclass(slots=True)
class _Pool:
    name: str
    seen: Observation
    limits: PoolLimits
    held: list[int]  # replicas by server, with those that start or drain
    loaded: set[int] = field(default_factory=set)  # the servers whose memory has the weights
    idle: list[int] = field(default_factory=list)  # the server of each idle replica
    busy: int = 0
    draining: int = 0  # of the busy ones
    starting: dict[int, int] = field(default_factory=dict)  # the server of each
    queue: deque[tuple[_Live, float]] = field(default_factory=deque)
    width: float = 1.0
    desired: int = 0

    @property
    def used(self) -> int:
        return len(self.idle) + self.busy + len(self.starting)

    @property
    def replicas(self) -> int:
        return self.used - self.draining


class Simulation:
    """One run. foresight: the controller gets the calls of live workflows' plans; oracle: those that will be made.

    servers: where the capacity is; without, one server, on which each start takes `start_s`.
    """

    def __init__(
        self,
        workflows: Sequence[Workflow],
        controller: Controller,
        capacity: int,
        start_s: float,
        *,
        foresight: bool = False,
        oracle: bool = False,
        servers: Servers | None = None,
    ) -> None:
        self._workflows, self._controller, self._capacity = workflows, controller, capacity
        self._start_s, self._foresight, self._oracle = start_s, foresight, oracle
        self._servers = servers or Servers((capacity,), start_s)
        assert sum(self._servers.places) == capacity
        self._starts = self._cold = 0
        self._keys: tuple[str, ...] = ()
        self._now = 0.0
        self._planned_s = planned_service_s(workflows)
        limits = PoolLimits(1, capacity, start_s)
        none = [0] * len(self._servers.places)
        self._pools = {name: _Pool(name, Observation(self._planned_s), limits, list(none)) for name in POOLS}
        for pool in self._pools.values():
            pool.desired = capacity // len(POOLS)
            for _ in range(pool.desired):
                where = self._place(pool)
                pool.held[where] += 1
                pool.idle.append(where)
                pool.loaded.add(where)
        self._events: list[tuple[float, int, str, object]] = []
        self._order = count()
        self._live: dict[int, _Live] = {}
        self._latency: list[tuple[float, float]] = []

    def run(self) -> Outcome:
        control_s, most = 0.0, 0
        for one in self._workflows:
            self._at(one.at, "arrive", one)
        self._at(0.0, "decide", None)
        while self._events:
            self._now, _, what, subject = heapq.heappop(self._events)
            if what == "decide":
                begun = time.perf_counter()
                scaling = self._decide()
                control_s += time.perf_counter() - begun
                self._keys = scaling.key
                for pool in self._pools.values():
                    pool.desired = scaling.replicas[pool.name]
                    if pool.name not in self._keys:
                        pool.loaded = {where for where in pool.loaded if pool.held[where]}
                if len(self._latency) < len(self._workflows):
                    self._at(self._now + PERIOD_S, "decide", None)
            else:
                getattr(self, f"_{what}")(subject)
            self._reconcile()
            most = max(most, sum(pool.used for pool in self._pools.values()))
        done = len(self._latency)
        return Outcome(
            latency_s=sum(took for took, _ in self._latency) / done,
            goodput=sum(took <= SLO * alone for took, alone in self._latency) / done,
            late_s=sum(max(0.0, took - SLO * alone) for took, alone in self._latency) / done,
            control=control_s / self._now,
            workflows=done,
            most_used=most,
            starts=self._starts,
            cold=self._cold,
        )

    def _at(self, when: float, what: str, subject: object) -> None:
        heapq.heappush(self._events, (when, next(self._order), what, subject))

    def _arrive(self, workflow: Workflow) -> None:
        live = _Live(workflow, began=self._now)
        self._live[id(live)] = live
        self._at(self._now + workflow.stages[0].tool_s, "ask", live)

    def _ask(self, live: _Live) -> None:
        stage = live.workflow.stages[live.stage]
        pool = self._pools[stage.pool]
        live.left, live.began, live.tools = len(stage.services_s), self._now, False
        pool.width += 0.1 * (live.left - pool.width)
        for service_s in stage.services_s:
            pool.seen.arrived(self._now)
            pool.queue.append((live, service_s))

    def _answered(self, subject: tuple[_Pool, _Live, float, int]) -> None:
        pool, live, service_s, where = subject
        pool.seen.served(service_s)
        pool.busy -= 1
        if pool.draining:
            pool.draining -= 1
            pool.held[where] -= 1
        else:
            pool.idle.append(where)
        live.left -= 1
        if live.left:
            return
        live.stage, live.began, live.tools = live.stage + 1, self._now, True
        if live.stage < len(live.workflow.stages):
            self._at(self._now + live.workflow.stages[live.stage].tool_s, "ask", live)
        else:
            del self._live[id(live)]
            self._latency.append((self._now - live.workflow.at, live.workflow.alone_s))

    def _started(self, subject: tuple[_Pool, int]) -> None:
        pool, number = subject
        if number in pool.starting:
            where = pool.starting.pop(number)
            pool.idle.append(where)
            pool.loaded.add(where)

    def _reconcile(self) -> None:
        for pool in self._pools.values():
            while pool.replicas < pool.desired and pool.draining:
                pool.draining -= 1
            while pool.replicas > pool.desired:
                if pool.starting:
                    pool.held[pool.starting.popitem()[1]] -= 1
                elif pool.idle:
                    pool.held[pool.idle.pop()] -= 1
                else:
                    pool.draining += 1
        free = self._capacity - sum(pool.used for pool in self._pools.values())
        short = [pool for pool in self._pools.values() if pool.replicas < pool.desired]
        while free > 0 and short:
            pool = max(short, key=lambda one: (len(one.queue) / one.width, one.desired - one.replicas))
            self._start(pool)
            free -= 1
            short = [one for one in short if one.replicas < one.desired]
        for pool in self._pools.values():
            while pool.idle and pool.queue:
                live, service_s = pool.queue.popleft()
                where, pool.busy = pool.idle.pop(), pool.busy + 1
                self._at(self._now + service_s, "answered", (pool, live, service_s, where))

    def _start(self, pool: _Pool) -> None:
        number, where = next(self._order), self._place(pool)
        warm = where in pool.loaded
        pool.starting[number] = where
        pool.held[where] += 1
        self._starts, self._cold = self._starts + 1, self._cold + (not warm)
        self._at(self._now + (self._servers.warm_s if warm else self._start_s), "started", (pool, number))

    def _place(self, pool: _Pool) -> int:
        """The server for one more replica."""
        held = [(one.name in self._keys, one.held) for one in self._pools.values()]
        servers = [
            Server(
                places - sum(by_server[where] for _, by_server in held),
                sum(by_server[where] for key, by_server in held if key),
                where in pool.loaded,
            )
            for where, places in enumerate(self._servers.places)
        ]
        if isinstance(self._controller, Placer):
            return self._controller.place(pool.name, servers, self._now)
        return dense(servers)

    def _decide(self) -> Scaling:
        loads = {
            pool.name: PoolLoad(
                pool.name,
                0.0 if self._oracle else pool.seen.rate(self._now),
                pool.seen.service_rate,
                pool.replicas,
                0.0 if self._oracle else pool.seen.cv(self._now),
                len(pool.queue),
                pool.busy,
                pool.width,
                limits=pool.limits,
            )
            for pool in self._pools.values()
        }
        future: tuple[FutureCalls, ...] = ()
        if self._foresight or self._oracle:
            future = tuple(future_calls([self._seen(live) for live in self._live.values()], loads))
        if self._oracle:
            future += tuple(self._to_come())
        return self._controller.decide(tuple(loads.values()), future, self._now)

    def _seen(self, live: _Live) -> LiveWorkflow:
        stages = live.workflow.stages
        here = stages[min(live.stage, len(stages) - 1)]
        rest = stages[live.stage if live.tools else live.stage + 1 :]
        since = self._now - live.began
        return LiveWorkflow(here.pool, self._longest(here), since, tuple(map(self._planned, rest)), live.tools)

    def _longest(self, stage: Stage) -> float:
        return max(stage.services_s) if self._oracle else self._planned_s * len(stage.services_s) ** 0.4

    def _planned(self, stage: Stage) -> PlannedStage:
        calls = len(stage.services_s)
        if self._oracle:
            return PlannedStage(stage.pool, calls, sum(stage.services_s) / calls, stage.tool_s)
        return PlannedStage(stage.pool, calls, self._planned_s, stage.planned_tool_s)

    def _to_come(self) -> Iterator[FutureCalls]:
        for one in self._workflows:
            if self._now < one.at < self._now + 30:
                at = one.at - self._now
                for stage in one.stages:
                    at += stage.tool_s
                    calls = len(stage.services_s)
                    yield FutureCalls(stage.pool, calls, at, sum(stage.services_s) / calls)
                    at += max(stage.services_s)
