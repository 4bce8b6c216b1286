"""As many replicas of an engine of ours as the load needs, between two numbers.

Each replica that there may be has its place and its index from the beginning. One that is not needed is *parked*: it
gets no new calls and finishes those that it has. A parked replica stays loaded, so it can take calls at once; one
more than are needed is loaded ahead. Parked replicas are ended, the least recently used first, while the host uses
more than 85 % of its memory. Beyond the least number, none is loaded that does not fit: the kernel would end it, or
another one with its calls. `ramify.serving.scaling.lookahead` decides how many are needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Self

from ramify.sandboxes.linux.process_memory import memory_limits
from ramify.serving.errors import EngineFailed
from ramify.serving.gateway.engines.replicas import Replica
from ramify.serving.gateway.engines.supervisor import SupervisedEngine
from ramify.serving.gateway.gateway import Gateway
from ramify.serving.gateway.records.logs import log
from ramify.serving.scaling.lookahead import LiveWorkflow, Lookahead, future_calls, planned
from ramify.serving.scaling.pools import (
    MOST_MEMORY,
    Controller,
    Observation,
    PoolLimits,
    PoolLoad,
    WarmReplica,
    to_end,
)

PERIOD_S, _RESTING_S = 0.25, 1.0  # between decisions: with calls, and without any
_SOONEST_S = 0.02  # between two decisions, however many calls come
_MEMORY_S = 0.5  # between two looks at the memory
_POOL = "replicas"
_FIRST_GUESS_S = 2.0  # of a start and of a call, before one was seen
_RETRY_S = 30.0  # after a replica that did not start


class ElasticReplicas:
    """The replicas of one engine. An async context manager; entering starts the least number, and raises
    EngineFailed if one of them does not start.

    engines: one for each replica that there may be. least: how many always take calls.
    replica_bytes: the memory that one more replica may need.
    memory: bytes that are used, and all of them, of the machine and of each control group around this process.
    """

    def __init__(
        self,
        engines: Sequence[SupervisedEngine],
        least: int,
        *,
        replica_bytes: int = 0,
        memory: Callable[[], Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        self.engines = tuple(engines)
        self._limits = PoolLimits(least, len(engines), _FIRST_GUESS_S)
        self._bytes = replica_bytes
        self.controller: Controller = Lookahead(len(engines))
        self._memory = memory or memory_limits
        self._memory_seen: tuple[float, Sequence[tuple[int, int]]] = (-inf, ())  # when, and what it said
        self._loaded: set[int] = set()  # engines that are entered
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._parked_at: dict[int, float] = {}
        self._retry_at = 0.0
        self._asked = asyncio.Event()  # calls wait: decide at once
        self.demand = Observation(_FIRST_GUESS_S)

    async def __aenter__(self) -> Self:
        for one in self.engines:
            one.replica.parked = one.replica.index not in self._places(self._limits.least)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end_all)
            for one in self.engines[: self._limits.least]:
                await self._start(one)
            stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end_all()

    @property
    def active(self) -> list[Replica]:
        """The replicas that take calls."""
        return [one.replica for one in self.engines if not one.replica.parked]

    @asynccontextmanager
    async def following(self, gateway: Gateway) -> AsyncIterator[None]:
        """Follow the load of the gateway while entered."""
        gateway.demand, gateway.admission.left_waiting = self.demand, self._asked.set
        task = asyncio.create_task(self._follow(gateway))
        task.add_done_callback(_unfollowed)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def step(self, gateway: Gateway) -> None:
        """Decide once, and carry it out as far as replicas are loaded."""
        now = gateway.records.clock()
        load = self._load(gateway, now)
        future = tuple(future_calls(self._workflows(gateway, now), {_POOL: load}))
        wanted = self.controller.decide((load,), future, now).replicas[_POOL]
        self._set(wanted, gateway, now)
        self._load_ahead(wanted, now)

    def _load(self, gateway: Gateway, now: float) -> PoolLoad:
        active = self.active
        return PoolLoad(
            _POOL,
            self.demand.rate(now),
            self.demand.service_rate,
            len(active),
            self.demand.cv(now),
            gateway.admission.waiting,
            sum(one.running for one in active),
            slots=max((one.slots for one in active), default=1),
            limits=self._limits,
        )

    def _workflows(self, gateway: Gateway, now: float) -> list[LiveWorkflow]:
        step = gateway.replicas.fastest(now).model.step
        token_s, prefill_s = step.step_ms(1, 0) / 1000, step.per_prefill_ms / 1000
        return [
            LiveWorkflow(
                _POOL,
                self.demand.service_s,
                max(0.0, now - began),
                planned(compound.stage.rest, _POOL, token_s, prefill_s),
                tools=not compound.open,
            )
            for compound, began in gateway.records.live()
            if compound.stage is not None
        ]

    def _set(self, wanted: int, gateway: Gateway, now: float) -> None:
        """Unpark loaded replicas, or park those with the fewest calls. One whose process died gives its place to one
        that is loaded."""
        alive = [one for one in self.active if one.upstream is not None]
        loaded = [one.replica for one in self.engines if one.replica.index in self._loaded]
        ready = [one for one in loaded if one.parked and one.upstream is not None]
        for replica in sorted(ready, key=lambda one: -one.running)[: max(0, wanted - len(alive))]:
            replica.parked = False
            log("replica_added", replica=replica.index, active=len(self.active))
        active = sorted(self.active, key=lambda one: (one.upstream is not None, one.running, -one.index))
        for replica in active[: max(0, len(active) - wanted)]:
            replica.parked = True
            self._parked_at[replica.index] = now
            log("replica_parked", replica=replica.index, active=len(self.active))
        if wanted > len(alive) and ready:
            gateway.admission.decide()

    def _load_ahead(self, wanted: int, now: float) -> None:
        """Load as many as are wanted and one more, one at a time; end parked ones while memory is short."""
        if now >= self._memory_seen[0] + _MEMORY_S:
            with contextlib.suppress(OSError):  # no descriptor is left to read it with: what was seen last counts
                self._memory_seen = (now, self._memory())
        limits = self._memory_seen[1]
        idle = [
            WarmReplica(str(one.replica.index), _POOL, self._bytes, self._parked_at.get(one.replica.index, 0.0))
            for one in self.engines
            if one.replica.parked and one.replica.index in self._loaded and not one.replica.running
        ]
        if self._ending:  # how much memory that frees is not known yet
            return
        tightest = min(limits, key=lambda limit: MOST_MEMORY * limit[1] - limit[0], default=(0, 0))
        for warm in to_end(idle, *tightest)[:1]:
            self._end(self._by_index(int(warm.id)))
            log("replica_ended", replica=int(warm.id), why="memory")
            return
        unloaded = [one for one in self.engines if one.replica.index not in self._loaded | self._starting.keys()]
        needed = min(wanted + 1, len(self.engines))
        most = 1.0 if len(self._loaded) < wanted else MOST_MEMORY
        has_room = all(used + self._bytes <= most * total for used, total in limits)
        fits = has_room or len(self._loaded) < self._limits.least
        short = len(self._loaded) < needed and not self._starting and now >= self._retry_at
        if short and fits and unloaded:
            one = unloaded[0]
            self._starting[one.replica.index] = asyncio.create_task(self._start_or_log(one, now))

    async def _start(self, one: SupervisedEngine) -> None:
        begun = asyncio.get_running_loop().time()
        await one.__aenter__()
        self._loaded.add(one.replica.index)
        took = asyncio.get_running_loop().time() - begun
        self._limits = PoolLimits(self._limits.least, self._limits.most, took)

    async def _start_or_log(self, one: SupervisedEngine, now: float) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            await self._start(one)
        except EngineFailed as error:
            self._retry_at = now + (asyncio.get_running_loop().time() - begun) + _RETRY_S
            log("engine_failed", level=logging.ERROR, replica=one.replica.index, problem=str(error))
        finally:
            self._starting.pop(one.replica.index, None)

    async def _end_all(self) -> None:
        for task in (tasks := list(self._starting.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self.engines:
            if one.replica.index in self._loaded:
                self._end(one)
        await asyncio.gather(*self._ending.values())

    def _end(self, one: SupervisedEngine) -> None:
        """Begin to end a replica. An engine may take long to end, and calls that wait do not wait for that."""
        index = one.replica.index
        self._loaded.discard(index)
        self._ending[index] = ending = asyncio.create_task(one.__aexit__(None, None, None))
        ending.add_done_callback(lambda _: self._ending.pop(index, None))

    async def _follow(self, gateway: Gateway) -> None:
        while True:
            self._asked.clear()
            await self.step(gateway)
            await asyncio.sleep(_SOONEST_S)
            resting = not (gateway.admission.running or self._starting or any(gateway.records.live()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESTING_S if resting else PERIOD_S):
                    await self._asked.wait()

    def _places(self, count: int) -> set[int]:
        return {one.replica.index for one in self.engines[:count]}

    def _by_index(self, index: int) -> SupervisedEngine:
        return next(one for one in self.engines if one.replica.index == index)


def _unfollowed(task: asyncio.Task[None]) -> None:
    """Log a bug of the loop: otherwise the replicas would stay as many as they are without a word."""
    if not task.cancelled() and (fault := task.exception()) is not None:
        log("replicas_unfollowed", level=logging.ERROR, problem=repr(fault))
