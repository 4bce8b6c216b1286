"""`/v1/messages` with the official Anthropic client, in front of an engine that speaks chats."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.formats.messages import chat_of_messages
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import Fault, ScriptedModel
from ramify.serving.types import ChatResult

pytestmark = [
    pytest.mark.skipif(find_spec("anthropic") is None, reason="the official Anthropic client is not installed"),
    pytest.mark.skipif(
        find_spec("httpx2") is None, reason="the Anthropic client before version 2 has another transport"
    ),
]  # both are imported by what uses them: that takes two seconds, and every process of a test run collects this file
ASK: list[Any] = [{"role": "user", "content": "hi there"}]
DARK = {"type": "text", "text": "dark"}
TOOL: Any = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}, "strict": True}


@asynccontextmanager
async def asked_of(engine: httpx.AsyncBaseTransport, key: str = "none", **options: Any) -> AsyncIterator[Any]:
    import anthropic
    import httpx2

    app = create_gateway("http://engine", transport=engine, **options)
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    async with (
        http,
        anthropic.AsyncAnthropic(base_url="http://gateway", api_key=key, http_client=http, max_retries=0) as client,
    ):
        yield client


def _engine(got: list[dict[str, Any]], deltas: list[dict[str, Any]], finish: str) -> httpx.MockTransport:
    """Streams these deltas, whoever asks for what."""

    def chunk(delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta, "finish_reason": end}]
        return {"id": "chatcmpl-1", "created": 9, "model": "m", "choices": choices}

    def answer(request: httpx.Request) -> httpx.Response:
        got.append(json.loads(request.content))
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
        chunks = [*map(chunk, deltas), chunk({}, finish), {**chunk({}), "choices": [], "usage": usage}]
        sent = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks) + b"data: [DONE]\n\n"
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=sent)

    return httpx.MockTransport(answer)


async def test_message_whole_and_streamed() -> None:
    model = ScriptedModel(lambda request: f"{request.messages[0].content} one two")
    asked: Any = {"model": "m", "max_tokens": 9, "messages": ASK, "system": [{"type": "text", "text": "Count."}]}
    async with asked_of(model) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            text = [piece async for piece in stream.text_stream]
            final = await stream.get_final_message()
    assert (whole.content[0].text, whole.stop_reason, whole.role) == ("Count. one two", "end_turn", "assistant")
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (3, 3)
    assert whole.ramify["met"] is None
    assert "".join(text) == final.content[0].text == "Count. one two"
    assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("end_turn", 3, 3)


async def test_answer_at_its_limit_says_so() -> None:
    cut = ChatResult("one two", "length", "m", prompt_tokens=2, completion_tokens=2)
    async with asked_of(ScriptedModel(lambda _: cut)) as client:
        assert (await client.messages.create(model="m", max_tokens=2, messages=ASK)).stop_reason == "max_tokens"
        async with client.messages.stream(model="m", max_tokens=2, messages=ASK) as stream:
            assert (await stream.get_final_message()).stop_reason == "max_tokens"


async def test_thoughts_and_tool_calls_stream_as_blocks() -> None:
    calls = [
        {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"at":'}},
        {"index": 0, "function": {"arguments": '"x"}'}},
        {"index": 1, "id": "c2", "function": {"name": "look", "arguments": ""}},
    ]
    deltas: list[dict[str, Any]] = [{"reasoning": "Hm"}, {"content": "Well."}, *({"tool_calls": [c]} for c in calls)]
    got: list[dict[str, Any]] = []
    async with asked_of(_engine(got, deltas, "tool_calls")) as client:
        choice: Any = {"type": "any", "disable_parallel_tool_use": True}
        async with client.messages.stream(
            model="m", max_tokens=9, messages=ASK, tools=[TOOL], tool_choice=choice, stop_sequences=["END"]
        ) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in final.content[2:]] == [{"at": "x"}, {}]
    assert (final.stop_reason, final.usage.input_tokens, final.usage.cache_read_input_tokens) == ("tool_use", 4, 3)
    kinds = [event.type for event in events]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    function = {"name": "look", "description": "Look.", "parameters": {"type": "object"}, "strict": True}
    assert got == [
        {
            "model": "m",
            "max_tokens": 9,
            "messages": ASK,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stop": ["END"],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
    ]


async def test_results_of_tools_become_messages_of_their_own() -> None:
    got: list[dict[str, Any]] = []
    image = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    said: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image", "source": image}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [DARK, {"type": "image", "source": image}],
                    "is_error": True,
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    async with asked_of(_engine(got, [{"content": "ok"}], "stop")) as client:
        edits = {
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
        }  # Claude Code's
        stream = await client.messages.create(model="m", max_tokens=9, messages=said, stream=True, extra_body=edits)
        assert [event.type async for event in stream][-1] == "message_stop"
    function = {"name": "look", "arguments": '{"at": "x"}'}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert got[0].keys() == {"model", "max_tokens", "messages", "stream", "stream_options"}
    assert got[0]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, picture]},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Error: dark"},
        {"role": "user", "content": [picture, {"type": "text", "text": "Go on."}]},
    ]


def test_turns_of_one_speaker_are_one_and_a_later_system_message_is_the_users() -> None:
    """As Claude Code sends them; many chat templates refuse a system message in the middle, or two turns in a row."""
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "system", "content": "Today is Monday."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "dark"}]},
        {"role": "system", "content": [{"type": "text", "text": "Hurry."}]},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": "It "},
        {"role": "assistant", "content": "is"},
    ]
    body: Any = chat_of_messages({"max_tokens": 1, "system": "You look.", "messages": said})
    assert [(one["role"], one["content"]) for one in body["messages"]] == [
        ("system", "You look.\nBe brief."),
        ("user", "hi\nToday is Monday."),
        ("assistant", None),
        ("tool", "dark"),
        ("user", "Hurry.\nGo on."),
        ("assistant", "It is"),
    ]


async def test_tags_reach_the_scheduler_and_refusals_have_anthropics_shape() -> None:
    import anthropic

    model = ScriptedModel(lambda _: "ok")
    async with asked_of(model, forward_xargs=True) as client:
        tags = {"deadline": 3000.0, "vllm_xargs": {"compound_id": "run"}}
        await client.messages.create(model="m", max_tokens=9, messages=ASK, extra_body=tags)
        xargs: Any = model.calls[0].body["vllm_xargs"]
        assert xargs["compound_id"] == "run" and 2900 < xargs["slo_deadline_s"] <= 3000
        with pytest.raises(anthropic.UnprocessableEntityError) as caught:
            await client.messages.create(model="m", max_tokens=9, messages=ASK, extra_body={"deadline": 0})
        body: Any = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert (body["error"]["code"], body["request_id"]) == ("deadline_infeasible", caught.value.request_id)
        assert body["error"]["earliest_feasible_s"] > 0


async def test_errors_have_anthropics_shape() -> None:
    import anthropic

    model = ScriptedModel(lambda _: "ok", faults=[Fault.BUSY_429, Fault.CUT])
    async with asked_of(model, key="ours", api_keys=["ours"]) as client:
        with pytest.raises(anthropic.RateLimitError) as busy:
            await client.messages.create(model="m", max_tokens=9, messages=ASK)
        assert busy.value.body["error"]["type"] == "rate_limit_error"
        assert busy.value.response.headers["retry-after"] == "1"
        with pytest.raises(anthropic.APIStatusError) as broken:
            async with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
                await stream.get_final_message()
        assert broken.value.body["error"]["type"] == "api_error"
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="wrong").messages.create(model="m", max_tokens=9, messages=ASK)
        with pytest.raises(anthropic.NotFoundError, match="has no /v1/messages/count_tokens"):
            await client.messages.count_tokens(model="m", messages=ASK)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages"),
        ({"messages": [{"role": "system", "content": "hi"}]}, "messages"),  # and nothing else
        ({"messages": [{"role": "alien", "content": "hi"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"mcp_servers": [{"type": "url", "url": "http://a", "name": "a"}]}, "mcp_servers"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tool_choice": {"type": "all"}}, "tool_choice"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"system": 5}, "system"),
    ],
)
async def test_what_a_chat_cannot_say_is_refused_by_name(body: dict[str, object], param: str) -> None:
    model = ScriptedModel(lambda _: "never")
    app = create_gateway("http://engine", transport=model)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        response = await client.post("/messages", json={"model": "m", "max_tokens": 9, "messages": ASK, **body})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not model.calls


async def test_models_are_listed_page_by_page() -> None:
    import anthropic
    from anthropic.types import ModelInfo

    ids = ["c", "b", "a"]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"object": "list", "data": [{"id": one, "created": 86_400} for one in ids]})

    async with asked_of(httpx.MockTransport(answer)) as client:
        raw = await client.models.with_raw_response.list()
        one = json.loads(await raw.text())
        assert (one["first_id"], one["last_id"], one["has_more"]) == ("c", "a", False)
        for info in one["data"]:
            ModelInfo.model_validate_json(json.dumps(info), strict=True)
        assert one["data"][0]["created_at"] == "1970-01-02T00:00:00Z"
        assert [info.id async for info in client.models.list(limit=2)] == ids
        assert [info.id async for info in client.models.list(limit=1, before_id="a")] == ["b", "c"]
        assert (await client.models.list(lifecycle=["retired"])).data == []
        assert (await client.models.retrieve("b")).display_name == "b"
        for refused in (
            client.models.retrieve("z"),
            client.models.list(after_id="z"),
            client.models.list(limit=0),
            client.models.list(after_id="a", before_id="b"),
        ):
            with pytest.raises(anthropic.APIStatusError) as caught:
                await refused
            assert caught.value.body["type"] == "error"
