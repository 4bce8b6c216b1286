"""How long a replica of the embedded engine takes to its first token: cold, and warm (loaded, but without calls).

A warm replica maps the weights' file, which all replicas on a host share in the page cache. Its own memory is what
it has written: KV, buffers, and weights that llama.cpp lays out for this processor.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from ramify.serving.engine.llama_cpp import LocalEngine


@dataclass(frozen=True, slots=True)
class Starts:
    """Seconds to the first token, each measurement; bytes of a warm replica beside another."""

    cold_s: tuple[float, ...]
    warm_s: tuple[float, ...]
    shared: int
    own: int

    @property
    def cold(self) -> float:
        return median(self.cold_s)

    @property
    def warm(self) -> float:
        return median(self.warm_s)


async def measured(weights: Path, rounds: int) -> Starts:
    """Start so many replicas one by one, each beside one that runs; the weights' file is in the page cache."""
    cold, warm = [], []
    async with AsyncExitStack() as stack:
        # made before the measurement: it reads certificates, which takes as long as a token
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60.0))
        await _first_token(client, await stack.enter_async_context(LocalEngine(weights)))
        for _ in range(rounds):
            begun = time.perf_counter()
            async with LocalEngine(weights) as engine:
                await _first_token(client, engine)
                cold.append(time.perf_counter() - begun)
        for _ in range(rounds):
            async with LocalEngine(weights) as engine:
                begun = time.perf_counter()
                await _first_token(client, engine)
                warm.append(time.perf_counter() - begun)
                shared, own = _memory(engine.pid)
    return Starts(tuple(cold), tuple(warm), shared, own)


async def _first_token(client: httpx.AsyncClient, engine: LocalEngine) -> None:
    key = {"authorization": f"Bearer {engine.key}"}
    asked = {"prompt": "Say hello.", "max_tokens": 1}
    (await client.post(engine.base_url + "/completions", json=asked, headers=key)).raise_for_status()


def _memory(pid: int | None) -> tuple[int, int]:
    """Bytes that the process shares with others, and its own."""
    assert pid is not None
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) * 1024
    return fields["Shared_Clean"] + fields["Shared_Dirty"], fields["Private_Clean"] + fields["Private_Dirty"]
