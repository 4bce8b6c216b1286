"""Several answers in one stream of chunks, in an order that OpenAI's clients can take."""

from __future__ import annotations

import json
from typing import Any

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from ramify.serving.gateway.dialects import CHAT
from ramify.serving.gateway.formats.apis import ChunkFormat

LEDGER = {"queue_s": 0.5}


def _chunk(index: int, text: str | None, finish: str | None = None) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _told(chunks: list[dict[str, Any]], **asked: int) -> list[dict[str, Any]]:
    """The events that a client gets, without the last one, which is no JSON."""
    format_ = ChunkFormat(asked)
    said = b"".join(format_.event(None, chunk, CHAT.read(chunk)) for chunk in chunks) + format_.end(LEDGER)
    *events, done, _ = said.split(b"\n\n")
    assert done == b"data: [DONE]"
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def test_no_answer_begins_before_those_with_lower_numbers() -> None:
    came = [
        *(_chunk(2, "c"), _chunk(1, "b"), _chunk(1, None, "length"), _chunk(0, "a"), _chunk(2, "cc")),
        *(_chunk(0, None, "stop"), _chunk(2, None, "length")),
    ]
    told = _told(came)
    state: Any = ChatCompletionStreamState(input_tools=openai.NOT_GIVEN, response_format=openai.NOT_GIVEN)
    for chunk in told:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    assert [choice.message.content for choice in state.current_completion_snapshot.choices] == ["a", "b", "ccc"]
    assert len(told) == len(came) and [chunk.get("ramify") for chunk in told] == [*[None] * 6, LEDGER]


def test_answer_whose_predecessor_never_begins_is_told_at_the_end() -> None:
    told = _told([_chunk(1, "b"), _chunk(1, None, "length")])
    assert [chunk["choices"][0]["delta"] for chunk in told] == [{"content": "b"}, {}]


def test_the_usage_of_several_answers_is_one_chunk_at_the_end() -> None:
    def usage(made: int) -> dict[str, Any]:
        counted = {"completion_tokens": made, "prompt_tokens": 5, "total_tokens": 5 + made}
        return {**_chunk(0, None), "choices": [], "usage": counted}

    came = [
        _chunk(0, "a"),
        _chunk(1, "b"),
        _chunk(0, None, "stop"),
        usage(2),
        _chunk(1, "bb"),
        _chunk(1, None, "stop"),
    ]
    told = _told([*came, usage(3)], n=2)
    assert [chunk for chunk in told if not chunk["choices"]] == told[-1:]
    assert told[-1]["usage"] == {"completion_tokens": 5, "prompt_tokens": 5, "total_tokens": 10}
    assert told[-1]["ramify"] == LEDGER
