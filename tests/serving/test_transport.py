"""Tagging httpx clients: one header, during a run, to the gateway and to nobody else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.protocol.tags import HEADER, SLOTags
from ramify.serving.testing import ScriptedModel
from ramify.serving.transport import TaggingTransport, tagged

TAGS = SLOTags(compound_id="run", slo_deadline_s=30.0)


def echo(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"tags": request.headers.get(HEADER)})


def seen(response: httpx.Response) -> Any:
    said = response.json()["tags"]
    return said and json.loads(said)


@pytest.mark.parametrize(
    ("url", "is_tagged"),
    [
        ("http://gateway:8080/v1/chat/completions", True),
        ("http://gateway:8080/anything", True),
        ("http://gateway/v1/chat/completions", False),
        ("https://gateway:8080/v1/chat/completions", False),
        ("http://gateway.example:8080/v1", False),
        ("http://evil/?http://gateway:8080", False),
    ],
)
def test_only_the_gateways_origin_gets_tags(url: str, is_tagged: bool) -> None:
    with httpx.Client(transport=TaggingTransport(httpx.MockTransport(echo), "http://gateway:8080/v1")) as client:
        assert seen(client.get(url)) is None
        with tagged(lambda: TAGS):
            assert seen(client.get(url)) == (TAGS.to_xargs() if is_tagged else None)
        assert seen(client.get(url)) is None


def test_default_port_may_be_left_out() -> None:
    transport = TaggingTransport(httpx.MockTransport(echo), "https://gateway:443/v1")
    with httpx.Client(transport=transport) as client, tagged(lambda: TAGS):
        assert seen(client.get("https://gateway/v1/models")) == TAGS.to_xargs()


def test_own_header_wins_and_empty_tags_send_none() -> None:
    transport = TaggingTransport(httpx.MockTransport(echo), "http://gateway")
    with httpx.Client(transport=transport, base_url="http://gateway") as client:
        with tagged(lambda: TAGS):
            assert seen(client.get("/", headers={HEADER: "{}"})) == {}
        with tagged(SLOTags):
            assert seen(client.get("/")) is None


async def test_tags_are_per_task_and_asked_for_each_request() -> None:
    left = iter([9.0, 8.0])
    transport = TaggingTransport(httpx.MockTransport(echo), "http://gateway")
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:

        async def one(run: str) -> Any:
            with tagged(lambda: SLOTags(compound_id=run)):
                await asyncio.sleep(0)
                return seen(await client.get("/"))

        assert [t["compound_id"] for t in await asyncio.gather(one("a"), one("b"))] == ["a", "b"]
        with tagged(lambda: SLOTags(slo_deadline_s=next(left))):
            assert [seen(await client.get("/"))["slo_deadline_s"] for _ in range(2)] == [9.0, 8.0]


async def test_unchanged_client_gets_deadlines_through_the_gateway() -> None:
    app = create_gateway("http://engine/v1", transport=ScriptedModel(lambda _: "ok"))
    transport = TaggingTransport(httpx.ASGITransport(app), "http://gateway/v1")
    http = httpx.AsyncClient(transport=transport)
    async with openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="none", http_client=http) as client:
        with tagged(lambda: TAGS):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        records = (await http.get("http://gateway/v1/ramify/requests", params={"compound_id": "run"})).json()
    assert [(r["tags"], r["met"]) for r in records["requests"]] == [({**TAGS.to_xargs(), "compound_stage": 0}, True)]


async def test_transport_of_the_other_kind_is_an_error() -> None:
    asynchronous = TaggingTransport(httpx.AsyncHTTPTransport(), "http://gateway")
    with pytest.raises(TypeError, match=r"AsyncHTTPTransport is not a transport of an httpx.Client"):
        asynchronous.handle_request(httpx.Request("GET", "http://gateway"))
    with pytest.raises(TypeError, match=r"HTTPTransport is not a transport of an httpx.AsyncClient"):
        await TaggingTransport(httpx.HTTPTransport(), "http://gateway").handle_async_request(
            httpx.Request("GET", "http://gateway")
        )
