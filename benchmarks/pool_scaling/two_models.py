"""Two real models on one host: a workflow's first stage is one call of the one, its second three calls of the other.

Each model has a pool of `--replicas 1:2` behind a gateway of its own, and the two pools have three replicas that take
calls between them. `Lookahead` moves the third to where the plans of live workflows need it; its peers keep it with
one of the pools. All four processes are loaded, in each case.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from ramify.serving.client import LLMClient
from ramify.serving.gateway import startup
from ramify.serving.gateway.elastic_replicas import ElasticReplicas
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.scaling.lookahead import LiveWorkflow, Lookahead, PlannedStage, future_calls
from ramify.serving.scaling.pools import Controller, FutureCalls, PoolLoad, Scaling
from ramify.serving.types import ChatRequest, user

PLAN, DRAFT = "plan", "draft"
BUDGET = 3
_BURSTS, _WORKFLOWS, _PLAN_TOKENS, _DRAFTS, _DRAFT_TOKENS = 4, 4, 40, 3, 24


class Fixed:
    """The same replicas always."""

    def __init__(self, replicas: Mapping[str, int]) -> None:
        self._replicas = replicas

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        return Scaling(self._replicas)


@dataclass
class Pipeline:
    """What is known of both pools, and of the workflows that run."""

    controller: Controller
    loads: dict[str, PoolLoad] = field(default_factory=dict)
    planning: dict[int, float] = field(default_factory=dict)  # when the first stage of a workflow began

    def decide(self, now: float) -> Mapping[str, int]:
        """The replicas of both pools. Those of one alone stay as they are, until the other is known."""
        if len(self.loads) < 2:
            return {name: load.replicas for name, load in self.loads.items()}
        pools = [self.loads[PLAN], self.loads[DRAFT]]
        live = list(self._live(now))
        return self.controller.decide(pools, tuple(future_calls(live, self.loads)), now).replicas

    def _live(self, now: float) -> Iterator[LiveWorkflow]:
        plan_s, draft_s = (1 / self.loads[name].service_rate for name in (PLAN, DRAFT))
        for began in self.planning.values():
            yield LiveWorkflow(PLAN, plan_s, now - began, (PlannedStage(DRAFT, _DRAFTS, draft_s),))


@dataclass
class Share:
    """The controller of one of the two pools, which decides over both."""

    pool: str
    pipeline: Pipeline

    def decide(self, pools: Sequence[PoolLoad], future: Sequence[FutureCalls], now: float) -> Scaling:
        (load,) = pools
        self.pipeline.loads[self.pool] = replace(load, name=self.pool)
        return Scaling({load.name: self.pipeline.decide(now)[self.pool]})


@dataclass(frozen=True, slots=True)
class Pipelines:
    """Of the quickest burst, the mean seconds of a workflow and the seconds of all; and how often a replica was added
    to a pool."""

    workflow_s: float
    burst_s: float
    moves: int


async def pipelines(weights: Mapping[str, Path], controller: Controller) -> Pipelines:
    """Bursts of workflows, after one workflow alone. `weights`: the model of each pool."""
    pipeline = Pipeline(controller)
    async with AsyncExitStack() as stack:
        clients, pools = {}, {}
        for name, file in weights.items():
            settings = GatewaySettings(home=file.parents[1], model=str(file), replicas=(1, 2))
            behind, sockets = await startup.start_engines(stack, settings)
            (pools[name],) = [one for one in behind if isinstance(one, ElasticReplicas)]
            pools[name].controller = Share(name, pipeline)
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            await startup.start_server(stack, listener, settings, settings.policies(), behind, sockets)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            clients[name] = await stack.enter_async_context(LLMClient(url))
        async with asyncio.timeout(120):
            while not all(one.replica.upstream for pool in pools.values() for one in pool.engines):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await _workflow(0, clients, pipeline)
        watching = asyncio.create_task(_moves(pools))
        bursts: list[tuple[float, float]] = []  # mean of its workflows, and until the last has ended
        for burst in range(_BURSTS):
            begun = time.perf_counter()
            numbers = range(100 * burst, 100 * burst + _WORKFLOWS)
            took = await asyncio.gather(*(_workflow(n, clients, pipeline) for n in numbers))
            bursts.append((mean(took), time.perf_counter() - begun))
        watching.cancel()
        (moves,) = await asyncio.gather(watching)
    return Pipelines(*min(bursts), moves)


async def _workflow(number: int, clients: Mapping[str, LLMClient], pipeline: Pipeline) -> float:
    begun = time.perf_counter()
    pipeline.planning[number] = time.monotonic()
    plan = ChatRequest(user(f"Plan story {number}."), max_tokens=_PLAN_TOKENS)
    await clients[PLAN].chat(plan)
    del pipeline.planning[number]
    drafts = [
        ChatRequest(user(f"Write chapter {n} of story {number}."), max_tokens=_DRAFT_TOKENS) for n in range(_DRAFTS)
    ]
    await asyncio.gather(*(clients[DRAFT].chat(draft) for draft in drafts))
    return time.perf_counter() - begun


async def _moves(pools: Mapping[str, ElasticReplicas]) -> int:
    """Count until cancelled."""
    moves, before = 0, {name: len(pool.active) for name, pool in pools.items()}
    try:
        while True:
            await asyncio.sleep(0.02)
            now = {name: len(pool.active) for name, pool in pools.items()}
            moves += sum(now[name] > before[name] for name in now)
            before = now
    except asyncio.CancelledError:
        return moves


def contenders() -> Mapping[str, Controller]:
    return {
        "plans": Lookahead(BUDGET),
        "2 for the plans": Fixed({PLAN: 2, DRAFT: 1}),
        "2 for the drafts": Fixed({PLAN: 1, DRAFT: 2}),
    }
