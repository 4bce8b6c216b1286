"""Live engines side by side: vLLM's own scheduler, Concord and Andes, and the loads that they are given in turn.

All engines run at once and one works at a time. Each has its own KV cache of the same size, smaller than the load
needs. Prompts are random token ids, so no two calls share a prefix unless a workload says so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean

import httpx

from benchmarks.rows import Row, row
from ramify.serving.engine.vllm import VllmEngine
from ramify.serving.qoe import Reading, speeds

KINDS = ("vLLM", "concord", "andes")
_FIRST_ID, _LAST_ID = 1000, 40_000  # ids of ordinary tokens in any of the vocabularies


@dataclass(frozen=True, slots=True)
class Size:
    """How large the engines and their loads are. Tokens and seconds."""

    slots: int
    context: int
    kv_tokens: int  # of each engine
    block: int
    prompts: tuple[int, int]  # of a stream: the least and the most
    answers: tuple[int, int]
    agents: int
    turns: int
    start: tuple[int, int]  # an agent's first prompt
    grows: tuple[int, int]  # with each turn
    tool_s: tuple[float, float]
    answer: int  # of an agent's call


CPU = Size(
    slots=8, context=2048, kv_tokens=4096, block=32, prompts=(32, 160), answers=(16, 40),
    agents=8, turns=4, start=(500, 800), grows=(40, 120), tool_s=(0.5, 3.0), answer=8,
)  # fmt: skip
GPU = Size(
    slots=128, context=32_768, kv_tokens=160_000, block=16, prompts=(200, 3000), answers=(100, 600),
    agents=24, turns=8, start=(6000, 14_000), grows=(200, 1500), tool_s=(1.0, 10.0), answer=150,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer. Seconds on this process's clock."""

    times: tuple[float, ...]  # of the tokens
    prompt: int
    cached: int  # tokens of the prompt that were in the engine's KV
    tokens: int


