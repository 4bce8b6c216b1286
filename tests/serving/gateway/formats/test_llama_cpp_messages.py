"""Messages that the embedded engine gets, and those that are refused with the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.formats.llama_cpp_messages import messages_for_llama_cpp

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def part(kind: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": kind, **more}]}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (None, "an object"),
        ([], "an object"),
        ({}, "role must be one of"),
        ({"role": ["user"], "content": "x"}, "role must be one of"),
        ({"role": "function", "name": "f", "content": "x"}, "role must be one of"),
        ({"role": "user"}, "content of role user"),
        ({"role": "user", "content": {}}, "content of role user"),
        ({"role": "tool", "content": None}, "content of role tool"),
        ({"role": "user", "content": ["x"]}, "with a type"),
        ({"role": "user", "content": [{"text": "x"}]}, "with a type"),
        (part("text"), "needs a text"),
        (part("refusal", text="x"), "needs a refusal"),
        (part("image_url", image_url={"url": "http://127.0.0.1:9/x"}), "images are not supported"),
        (part("video_url", video_url={"url": "x"}), "'video_url' is not supported"),
        (part("input_audio", input_audio={}), "'input_audio' is not supported"),
        (part("file", file={"file_id": "f"}), "'file' is not supported"),
        (part("input_text", text="x"), "'input_text' is not supported"),
        ({"role": "user", "content": "x", "name": 5}, "name must be a text"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "tool_call_id must be a text"),
        ({"role": "assistant", "content": "x", "reasoning_content": 5}, "reasoning_content must be a text"),
        ({"role": "assistant"}, "needs a content or tool_calls"),
        ({"role": "assistant", "content": None}, "needs a content or tool_calls"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "needs a content or tool_calls"),
        ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "audio"),
        ({"role": "assistant", "tool_calls": {}}, "must be a list"),
        ({"role": "assistant", "tool_calls": "x"}, "must be a list"),
        ({"role": "assistant", "tool_calls": [1]}, "each of tool_calls"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "each of tool_calls"),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": "f"}]}, "each of tool_calls"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}, "id of a tool call"),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}, "arguments"),
        ({"role": "assistant", "tool_calls": [{**CALL, "function": {"name": 5, "arguments": "{}"}}]}, "name"),
    ],
)
def test_what_cannot_be_read_is_refused(message: Any, said: str) -> None:
    with pytest.raises(ApiError, match=said) as caught:
        messages_for_llama_cpp([{"role": "user", "content": "hi"}, message])
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "user", "content": ""}, ""),
        ({"role": "developer", "content": []}, []),
        ({"role": "assistant", "content": "", "tool_calls": None}, ""),
        ({"role": "assistant", "tool_calls": [CALL]}, None),
        ({"role": "assistant", "content": None, "refusal": "no"}, "no"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, [{"type": "text", "text": "no"}]),
        (
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}]},
            [{"type": "text", "text": "1"}],
        ),
    ],
)
def test_what_can_be_read_is_passed_on(message: dict[str, Any], content: object) -> None:
    assert messages_for_llama_cpp([message]) == [{**message, "content": content}]
