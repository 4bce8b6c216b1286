"""A gateway in front of a simulated engine of known speed, in virtual time: an hour takes as long as its events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.gateway import Gateway
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.policy.registry import make_live_policy

_SSE = {"content-type": "text/event-stream"}


@dataclass
class Engine(httpx.AsyncBaseTransport):
    """Seconds: for the start of a call, a token of a prompt, a step of a token, and for each call in that step."""

    start: float = 0.05
    prompt: float = 0.001
    base: float = 0.02
    each: float = 0.005
    slots: int = 8
    slower: float = 1.0
    tells: bool = False  # its own account of its time, as llama.cpp does
    buffers: bool = False  # a stream comes at its end
    silent: int = 0  # of so many tokens of each answer the stream says nothing: the model thinks
    cache: bool = False  # of a prompt that it has read only the first token is computed again

    def __post_init__(self) -> None:
        self._working, self._free, self._read = 0, asyncio.Semaphore(self.slots), set[str]()

    def takes(self, prompt: int, tokens: int, beside: int = 1) -> float:
        """A call that has the engine to itself."""
        return self.slower * (self.start + prompt * self.prompt + tokens * (self.base + beside * self.each))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        if body.get("stream"):
            return httpx.Response(200, headers=_SSE, content=self._events(body))
        told: dict[str, Any] = {}
        async for event in self._answer(body):
            told |= event
        text = {"index": 0, "text": "a", "finish_reason": "length"}
        return httpx.Response(200, json={"id": "x", "choices": [text], **told})

    async def _events(self, body: Any) -> AsyncIterator[bytes]:
        held = []
        async for event in self._answer(body):
            end = "length" if "usage" in event else None
            said = {"id": "x", "choices": [{"index": 0, "text": "a", "finish_reason": end}], **event}
            held.append(b"data: " + json.dumps(said).encode() + b"\n\n")
            if not self.buffers or end:
                yield b"".join(held)
                held.clear()
        yield b"data: [DONE]\n\n"

    async def _answer(self, body: Any) -> AsyncIterator[dict[str, Any]]:
        prompt, tokens = len(body["prompt"].split()), int(body["max_tokens"]) * int(body.get("n", 1))
        computed = 1 if self.cache and body["prompt"] in self._read else prompt
        async with self._free:
            self._working += 1
            try:
                prompt_s = self.slower * (self.start + computed * self.prompt)
                await asyncio.sleep(prompt_s)
                begun = asyncio.get_running_loop().time()
                for made in range(tokens):
                    await asyncio.sleep(self.slower * (self.base + self._working * self.each))
                    if made == 0:
                        begun = asyncio.get_running_loop().time()
                    if self.silent <= made < tokens - 1:
                        yield {}
                decode_ms = 1000 * (asyncio.get_running_loop().time() - begun)
            finally:
                self._working -= 1
        self._read.add(body["prompt"])
        last: dict[str, Any] = {"usage": {"prompt_tokens": prompt, "completion_tokens": tokens}}
        if self.tells:
            times = {"prompt_n": computed, "prompt_ms": 1000 * prompt_s}
            last["timings"] = times | {"predicted_n": tokens, "predicted_ms": decode_ms}
        yield last


@dataclass(frozen=True)
class Came:
    """What came of a call."""

    status: int
    took_s: float
    met: bool | None
    error: dict[str, Any]


class Served:
    """A gateway before `engine`. With `queue` it lets in so many calls beyond the engine's slots, as before vLLM."""

    def __init__(
        self, engine: Engine, *, slots: int | None = None, queue: int = 0, policy_each: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        one = Replica(
            0, slots or engine.slots, Upstream("http://engine", transport=engine), EngineTraits(), queue=queue
        )
        policy = [make_live_policy()] if policy_each else None
        self.app = create_gateway([one], policy=policy, clock=loop.time, wall=loop.time)
        self.gateway: Gateway = self.app.state.gateway
        self.model = one.model
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://gateway/v1", timeout=None
        )

    async def ask(
        self, prompt: int = 20, tokens: int = 24, deadline: float | None = None, word: str = "a", **more: Any
    ) -> Came:
        began = asyncio.get_running_loop().time()
        body: dict[str, Any] = {"prompt": " ".join([word] * prompt), "max_tokens": tokens, **more}
        body |= {} if deadline is None else {"deadline": deadline}
        answer = await self._client.post("/completions", json=body)
        took_s = asyncio.get_running_loop().time() - began
        if body.get("stream") and answer.status_code == 200:
            said = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        else:
            said = [answer.json()]
        met = next((one["ramify"]["met"] for one in reversed(said) if "ramify" in one), None)
        return Came(answer.status_code, took_s, met, next((one["error"] for one in said if "error" in one), {}))
