"""Responses that are made of chats, held strictly against the official client's types."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":'}}
DELTAS: list[dict[str, object]] = [
    {"role": "assistant", "content": None},
    {"reasoning_content": "Hm"},
    {"reasoning_content": "m."},
    {"content": "Let me "},
    {"content": "look."},
    {"tool_calls": [CALL]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]},
    {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "look", "arguments": "{}"}}]},
]


def _chunk(delta: dict[str, object], end: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": end}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 9, "model": "m", "choices": [choice]}


def _engine(got: list[dict[str, Any]], finish: str) -> httpx.MockTransport:
    """The embedded engine, as far as this test needs it."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/props":
            return httpx.Response(404)
        body = json.loads(request.content)
        got.append(body)
        if not body.get("stream"):
            calls = [{"id": "call_1", "function": {"name": "look", "arguments": '{"at":"x"}'}}]
            message = {
                "role": "assistant",
                "reasoning_content": "Hmm.",
                "content": "Let me look.",
                "tool_calls": calls,
            }
            choices = [{"index": 0, "message": message, "finish_reason": finish}]
            whole = {"id": "chatcmpl-1", "created": 9, "model": "m", "choices": choices, "usage": USAGE}
            return httpx.Response(200, json=whole)
        chunks = [*map(_chunk, DELTAS), _chunk({}, finish), {**_chunk({}), "choices": [], "usage": USAGE}]
        sent = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks) + b"data: [DONE]\n\n"
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=sent)

    return httpx.MockTransport(answer)


def _client(got: list[dict[str, Any]], finish: str = "tool_calls") -> httpx.AsyncClient:
    upstream = Upstream("http://engine/v1", transport=_engine(got, finish))
    app = create_gateway([Replica(0, 1, upstream, EngineTraits(llama_cpp=True))])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1")


async def test_every_event_is_as_the_official_client_has_it() -> None:
    from openai.types.responses import Response, ResponseStreamEvent

    async with _client([]) as client:
        streamed = await client.post("/responses", json={"input": "hi", "stream": True})
        whole = await client.post("/responses", json={"input": "hi"})
    said = [line[6:] for line in streamed.text.split("\n") if line.startswith("data: ")]
    event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    events = [event.validate_json(one, strict=True) for one in said]
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert [one.type for one in events][:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    final = events[-1].response
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (final.output[0].content[0].text, final.output_text) == ("Hmm.", "Let me look.")
    assert [(call.call_id, call.arguments) for call in final.output[2:]] == [
        ("call_1", '{"at":"x"}'),
        ("call_2", "{}"),
    ]
    done = [one.item for one in events if one.type == "response.output_item.done"]
    assert done == final.output
    answer = Response.model_validate_json(whole.text, strict=True)
    assert answer.output[:3] == final.output[:3]
    assert answer.usage is not None and (answer.usage.input_tokens, answer.usage.total_tokens) == (7, 12)
    assert answer.usage.input_tokens_details.cached_tokens == 3
    assert final.model_extra["ramify"]["met"] is None


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [("length", "incomplete", "max_output_tokens"), ("content_filter", "incomplete", "content_filter")],
)
async def test_answer_that_was_cut_is_incomplete(finish: str, status: str, reason: str) -> None:
    async with _client([], finish) as client:
        streamed = await client.post("/responses", json={"input": "hi", "stream": True})
        whole = (await client.post("/responses", json={"input": "hi"})).json()
    last = json.loads([line[6:] for line in streamed.text.split("\n") if line.startswith("data: ")][-1])
    assert last["type"] == f"response.{status}"
    for answer in (whole, last["response"]):
        assert (answer["status"], answer["incomplete_details"]) == (status, {"reason": reason})
        assert [item["status"] for item in answer["output"]][-1] == "incomplete"


async def test_request_becomes_a_chat() -> None:
    got: list[dict[str, Any]] = []
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look "}] * 2},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "nothing"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a wall"}]},
    ]
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
    body = {
        "model": "m",
        "instructions": "You look.",
        "input": items,
        "tools": [tool],
        "tool_choice": {"type": "function", "name": "look"},
        "max_output_tokens": 9,
        "store": True,
        "deadline": 500,
    }
    async with _client(got) as client:
        assert (await client.post("/responses", json=body)).status_code == 200
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    function = {name: value for name, value in tool.items() if name != "type"}
    assert got == [
        {
            "model": "m",
            "max_tokens": 9,
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "messages": [
                {"role": "system", "content": "You look."},
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Look Look "},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call}]},
                {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
                {"role": "tool", "tool_call_id": "c2", "content": "a wall"},
            ],
        }
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input"),
        ({"invented": 1}, "invented"),
    ],
)
async def test_what_a_chat_cannot_say_is_refused_by_name(body: dict[str, object], param: str) -> None:
    got: list[dict[str, Any]] = []
    async with _client(got) as client:
        response = await client.post("/responses", json={"input": "hi", **body})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not got
