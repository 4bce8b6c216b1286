"""The official OpenAI client, unchanged, against the gateway on a real port; what an engine then receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ramify.serving.engine.contract import EngineSpec
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.testing import Endpoint, Fault, ScriptedModel, ScriptedServer

ASK: list[Any] = [{"role": "user", "content": "hi"}]
TAGS = {"slo_deadline_s": 3000.0, "compound_id": "run", "compound_stage": 1}


@asynccontextmanager
async def served(model: ScriptedModel, home: Path, **settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with ScriptedServer(model) as engine:
        given = GatewaySettings(home=home, engines=(EngineSpec.parse(engine.base_url),), **settings)
        async with (
            LocalGateway(given) as gateway,
            openai.AsyncOpenAI(base_url=gateway.base_url, api_key="none", max_retries=0) as client,
        ):
            yield client


async def test_every_endpoint_whole_and_streamed(tmp_path: Path) -> None:
    async with served(ScriptedModel(lambda _: "one two"), tmp_path) as client:
        assert [m.id async for m in client.models.list()] == ["scripted"]
        chat = await client.chat.completions.create(model="m", messages=ASK)
        text = await client.completions.create(model="m", prompt="hi")
        response = await client.responses.create(model="m", input="hi")
        assert (chat.choices[0].message.content, text.choices[0].text, response.output_text) == ("one two",) * 3
        for answer in (chat, text, response):
            assert answer.model_extra is not None
            assert answer.model_extra["ramify"]["met"] is None
        chunks = [c async for c in await client.chat.completions.create(model="m", messages=ASK, stream=True)]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one two"
        texts = [c async for c in await client.completions.create(model="m", prompt="hi", stream=True)]
        assert "".join(c.choices[0].text for c in texts) == "one two"
        async with client.responses.stream(model="m", input=ASK) as events:
            final = await events.get_final_response()
        assert final.output_text == "one two"
        assert final.model_extra is not None
        assert final.model_extra["ramify"]["total_s"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_each_endpoint_passes_tags_to_an_engine_that_reads_them(tmp_path: Path, stream: bool) -> None:
    model = ScriptedModel(lambda _: "ok")
    async with served(model, tmp_path, forward_xargs=True, allow_fields=("vllm_xargs.theirs",)) as client:
        extra = {"deadline": 3000.0, "vllm_xargs": {"compound_id": "run", "compound_stage": 1, "theirs": "kept"}}
        for create in (
            client.chat.completions.create(model="m", messages=ASK, stream=stream, extra_body=extra),
            client.completions.create(model="m", prompt="hi", stream=stream, extra_body=extra),
            client.responses.create(model="m", input="hi", stream=stream, extra_body=extra),
        ):
            answer: Any = await create
            if stream:
                async for _ in answer:
                    pass
    assert len(model.calls) == 3
    for call in model.calls:
        xargs: Any = call.body["vllm_xargs"]
        assert {**xargs, "slo_deadline_s": 3000.0} == {**TAGS, "theirs": "kept"}
        assert 2900 < xargs["slo_deadline_s"] <= 3000
        assert "deadline" not in call.body


async def test_missing_responses_endpoint_is_named(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _: "ok", endpoints=(Endpoint.CHAT,))
    async with served(model, tmp_path) as client:
        with pytest.raises(openai.NotFoundError, match="has no /v1/responses") as caught:
            await client.responses.create(model="m", input="hi")
    assert caught.value.code == "endpoint_unsupported"


async def test_incomplete_typed_events_are_completed() -> None:
    """As llama.cpp sends them: no numbers, no items, no parts."""
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part: dict[str, object] = {"type": "output_text", "text": ""}
    whole = {
        **item,
        "status": "completed",
        "content": [{"type": "output_text", "annotations": [], "text": "one two"}],
    }
    head = {"id": "resp_1", "object": "response", "status": "in_progress"}
    events: list[dict[str, object]] = [
        {"type": "response.created", "response": head},
        {"type": "response.output_item.added", "item": item},
        {"type": "response.content_part.added", "item_id": "msg_1", "part": part},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "one"},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": " two"},
        {"type": "response.output_text.done", "item_id": "msg_1", "text": "one two"},
        {"type": "response.output_item.done", "item": whole},
        {"type": "response.completed", "response": {**head, "status": "completed", "model": "m", "output": [whole]}},
    ]
    sent = b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)
    sse = {"content-type": "text/event-stream"}
    engine = httpx.MockTransport(lambda _: httpx.Response(200, headers=sse, content=sent))
    app = create_gateway("http://engine", transport=engine)
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
    async with (
        openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=http) as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        said: list[Any] = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "one two"
    assert [event.snapshot for event in said if event.type == "response.output_text.delta"] == ["one", "one two"]
    assert [event.sequence_number for event in said] == list(range(8))


async def test_unknown_response_id_is_not_a_missing_endpoint() -> None:
    """As vLLM refuses one, which keeps none unless it is told to."""
    refusal = {"message": "Response with id 'resp_1' not found.", "param": "response_id", "code": 404}
    engine = httpx.MockTransport(lambda _: httpx.Response(404, json={"error": refusal}))
    app = create_gateway("http://engine", transport=engine)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=http)
        with pytest.raises(openai.NotFoundError, match="'resp_1' not found") as caught:
            await client.responses.create(model="m", input="hi", previous_response_id="resp_1")
    assert (caught.value.code, caught.value.param) == ("upstream_refused", "response_id")


async def test_official_client_does_not_retry_a_refusal(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _: "ok")
    async with served(model, tmp_path) as client:
        eager = client.with_options(max_retries=3)
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            await eager.chat.completions.create(model="m", messages=ASK, extra_body={"deadline": 0})
        assert (caught.value.code, caught.value.param) == ("deadline_infeasible", "deadline")
        body: Any = caught.value.body
        assert body["earliest_feasible_s"] > 0
        seen = await client.get("/ramify/requests", cast_to=httpx.Response)
    assert len(seen.json()["requests"]) == 1
    assert not model.calls


async def test_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    async with served(ScriptedModel(lambda _: "ok"), tmp_path, api_keys=("right",)) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=ASK)
        let_in = client.with_options(api_key="right")
        assert (await let_in.chat.completions.create(model="m", messages=ASK)).id == "scripted"


async def test_default_means_the_engines_model() -> None:
    model = ScriptedModel(lambda _: "ok")
    replica = Replica(0, 1, Upstream("http://engine/v1", transport=model), alias="theirs")
    http = httpx.AsyncClient(transport=httpx.ASGITransport(create_gateway([replica])))
    async with openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="none", http_client=http) as client:
        for name in ("default", "theirs", "another"):
            await client.chat.completions.create(model=name, messages=ASK)
    assert [call.body["model"] for call in model.calls] == ["theirs", "theirs", "another"]


TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}}


def _tool_stream() -> list[dict[str, object]]:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"at":"finish_reason"}'}}
    deltas: list[dict[str, object]] = [{"role": "assistant"}, {"tool_calls": [call]}, {"tool_calls": [rest]}]
    chunks: list[dict[str, object]] = [
        {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    return [*chunks, {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]


async def test_tools_and_schemas_pass_unchanged() -> None:
    got: list[dict[str, object]] = []
    sent = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in _tool_stream()) + b"data: [DONE]\n\n"

    def engine(request: httpx.Request) -> httpx.Response:
        got.append(json.loads(request.content))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=sent)

    app = create_gateway("http://engine", transport=httpx.MockTransport(engine))
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    async with openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="none", http_client=http) as client:
        stream = await client.chat.completions.create(
            model="m", messages=ASK, tools=TOOLS, response_format=SCHEMA, stream=True, extra_body={"deadline": 9}
        )
        chunks = [chunk async for chunk in stream]
    assert got == [{"model": "m", "messages": ASK, "tools": TOOLS, "response_format": SCHEMA, "stream": True}]
    *said, end = chunks
    assert end.choices[0].finish_reason == "tool_calls"
    calls = [call for chunk in said for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.function.arguments for call in calls if call.function] == ["", '{"at":"finish_reason"}']
    assert end.model_extra is not None and end.model_extra["ramify"]["met"] is True


def _llama_cpp(got: list[dict[str, object]], *, supports_tools: bool | None) -> Replica:
    """As it answers, with a template that says so of tools, or nothing."""

    def engine(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/props":
            caps = {} if supports_tools is None else {"supports_tools": supports_tools}
            return httpx.Response(200, json={"chat_template_caps": caps})
        got.append(json.loads(request.content))
        return httpx.Response(200, json={"id": "x", "choices": []})

    upstream = Upstream("http://engine/v1", transport=httpx.MockTransport(engine))
    return Replica(0, 1, upstream, EngineTraits(llama_cpp=True))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"type": "json_schema", "name": "a", "strict": True, "schema": {"type": "object"}},
            {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {"type": "object"}}},
        ),
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "text"}, None),
    ],
)
async def test_response_format_is_moved_where_llama_cpp_reads_it(asked: object, told: object) -> None:
    got: list[dict[str, object]] = []
    app = create_gateway([_llama_cpp(got, supports_tools=None)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        body = {"input": "hi", "text": {"format": asked}}
        await client.post("/responses", json=body)
        for wrong in ({**body, "response_format": {"its": 1}}, {"input": "hi", "text": {"format": "json"}}):
            assert (await client.post("/responses", json=wrong)).status_code == 400
    assert [body.get("response_format") for body in got] == [told]


FORCED = ["required", {"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize(
    ("choice", "supports_tools", "status"),
    [
        *((choice, False, 400) for choice in FORCED),
        *((choice, supports, 200) for choice in FORCED for supports in (True, None)),
        ("auto", False, 200),
        ("none", False, 200),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_required_tool_call_is_refused_if_the_template_has_no_tools(
    choice: object, supports_tools: bool | None, status: int, stream: bool
) -> None:
    got: list[dict[str, object]] = []
    app = create_gateway([_llama_cpp(got, supports_tools=supports_tools)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        body = {"messages": ASK, "tools": TOOLS, "tool_choice": choice, "stream": stream}
        response = await client.post("/chat/completions", json=body)
    assert len(got) == (status == 200)
    if status == 400:
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/completions", {"prompt": "hi"}),
        ("/responses", {"input": "hi"}),
        ("/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    ],
)
async def test_silent_streams_of_every_kind_get_comments(path: str, asked: dict[str, Any], tmp_path: Path) -> None:
    hold = asyncio.Event()

    async def held(_: object) -> str:
        await hold.wait()
        return "one two"

    async with ScriptedServer(ScriptedModel(held)) as engine:
        given = GatewaySettings(home=tmp_path, engines=(EngineSpec.parse(engine.base_url),), keepalive_s=0.1)
        async with (
            LocalGateway(given) as gateway,
            httpx.AsyncClient(base_url=gateway.base_url, timeout=60) as http,
            http.stream("POST", path, json={"model": "m", "stream": True, **asked}) as response,
        ):
            assert (response.status_code, response.headers["x-accel-buffering"]) == (200, "no")
            said = ""
            async for text in response.aiter_text():
                said += text
                if said.count(": waiting\n\n") >= 2:
                    hold.set()
    assert "one" in said


@pytest.mark.parametrize("begins", [True, False])
async def test_silent_streams_get_comments(tmp_path: Path, begins: bool) -> None:
    hold = asyncio.Event()

    async def held(_: object) -> str:
        await hold.wait()
        return "one two"

    model = ScriptedModel(held, faults=[] if begins else [Fault.CUT])
    async with ScriptedServer(model) as engine:
        given = GatewaySettings(home=tmp_path, engines=(EngineSpec.parse(engine.base_url),), keepalive_s=0.1)
        async with LocalGateway(given) as gateway, httpx.AsyncClient(base_url=gateway.base_url, timeout=60) as http:
            body = {"model": "m", "messages": ASK, "stream": True}
            async with http.stream("POST", "/chat/completions", json=body) as response:
                assert (response.status_code, response.headers["x-accel-buffering"]) == (200, "no")
                said = ""
                async for text in response.aiter_text():
                    said += text
                    if said.count(": waiting\n\n") >= 2:
                        hold.set()
    *_, last = [part for part in said.split("\n\n") if part and not part.startswith(":")]
    assert (last == "data: [DONE]") is begins
    assert ("upstream_failed" in last) is not begins
