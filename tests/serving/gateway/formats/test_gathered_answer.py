from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway

HEAD = {"id": "chatcmpl-1", "created": 9, "model": "m"}


def _chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}


def _usage(kind: str, made: int, read: int) -> dict[str, Any]:
    usage = {"completion_tokens": made, "prompt_tokens": read, "total_tokens": made + read}
    return {**HEAD, "object": kind, "choices": [], "usage": usage}


def _call(more: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, **more}]}


CHAT = [
    _chunk(0, {"role": "assistant", "content": None}),
    _chunk(1, {"role": "assistant", "content": None}),
    _chunk(1, {"reasoning_content": "Hm"}),
    _chunk(0, {"content": "Hel"}),
    _chunk(1, _call({"id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}})),
    _chunk(0, {"content": "lo"}),
    _chunk(1, _call({"function": {"arguments": '{"a":'}})),
    _chunk(1, _call({"function": {"arguments": "1}"}})),
    _chunk(0, {}, "stop"),
    _usage("chat.completion.chunk", 2, 7),
    _chunk(1, {}, "tool_calls"),
    _usage("chat.completion.chunk", 9, 7),
]


def _text(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    entry = {"token": text, "logprob": -1.0, "top_logprobs": [{"token": text, "logprob": -1.0}]}
    choice = {"index": index, "text": text, "finish_reason": finish, "logprobs": {"content": [entry]}}
    return {**HEAD, "object": "text_completion", "choices": [choice]}


TEXT = [
    _text(0, "a"),
    _text(1, "c"),
    _text(0, "b", "length"),
    _usage("text_completion", 2, 3),
    _text(1, "d", "length"),
    _usage("text_completion", 2, 40),
]


async def _answer(
    path: str, body: dict[str, Any], chunks: list[dict[str, Any]], end: bytes = b"data: [DONE]\n\n"
) -> tuple[httpx.Response, list[dict[str, Any]]]:
    got: list[dict[str, Any]] = []

    def engine(request: httpx.Request) -> httpx.Response:
        got.append(json.loads(request.content))
        sent = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks) + end
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=sent)

    upstream = Upstream("http://engine/v1", transport=httpx.MockTransport(engine))
    app = create_gateway([Replica(0, 1, upstream, EngineTraits(llama_cpp=True))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        return await client.post(path, json=body), got


async def test_several_chats_count_the_tokens_of_all() -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "n": 2}
    answer, got = await _answer("/chat/completions", asked, CHAT)
    said = ChatCompletion.model_validate_json(answer.text, strict=True)
    assert (got[0]["stream"], got[0]["stream_options"]) == (True, {"include_usage": True})
    assert said.usage is not None
    assert (said.usage.completion_tokens, said.usage.prompt_tokens, said.usage.total_tokens) == (11, 7, 18)
    first, second = said.choices
    assert (first.index, first.message.content, first.finish_reason) == (0, "Hello", "stop")
    (call,) = second.message.tool_calls or ()
    assert (call.id, call.type) == ("c1", "function")
    assert call.type == "function" and call.function.arguments == '{"a":1}' and call.function.name == "look"
    assert (second.message.content, second.finish_reason) == (None, "tool_calls")
    assert answer.json()["choices"][1]["message"]["reasoning_content"] == "Hm"
    assert answer.json()["ramify"]["met"] is None


async def test_several_prompts_count_the_tokens_of_all() -> None:
    answer, _ = await _answer("/completions", {"prompt": ["x", "y"], "logprobs": 1}, TEXT)
    said = Completion.model_validate_json(answer.text, strict=True)
    assert [choice.text for choice in said.choices] == ["ab", "cd"]
    assert [choice.logprobs.tokens for choice in said.choices if choice.logprobs] == [["a", "b"], ["c", "d"]]
    assert said.usage is not None
    assert (said.usage.completion_tokens, said.usage.prompt_tokens, said.usage.total_tokens) == (4, 43, 47)


@pytest.mark.parametrize("end", [b"", b'data: {"error": {"message": "no"}}\n\n'])
async def test_a_stream_that_breaks_off_is_no_answer(end: bytes) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "n": 2}
    answer, _ = await _answer("/chat/completions", asked, CHAT[:5], end)
    assert answer.status_code == 502 and "error" in answer.json()