@asynccontextmanager
async def engines(
    kinds: Sequence[str], size: Size, model: Path, python: Path, folder: Path, extra: Sequence[str] = ()
) -> AsyncIterator[dict[str, VllmEngine]]:
    """Start one engine of each kind. Raises EngineFailed."""
    line = ["--num-gpu-blocks-override", str(size.kv_tokens // size.block), "--block-size", str(size.block)]
    line += ["--enable-prompt-tokens-details", *extra]

    def made(kind: str) -> VllmEngine:
        ours: dict[str, object] = {"scheduler": None}
        if kind != "vLLM":
            ours = {"scheduler_options": {"policy": kind, "report": str(report_of(folder, kind))}}
        return VllmEngine(
            model,
            alias="m",
            slots=size.slots,
            context=size.context,
            python=python,
            extra=line,
            **ours,  # type: ignore[arg-type]
        )

    async with AsyncExitStack() as stack:
        yield {kind: await stack.enter_async_context(made(kind)) for kind in kinds}


def report_of(folder: Path, kind: str) -> Path:
    """Return the file in which the scheduler of a kind counts what it does."""
    return folder / f"{kind}.json"


def policy_ms(folder: Path, kind: str) -> float:
    """Return the milliseconds of processor time that the policy takes in a step of the engine, in the mean."""
    said = json.loads(report_of(folder, kind).read_text("utf-8"))
    return 1000.0 * float(said["policy_s"]) / max(1, int(said["steps"]))


class Client:
    """Asks one engine. An async context manager."""

    def __init__(self, engine: VllmEngine) -> None:
        self._tagged = engine._scheduler is not None
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(base_url=f"{engine.base_url}/", timeout=600.0, trust_env=False, limits=limits)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, prompt: Sequence[int], tokens: int, tags: Mapping[str, object]) -> Answered:
        """Return an answer of so many tokens. The engine gets the tags if its scheduler reads them."""
        body: dict[str, object] = {"model": "m", "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True}
        body |= {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
        body |= {"vllm_xargs": dict(tags)} if self._tagged and tags else {}
        times, usage = list[float](), dict[str, object]()
        async with self._http.stream("POST", "completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    usage = chunk.get("usage") or usage
                    times += [time.monotonic()] * len(chunk["choices"])
        details = usage.get("prompt_tokens_details")
        cached = int(details.get("cached_tokens") or 0) if isinstance(details, Mapping) else 0
        return Answered(tuple(times), len(prompt), cached, int(str(usage.get("completion_tokens", 0))))


def _ids(chance: Random, count: int) -> list[int]:
    return [chance.randrange(_FIRST_ID, _LAST_ID) for _ in range(count)]


async def saturate(client: Client, size: Size, requests: int, seed: int) -> float:
    """Return the tokens a second of so many calls that are sent at once, of every class."""
    chance = Random(f"saturate/{seed}")
    kinds: list[dict[str, object]] = [
        {"slo_class": "latency", "slo_ttft_s": 600.0},
        {"slo_deadline_s": 600.0},
        {"slo_class": "stream"},
        {},
    ]
    prompts = [_ids(chance, chance.randint(*size.prompts)) for _ in range(requests)]
    tokens = [chance.randint(*size.answers) for _ in range(requests)]
    began = time.monotonic()
    asked = [client.ask(prompt, n, kinds[i % 4]) for i, (prompt, n) in enumerate(zip(prompts, tokens, strict=True))]
    answers = await asyncio.gather(*asked)
    return sum(one.tokens for one in answers) / (time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Read:
    """What readers and callers got."""

    qoe: float  # mean of the streams
    met: float  # share of the calls with a deadline that were in time
    ttft_s: float  # mean of the streams


async def read(client: Client, size: Size, rate: float, seconds: float, seed: int, deadline_s: float) -> Read:
    """Send calls at random times, `rate` a second: two streams for each call that has a deadline."""
    chance = Random(f"read/{seed}/{rate}")
    shares, tbts = zip(*speeds(), strict=True)
    qoes, ttfts, met = list[float](), list[float](), list[bool]()

    async def stream(prompt: list[int], tokens: int, tbt_s: float) -> None:
        reading = Reading(time.monotonic() + 1.0, tbt_s)
        began = time.monotonic()
        got = await client.ask(prompt, tokens, {"slo_class": "stream", "slo_ttft_s": 1.0, "slo_tbt_s": tbt_s})
        for at in got.times:
            reading = reading.delivered(at)
        qoes.append(reading.qoe())
        ttfts.append(got.times[0] - began)

    async def call(prompt: list[int], tokens: int) -> None:
        began = time.monotonic()
        try:
            await client.ask(prompt, tokens, {"slo_deadline_s": deadline_s})
        except httpx.HTTPStatusError:  # the scheduler refused it
            met.append(False)
        else:
            met.append(time.monotonic() - began <= deadline_s)

    async with asyncio.TaskGroup() as group:
        began, at, number = time.monotonic(), 0.0, 0
        while (at := at + chance.expovariate(rate)) < seconds or number < 3:
            prompt, tokens = _ids(chance, chance.randint(*size.prompts)), chance.randint(*size.answers)
            tbt_s = chance.choices(tbts, shares)[0]
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            group.create_task(call(prompt, tokens) if number % 3 == 2 else stream(prompt, tokens, tbt_s))
            number += 1
    return Read(fmean(qoes), fmean(met), fmean(ttfts))


@dataclass(frozen=True, slots=True)
class Worked:
    """How agents fared that wait for tools between their calls."""

    mean_s: float  # from the start to an agent's end
    again: int  # prompt tokens computed that had been computed before
    least: int  # prompt tokens to compute if nothing is evicted


async def work(client: Client, size: Size, seed: int) -> Worked:
    """Run agents that start together. Each call repeats the prompt of the one before and adds to it."""
    took, again, least = list[float](), 0, 0

    async def agent(number: int) -> None:
        nonlocal again, least
        chance = Random(f"work/{seed}/{number}")
        prompt, known, began = _ids(chance, chance.randint(*size.start)), 0, time.monotonic()
        for turn in range(size.turns):
            tags = {"slo_class": "compound", "compound_id": f"{seed}.{number}", "compound_stage": turn}
            tags |= {"compound_last": int(turn + 1 == size.turns)}
            got = await client.ask(prompt, size.answer, tags)
            again += max(0, known - got.cached)
            least += got.prompt - known
            known = (len(prompt) // size.block) * size.block
            prompt = [*prompt, *_ids(chance, chance.randint(*size.grows))]
            if turn + 1 < size.turns:
                await asyncio.sleep(chance.uniform(*size.tool_s))
        took.append(time.monotonic() - began)

    await asyncio.gather(*map(agent, range(size.agents)))
    return Worked(fmean(took), again, least)


async def worked(clients: Mapping[str, Client], size: Size, rounds: int) -> dict[str, list[Worked]]:
    """Run agents on stock vLLM and on Concord in turns. Returns what they did by kind of engine."""
    found: dict[str, list[Worked]] = {"vLLM": [], "concord": []}
    for number in range(rounds):
        for kind in rotated(tuple(found), number):
            found[kind].append(await work(clients[kind], size, number))
    return found


def tool_call_rows(found: dict[str, list[Worked]], size: Size) -> list[Row]:
    """Return the rows of agents that waited for tools, by kind of engine."""
    means = {kind: [one.mean_s for one in each] for kind, each in found.items()}
    again = {kind: sum(one.again for one in each) / sum(one.least for one in each) for kind, each in found.items()}
    ratios = [theirs / ours for theirs, ours in zip(means["vLLM"], means["concord"], strict=True)]
    note = f"{size.agents} agents of {size.turns} calls; {len(ratios)} rounds, {min(ratios):.2f} to {max(ratios):.2f}"
    return [
        row("agents over tool calls: mean completion, concord", round(fmean(means["concord"]), 2), "s", peer="vLLM",
            peer_value=round(fmean(means["vLLM"]), 2), times_faster=True, note=note),
        row("the same: prompt tokens computed again", round(again["concord"], 2), "x the least", peer="vLLM",
            peer_value=round(again["vLLM"], 2), target="<= .3 x vLLM's",
            met=again["concord"] <= 0.3 * again["vLLM"]),
    ]  # fmt: skip


def rotated(kinds: Sequence[str], by: int) -> list[str]:
    """Return the kinds in an order that changes from round to round, so that none is always first."""
    cut = by % len(kinds)
    return [*kinds[cut:], *kinds[:cut]]
