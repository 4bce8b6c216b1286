"""A burst of calls before a real gateway: with one replica of the embedded engine, or as many as `--replicas` brings;
and with one or two engines of vLLM."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from ramify.serving.client import LLMClient
from ramify.serving.engine.contract import EngineKind, EngineSpec
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.types import ChatRequest, user

_CALLS, _TOKENS, _IDLE_S = 4, 60, 2.0
_VLLM_CALLS, _VLLM_ROUNDS = 16, 3


@dataclass(frozen=True, slots=True)
class Burst:
    first_s: float  # mean seconds to the first token
    last_s: float  # until the last answer is whole
    idle: float  # share of a core of the gateway's process while no call is there


async def burst(home: Path, model: str, most: int) -> Burst:
    """Four calls at once, at a gateway that has served one call and has its warm replica."""
    settings = GatewaySettings(home=home, model=model, replicas=(1, most))
    async with LocalGateway(settings) as local, LLMClient(local.base_url) as client:
        assert local.gateway is not None
        replicas = local.gateway.replicas.all
        await _call(client, 0)
        await _until(lambda: all(one.upstream is not None for one in replicas[:2]))
        worked = time.process_time()
        await asyncio.sleep(_IDLE_S)
        idle = (time.process_time() - worked) / _IDLE_S
        begun = time.perf_counter()
        firsts = await asyncio.gather(*(_call(client, n) for n in range(_CALLS)))
        return Burst(mean(firsts), time.perf_counter() - begun, idle)


async def vllm_burst(home: Path, model: str, engines: int) -> float:
    """Sixteen calls at once before so many vLLM engines, which have sixteen slots together: seconds until the last
    answer is whole, the lowest of three rounds. Raises EngineFailed without a vLLM."""
    spec = EngineSpec(EngineKind.VLLM)
    settings = GatewaySettings(home=home, model=model, engines=(spec,) * engines, slots=_VLLM_CALLS // engines)
    took = []
    async with LocalGateway(settings) as local, LLMClient(local.base_url) as client:
        await asyncio.gather(*(_call(client, n) for n in range(2 * engines)))
        for _ in range(_VLLM_ROUNDS):
            begun = time.perf_counter()
            await asyncio.gather(*(_call(client, n) for n in range(_VLLM_CALLS)))
            took.append(time.perf_counter() - begun)
    return min(took)


async def _call(client: LLMClient, number: int) -> float:
    begun, first = time.perf_counter(), None
    async with client.stream(ChatRequest(user(f"Tell me story {number}."), max_tokens=_TOKENS)) as stream:
        async for _ in stream:
            first = first or time.perf_counter() - begun
    return first or time.perf_counter() - begun


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
