"""Streams that the gateway gives out at their readers' pace: when each event goes out, and that none is changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.serving.gateway.dialects import CHAT
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import EngineSpec, GatewaySettings
from ramify.serving.pacing import PacedDelivery, Pacer
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.testing import ScriptedModel, ScriptedServer
from tests.samples import sample
from tests.serving.gateway.virtual_time import Engine, Served
from tests.virtual_loop import run

STREAM: dict[str, Any] = {"vllm_xargs": {"slo_class": "stream", "slo_tbt_s": 0.5}}


class Reader:
    """A client of the ASGI application that notes when each part of the answer came; `leave` disconnects it."""

    def __init__(self, app: Any, **body: Any) -> None:
        self.parts = list[tuple[float, bytes]]()
        self._left, self._asked = asyncio.Event(), False
        self._body = json.dumps({"prompt": "a b", "max_tokens": 6, "stream": True, **body}).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(self._body)).encode())]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/completions", "headers": head}
        scope |= {"query_string": b"", "scheme": "http", "server": ("gateway", 80), "root_path": ""}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            self.parts.append((asyncio.get_running_loop().time(), message["body"]))

    def tokens(self) -> list[float]:
        """When each event with text came."""
        return [at for at, part in self.parts for _ in range(part.replace(b" ", b"").count(b'"text":"a"'))]

    @property
    def said(self) -> str:
        return b"".join(part for _, part in self.parts).decode()


async def until(reached: Callable[[], object]) -> None:
    while not reached():  # noqa: ASYNC110  # in virtual time
        await asyncio.sleep(0.01)


def paced(work: Callable[[Served], Awaitable[None]], *, pace: bool = True, **engine: Any) -> None:
    async def served() -> None:
        one = Served(Engine(**engine))
        one.gateway._pace = pace
        await work(one)

    run(served)


def test_tokens_go_out_at_the_readers_pace_and_the_slot_is_free_before():
    async def work(served: Served) -> None:
        reader = Reader(served.app, **STREAM)
        await until(lambda: served.gateway.admission.running)
        await until(lambda: not served.gateway.admission.running)
        freed = asyncio.get_running_loop().time()
        await reader.task
        first, *rest = reader.tokens()
        # The last token comes with the end of the answer, which waits for nothing.
        assert rest == pytest.approx([first + 0.5 * i for i in (1, 2, 3, 4)] + [first + 2.0])
        assert freed < first + 0.5
        assert reader.said.endswith("data: [DONE]\n\n")

    paced(work)


@pytest.mark.parametrize(
    ("pace", "tags"),
    [
        (False, {"slo_class": "stream", "slo_tbt_s": 0.5}),
        (True, {"slo_class": "latency", "slo_tbt_s": 0.5}),
        (True, {"slo_class": "stream", "slo_tbt_s": 0.5, "slo_pace": 0}),
        (True, {"slo_class": "stream", "slo_tbt_s": 0.5, "slo_deadline_s": 9.0}),
    ],
)
def test_other_calls_go_out_as_they_come(pace: bool, tags: dict[str, Any]):
    async def work(served: Served) -> None:
        reader = Reader(served.app, vllm_xargs=tags)
        await reader.task
        tokens = reader.tokens()
        assert len(tokens) == 6
        assert tokens[-1] - tokens[0] < 0.5

    paced(work, pace=pace)


def test_a_tag_asks_for_a_pace_that_the_gateway_does_not_set():
    async def work(served: Served) -> None:
        reader = Reader(served.app, vllm_xargs={"slo_pace": 1, "slo_tbt_s": 0.5})
        await reader.task
        tokens = reader.tokens()
        assert tokens[-1] - tokens[0] >= 2.0

    paced(work, pace=False)


def test_a_client_that_leaves_ends_its_delivery_and_no_other():
    async def work(served: Served) -> None:
        leaves, stays = Reader(served.app, **STREAM), Reader(served.app, **STREAM)
        await until(lambda: len(leaves.tokens()) >= 2)
        leaves.leave()
        await leaves.task
        assert len(leaves.tokens()) == 2
        assert len(served.gateway._deliveries) == 1
        await stays.task
        assert len(stays.tokens()) == 6
        assert not served.gateway._deliveries

    paced(work)


def test_cancelling_a_workflow_ends_a_stream_with_all_that_there_is_of_it():
    async def work(served: Served) -> None:
        tags = {**STREAM["vllm_xargs"], "compound_id": "run"}
        reader = Reader(served.app, vllm_xargs=tags, max_tokens=50)
        await until(reader.tokens)
        await asyncio.sleep(0.3)  # virtual: the engine has made more than went out
        (call,) = served.gateway.records.open_calls(compound_id="run", fork_group=None)
        made = call.chunks
        response = await served._client.post("/ramify/cancel", json={"compound_id": "run"})
        assert response.json() == {"cancelled": 1}
        await reader.task
        assert len(reader.tokens()) == made > 2
        assert '"code":"aborted"' in reader.said
        assert "[DONE]" not in reader.said

    paced(work)


def test_a_stream_that_begins_while_the_gateway_stops_is_not_held():
    async def work(served: Served) -> None:
        call = served.gateway.open(CHAT, {}, SLOTags(slo_pace=1, slo_tbt_s=0.5), "")
        served.gateway.stopping = True
        sent = list[bytes]()

        async def send(data: bytes) -> None:
            sent.append(data)

        async with served.gateway.delivery(call, {}, CHAT, send) as delivery:
            assert delivery is not None
            for event in (b"a", b"b", b"c"):
                await delivery.put(event, 1.0)
            began = asyncio.get_running_loop().time()
            await delivery.drained()
        assert (b"".join(sent), asyncio.get_running_loop().time()) == (b"abc", began)

    paced(work)


def test_a_gateway_that_stops_sends_what_it_holds():
    async def work(served: Served) -> None:
        reader = Reader(served.app, **STREAM)
        await until(reader.tokens)
        began = asyncio.get_running_loop().time()
        await served.gateway.drain(30.0)
        assert asyncio.get_running_loop().time() - began < 1.0
        assert len(reader.tokens()) == 6
        assert reader.said.endswith("data: [DONE]\n\n")

    paced(work)


@given(
    gaps=st.lists(st.floats(0, 1), min_size=1, max_size=30),
    tbt_s=st.sampled_from((0.05, 0.4)),
    most=st.integers(1, 40),
)
@settings(max_examples=sample(15, 50), deadline=None)
def test_events_keep_their_order_and_no_more_than_the_limit_is_held(gaps: list[float], tbt_s: float, most: int):
    async def work() -> None:
        loop = asyncio.get_running_loop()
        out = list[bytes]()

        async def send(data: bytes) -> None:
            await asyncio.sleep(0.01)
            out.append(data)

        put = [b"%03d" % i for i in range(len(gaps))]
        async with PacedDelivery(send, Pacer(tbt_s), loop.time, most) as delivery:
            for event, gap in zip(put, gaps, strict=True):
                await asyncio.sleep(gap)
                await delivery.put(event, 1.0)
                assert delivery._bytes <= most
            await delivery.drained()
        assert b"".join(out) == b"".join(put)

    run(work)


def test_what_sending_raises_reaches_the_stream():
    async def work() -> None:
        async def send(data: bytes) -> None:
            raise ConnectionError("gone")

        async with PacedDelivery(send, Pacer(1.0), asyncio.get_running_loop().time) as delivery:
            await delivery.put(b"x", 1.0)
            with pytest.raises(ConnectionError, match="gone"):
                await delivery.drained()

    run(work)


async def test_official_client_gets_the_same_chunks_paced_and_not(tmp_path: Path):
    async with ScriptedServer(ScriptedModel(lambda _: "one two three")) as engine:
        given = GatewaySettings(home=tmp_path, engines=(EngineSpec.parse(engine.base_url),), pace=True)
        async with (
            LocalGateway(given) as gateway,
            openai.AsyncOpenAI(base_url=gateway.base_url, api_key="none", max_retries=0) as client,
        ):

            async def chunks(pace: int) -> list[dict[str, Any]]:
                tags = {"slo_class": "stream", "slo_tbt_s": 0.01, "slo_pace": pace}
                stream = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "hi"}],
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"vllm_xargs": tags},
                )
                return [chunk.model_dump(exclude={"id", "created", "ramify"}) async for chunk in stream]

            async def events(pace: int) -> list[str]:
                tags = {"slo_class": "stream", "slo_tbt_s": 0.01, "slo_pace": pace}
                async with client.responses.stream(
                    model="m", input="hi", extra_body={"vllm_xargs": tags}
                ) as response:
                    said = [event.type async for event in response]
                    final = await response.get_final_response()
                assert final.output_text == "one two three"
                return said

            assert await chunks(1) == await chunks(0)
            assert await events(1) == await events(0)
