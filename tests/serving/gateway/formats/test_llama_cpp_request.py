"""What the embedded engine gets of a request, and which fields are refused."""

from __future__ import annotations

from typing import Any

import pytest

from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.formats.apis import CHATS, MESSAGES, RESPONSES_API, TEXTS, Api, at_engine
from ramify.serving.gateway.formats.llama_cpp_request import (
    chat_for_llama_cpp,
    text_for_llama_cpp,
    without_prefill,
)
from ramify.serving.gateway.formats.messages import chat_of_messages
from ramify.serving.gateway.formats.responses import chat_of_response
from ramify.serving.protocol.agent_hints import without_hints

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _shaped(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"guided_json": {}}, "guided_json"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"echo": True}, "echo"),
        ({"cache_prompt": True}, "cache_prompt"),
        ({"id_slot": 0}, "id_slot"),
        ({"lora": [{"id": 0}]}, "lora"),
        ({"invented": 1}, "invented"),
        ({"nvext": {"agent_hints": {}, "top_k": 3}}, "nvext"),
        ({"nvext": 1}, "nvext"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**32 + 3}, "max_tokens"),  # llama.cpp would read 3
        ({"max_completion_tokens": 2**31}, "max_completion_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a", 3]}, "stop"),
        ({"messages": [{"role": "alien", "content": "hi"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"n": True}, "n"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"presence_penalty": "x"}, "presence_penalty"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias"),
        ({"stream_options": 5}, "stream_options"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "schema": {"type": "boolean"}}}, "response_format"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format"),
        ({"response_format": {"type": "text", "schema": {"type": "boolean"}}}, "response_format"),
        ({"messages": [1]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
        (_shaped(False), "response_format"),
        (_shaped("x", strict=False), "response_format"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": 3, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
        (_shaped({"type": "number", "minimum": 1}), "response_format"),
        ({"json_schema": {"not": {}}}, "json_schema"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
            "tools",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools"),
        ({"seed": "abc"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"top_k": "40"}, "top_k"),
        ({"repeat_penalty": "much"}, "repeat_penalty"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
        ({"grammar": ["root"]}, "grammar"),
        ({**_shaped({}), "json_schema": {}}, "response_format"),
        ({**_shaped({}), "grammar": "root ::= [a]"}, "response_format"),
        ({"json_schema": {}, "grammar": "root ::= [a]"}, "json_schema"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": [[{}, 1]]}, "logit_bias"),
        ({"logit_bias": [[-1, 1]]}, "logit_bias"),
        ({"logit_bias": [[True, 1]]}, "logit_bias"),
        ({"samplers": {}}, "samplers"),
        ({"samplers": ["top_k", 1]}, "samplers"),
        ({"mirostat": 7}, "mirostat"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"typical_p": -5}, "typical_p"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"reasoning_format": "x"}, "reasoning_format"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"tools": [1]}, "tools"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": 5}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools"),
        (_shaped({}, strict=1), "response_format"),
        (_shaped({}, name=5), "response_format"),
    ],
)
def test_what_the_engine_would_not_do_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_for_llama_cpp({**ASK, **more})
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(f"{param}:")


def test_values_that_the_engine_knows_are_passed_on() -> None:
    known = {"stop": "a", "n": 2, "temperature": 0, "top_p": 1, "logprobs": True, "top_logprobs": 2, "tools": [TOOL]}
    for choice in ("auto", "none", "required", {"type": "function", "function": {"name": "f"}}):
        body = {**ASK, **known, "tool_choice": choice}
        assert chat_for_llama_cpp(body) == body
    for bias in ({}, {"5": -100, " the": 0.5}, [[5, 1], ["a", False]]):
        assert chat_for_llama_cpp({**ASK, "logit_bias": bias})["logit_bias"] == bias
    for name in ("repeat_last_n", "dry_penalty_last_n"):
        assert chat_for_llama_cpp({**ASK, name: -1})[name] == -1  # all of the context, which is the default
    nothing = {"type": "text", "json_schema": None, "schema": None}  # null is what is not there
    assert chat_for_llama_cpp({**ASK, "response_format": nothing})["response_format"]["type"] == "text"
    for text in ({"prompt": ["a", "b"], "logprobs": 2}, {"prompt": [1, 2], "logprobs": True}):
        assert text_for_llama_cpp(text) == text
    for shape in ({"response_format": {"type": "json_object"}}, {"json_schema": {}, "grammar": "root ::= [a]"}):
        with pytest.raises(ApiError, match="json_schema"):
            text_for_llama_cpp({"prompt": "a", **shape})
    for odd in ({"prompt_string": "a"}, 5, True, [None], [1.5], [[True]], ["a", {}], [["a", {}]]):
        with pytest.raises(ApiError, match="prompt: must be"):
            text_for_llama_cpp({"prompt": odd})
    assert text_for_llama_cpp({"prompt": ["a", [1, "b"], "c"]})["prompt"]
    assert text_for_llama_cpp({"prompt": "a", "n": 2, "best_of": 2}) == {"prompt": "a", "n": 2}
    for best in ({"best_of": 2}, {"n": 2, "best_of": 3}):
        with pytest.raises(ApiError, match="best_of"):
            text_for_llama_cpp({"prompt": "a", **best})
    assert text_for_llama_cpp({"prompt": "a", "cache_salt": "x"}) == {"prompt": "a", "cache_prompt": False}
    for missing in ({}, {"prompt": []}, {"prompt": ""}, {"prompt": ["a", ""]}, {"prompt": [[1], []]}):
        with pytest.raises(ApiError, match="prompt: "):
            text_for_llama_cpp(missing)


@pytest.mark.parametrize(
    ("api", "body", "param"),
    [
        (RESPONSES_API, {"input": None}, "input"),
        (RESPONSES_API, {"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
        (RESPONSES_API, {"input": "hi", "text": {"format": {"type": "json_schema", "name": "a"}}}, "text"),
        (RESPONSES_API, {"input": "hi", "tool_choice": "required"}, "tool_choice"),
        (MESSAGES, {**ASK, "max_tokens": 1, "stop_sequences": [""]}, "stop_sequences"),
        (RESPONSES_API, {"input": "hi", "response_format": {"type": "text"}}, "response_format"),
        (RESPONSES_API, {"input": "hi", "max_tokens": 5}, "max_tokens"),
        (RESPONSES_API, {"input": "hi", "metadata": 5}, "metadata"),
        (RESPONSES_API, {"input": "hi", "metadata": {"a": 1}}, "metadata"),
        (RESPONSES_API, {"input": "hi", "reasoning": 5}, "reasoning"),
        (RESPONSES_API, {"input": "hi", "truncation": "maybe"}, "truncation"),
        (RESPONSES_API, {"input": "hi", "store": "yes"}, "store"),
        (RESPONSES_API, {"input": "hi", "user": 5}, "user"),
        (RESPONSES_API, {"input": 5}, "input"),
        (RESPONSES_API, {"input": [{"role": "user"}]}, "input"),
        (
            RESPONSES_API,
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input",
        ),
        (MESSAGES, {**ASK, "max_tokens": 1, "stop": ["a"]}, "stop"),
        (MESSAGES, {**ASK, "max_tokens": 1, "metadata": 5}, "metadata"),
        (MESSAGES, {**ASK, "max_tokens": 1, "metadata": {"user_id": 5}}, "metadata"),
        (MESSAGES, {**ASK, "max_tokens": 1, "thinking": 5}, "thinking"),
        (MESSAGES, {**ASK, "max_tokens": 1, "output_config": 5}, "output_config"),
    ],
)
def test_fields_have_the_names_of_the_clients_api(api: Api, body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        at_engine(api, llama_cpp=True).request(body)
    told = api.named(caught.value, body)
    assert told.param == param and told.message.startswith(f"{param}: ")


def test_fields_without_effect_are_left_out() -> None:
    idle = {"user": "me", "store": True, "modalities": ["text"], "best_of": 1, "echo": False, "functions": None}
    idle |= {"priority": 0, "id_slot": -1, "slot_id": -1}
    assert chat_for_llama_cpp({**ASK, **idle, "seed": 1}) == {**ASK, "seed": 1}
    assert text_for_llama_cpp({"prompt": "a", "suffix": "", "metadata": {}}) == {"prompt": "a"}


def test_empty_lists_ask_for_nothing() -> None:
    """Clients send them where they have nothing to send, as Anthropic's and OpenAI's APIs allow."""
    empty: dict[str, Any] = {"functions": [], "tools": [], "invented": []}
    assert chat_for_llama_cpp({**ASK, **empty, "seed": 1}) == {**ASK, "seed": 1}
    assert chat_of_messages({**ASK, "max_tokens": 1, "mcp_servers": [], "tools": []})["max_tokens"] == 1
    assert chat_of_response({"input": "hi", "tools": [], "invented": []}) == {"messages": ASK["messages"]}
    with pytest.raises(ApiError, match="messages"):
        chat_for_llama_cpp({**ASK, "messages": []})


def test_null_is_no_shape_of_an_answer() -> None:
    """llama.cpp would take a null grammar for one that allows everything, and a null schema for any object."""
    schema = {"type": "integer"}
    assert text_for_llama_cpp({"prompt": "a", "json_schema": schema, "grammar": None}) == {
        "prompt": "a",
        "json_schema": schema,
    }
    assert text_for_llama_cpp({"prompt": "a", "json_schema": None}) == {"prompt": "a"}


def test_tools_that_are_not_strict_promise_nothing() -> None:
    """So they are not refused; what the engine would misread is left out."""
    given = {"type": "object", "properties": {"a": {"type": "string", "format": "uri", "pattern": "(?=x)"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": given}}
    body: Any = chat_for_llama_cpp({**ASK, "tools": [tool]})
    assert body["tools"][0]["function"]["parameters"]["properties"] == {"a": {"type": "string", "format": "uri"}}
    assert given["properties"]["a"]["pattern"] == "(?=x)"
    chat_for_llama_cpp({**ASK, **_shaped({"type": "number", "minimum": 1}, strict=False)})


def test_schema_true_is_any_json() -> None:
    body: Any = chat_for_llama_cpp({**ASK, **_shaped(True)})
    assert body["response_format"]["json_schema"]["schema"] == {}


def test_patterns_are_translated() -> None:
    body: Any = chat_for_llama_cpp({**ASK, **_shaped({"type": "string", "pattern": r"^\d$"})})
    assert body["response_format"]["json_schema"]["schema"]["pattern"] == r"^[\x30-\x39]$"


@pytest.mark.parametrize(
    "begun", ["The city of", [{"type": "text", "text": "The city"}, {"type": "text", "text": " of"}]]
)
def test_the_beginning_of_an_answer_that_the_client_gave_is_not_repeated(begun: object) -> None:
    asked = {"messages": [*ASK["messages"], {"role": "assistant", "content": begun}]}
    said = [{"message": {"content": text}} for text in ("The city of Bern", "Bern", None)]
    cut: Any = without_prefill({"id": "a", "choices": said}, asked)
    assert [choice["message"]["content"] for choice in cut["choices"]] == [" Bern", "Bern", None]
    assert without_prefill({"choices": said}, ASK) == {"choices": said}


@pytest.mark.parametrize(
    ("api", "ask"),
    [
        (CHATS, ASK),
        (TEXTS, {"model": "m", "prompt": "hi"}),
        (MESSAGES, {**ASK, "max_tokens": 4}),
        (RESPONSES_API, {"model": "m", "input": "hi"}),
    ],
)
@pytest.mark.parametrize(
    "hint",
    [
        {"nvext": {"agent_hints": {"priority": 3}, "agent_context": {"session_id": "s"}}},
        {"nvext": {}},
        {"agent_hint": {"session_id": "s"}},
        {"agent_hint": "what nobody can read"},
    ],
)
def test_hints_of_other_systems_are_not_refused(api: Api, ask: dict[str, Any], hint: dict[str, Any]) -> None:
    """The gateway reads them. No engine needs to."""
    body = at_engine(api, llama_cpp=True).request({**ask, **hint})
    assert without_hints(body, None) == dict(at_engine(api, llama_cpp=True).request(ask))


@pytest.mark.parametrize(("api", "body"), [(CHATS, ASK), (TEXTS, {"prompt": "a"}), (RESPONSES_API, {"input": "a"})])
def test_a_call_with_a_salt_is_answered_without_the_cache(api: Api, body: dict[str, Any]) -> None:
    """A gateway in front sends salts, to keep its clients apart."""
    at = at_engine(api, llama_cpp=True)
    assert at.request({**body, "cache_salt": "x"}) == {**at.request(body), "cache_prompt": False}
    with pytest.raises(ApiError, match="cache_prompt"):
        at.request({**body, "cache_prompt": False})
