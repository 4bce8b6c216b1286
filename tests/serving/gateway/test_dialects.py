"""Streams that are interrupted for more urgent calls and resumed: the client sees one answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.dialects import CHAT, RESPONSES, TEXT, continued, rejoin_chunk, resumable
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.service_time import PromptSizes
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.policy.types import Finished, RequestId, SloClass, Verdict, View

MESSAGES = [{"role": "user", "content": "count"}]
CHAT_BODY: dict[str, object] = {"messages": MESSAGES, "stream": True, "max_tokens": 6}
TEXT_BODY: dict[str, object] = {"prompt": "count", "stream": True, "max_tokens": 6}


@pytest.mark.parametrize(
    ("change", "can"),
    [
        ({}, True),
        ({"temperature": 0, "seed": 3}, True),
        ({"temperature": 1, "seed": 3}, False),
        ({"seed": 3}, False),
        ({"stream": False}, False),
        ({"n": 2}, False),
        ({"stop": ["x"]}, False),
        ({"tools": []}, False),
        ({"logprobs": True}, False),
        ({"response_format": {}}, False),
        ({"messages": []}, False),
        ({"messages": [{"role": "assistant", "content": "a"}]}, False),
        ({"something": "else"}, False),
    ],
)
def test_which_answers_are_resumable(change: dict[str, object], can: bool) -> None:
    assert resumable(CHAT, {**CHAT_BODY, **change}) is can


def test_other_endpoints_are_not_resumable() -> None:
    assert resumable(TEXT, TEXT_BODY)
    assert not resumable(TEXT, {**TEXT_BODY, "prompt": [1, 2]})
    assert not resumable(RESPONSES, {"input": "x", "stream": True})


def test_request_for_the_rest_of_an_answer() -> None:
    rest = continued(CHAT, CHAT_BODY, "one two", 2)
    assert rest["messages"] == [*MESSAGES, {"role": "assistant", "content": "one two"}]
    assert (rest["max_tokens"], rest["continue_final_message"], rest["add_generation_prompt"]) == (4, True, False)
    assert continued(TEXT, TEXT_BODY, " one", 1)["prompt"] == "count one"
    assert continued(TEXT, TEXT_BODY, " one", 99)["max_tokens"] == 1


def test_second_part_is_joined_to_the_first() -> None:
    head = {"id": "first", "model": "m"}
    opening = {"id": "second", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    assert rejoin_chunk(opening, head, 3) is None
    usage = {"id": "second", "choices": [], "usage": {"prompt_tokens": 13, "completion_tokens": 4}}
    joined = rejoin_chunk(usage, head, 3)
    assert joined == {**head, "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 7}}


class Jealous:
    """Latency-sensitive calls take the slot of any other."""

    def decide(self, view: View, now: float) -> Verdict:
        urgent = [c for c in view.waiting if c.slo_class is SloClass.LATENCY]
        order = tuple(c.id for c in [*urgent, *(c for c in view.waiting if c not in urgent)])
        victims: tuple[RequestId, ...] = ()
        if urgent and not view.capacity.free and view.capacity.can_preempt:
            victims = tuple(c.id for c in view.running if c.slo_class is not SloClass.LATENCY)[:1]
        return Verdict(order[: view.capacity.free + len(victims)], order, victims)

    def observe(self, done: Finished) -> None:
        pass


class Closing(httpx.AsyncByteStream):
    """A stream that ends its source when it is closed, as a connection does."""

    def __init__(self, source: AsyncGenerator[bytes, None]) -> None:
        self._source = source

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._source

    async def aclose(self) -> None:
        await self._source.aclose()


class Counting:
    """An engine with one slot that counts from where it is told to, a step whenever it is let."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.inside = self.peak = 0
        self.steps = asyncio.Semaphore(0)
        self.hungry = asyncio.Queue[int]()  # the number of the call that waits for a step

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Closing(self._count(body)))

    async def _count(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        messages, number = body["messages"], len(self.asked)
        begun = messages[-1]["content"].split() if messages[-1]["role"] == "assistant" else []
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        try:
            yield self._chunk(number, {"role": "assistant", "content": ""}, None)
            for i in range(body["max_tokens"]):
                if self.steps.locked():
                    self.hungry.put_nowait(number)
                await self.steps.acquire()
                last = i == body["max_tokens"] - 1
                yield self._chunk(number, {"content": f" {len(begun) + i}"}, "length" if last else None)
            yield b"data: [DONE]\n\n"
        finally:
            self.inside -= 1

    @staticmethod
    def _chunk(number: int, delta: dict[str, str], end: str | None) -> bytes:
        chunk = {"id": f"answer-{number}", "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def test_interrupted_stream_reads_as_one_answer() -> None:
    engine = Counting()
    upstream = Upstream("http://engine", transport=httpx.MockTransport(engine))
    app = create_gateway([Replica(0, 1, upstream, EngineTraits(can_resume=True))], policy=Jealous())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        long = asyncio.create_task(client.post("/chat/completions", json=CHAT_BODY))
        for _ in range(3):
            engine.steps.release()
        async with asyncio.timeout(20):
            assert await engine.hungry.get() == 1
            urgent = asyncio.create_task(
                client.post("/chat/completions", json={**CHAT_BODY, "max_tokens": 2, "target_ttft": 1})
            )
            assert await engine.hungry.get() == 2
            for _ in range(5):
                engine.steps.release()
            first, second = await asyncio.gather(urgent, long)
        figures = (await client.get("http://gateway/metrics")).text
    assert engine.peak == 1
    chunks = [json.loads(line[6:]) for line in second.text.split("\n\n") if line.startswith("data: {")]
    said, ledger = chunks, chunks[-1]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in said) == " 0 1 2 3 4 5"
    assert {c["id"] for c in said} == {"answer-1"}
    assert [c["choices"][0]["delta"].get("role") for c in said].count("assistant") == 1
    assert [c["choices"][0]["finish_reason"] for c in said][-1] == "length"
    assert (ledger["ramify"]["preemptions"], ledger["ramify"]["attempts"]) == (1, 2)
    assert ledger["ramify"]["preempted_s"] > 0
    assert '"finish_reason":"length"' in first.text
    assert [a["max_tokens"] for a in engine.asked] == [6, 2, 3]
    again = PromptSizes().guess(len(str(MESSAGES))) + 3  # its prompt, and what it had said
    assert "ramify_preemptions_total 1.0" in figures and f"ramify_preempted_tokens_total {again}.0" in figures
