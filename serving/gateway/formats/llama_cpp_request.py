"""A request as the embedded engine gets it: an allow-list of fields, and shapes that it enforces.

llama.cpp ignores fields that it does not know, and has fields of its own that reach beyond the call (its cache, its
slots). So every field is passed on, left out because it changes no answer, or refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from ramify.serving.gateway.errors import bad_request
from ramify.serving.gateway.formats.field_values import check_prompt_field, check_values
from ramify.serving.gateway.formats.pattern_translation import UnsupportedPattern
from ramify.serving.gateway.formats.schema_keywords import (
    NotEnforced,
    check_schema,
    with_patterns,
    with_plain_references,
)
from ramify.serving.protocol.tags import is_tag

Json = Mapping[str, object]
_SAMPLING = frozenset(
    {
        "dry_allowed_length", "dry_base", "dry_multiplier", "dry_penalty_last_n", "dry_sequence_breakers",
        "dynatemp_exponent", "dynatemp_range", "frequency_penalty", "ignore_eos", "logit_bias", "min_keep", "min_p",
        "mirostat", "mirostat_eta", "mirostat_tau", "presence_penalty", "repeat_last_n", "repeat_penalty", "samplers",
        "seed", "temperature", "top_k", "top_n_sigma", "top_p", "typical_p", "xtc_probability", "xtc_threshold",
    }
)  # fmt: skip
_BOTH = _SAMPLING | {
    "grammar", "json_schema", "logprobs", "max_tokens", "model", "n", "n_probs", "stop", "stream", "stream_options",
}  # fmt: skip
_CHAT = _BOTH | {
    "add_generation_prompt", "chat_template_kwargs", "continue_final_message", "max_completion_tokens", "messages",
    "parallel_tool_calls", "reasoning_format", "response_format", "tool_choice", "tools", "top_logprobs",
}  # fmt: skip
_TEXT = _BOTH | {"prompt"}
_WITHOUT_EFFECT = frozenset(
    {
        "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort",
        "safety_identifier", "service_tier", "store", "user", "verbosity",
    }
)  # fmt: skip
_SAYS_NOTHING: Mapping[str, tuple[object, ...]] = {  # values that ask for what the engine does anyway
    "best_of": (1,),
    "echo": (False,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),  # of a text completion
    "suffix": ("",),
}
_INSTEAD = {"response_format": "give json_schema instead"}
_ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_for_llama_cpp(asked: Json) -> Json:
    """A chat's body. Raises ApiError, which names the field."""
    check_prompt_field("messages", asked.get("messages"))
    messages = asked.get("messages")
    for message in messages if isinstance(messages, list) else ():
        role = message.get("role") if isinstance(message, Mapping) else None
        if isinstance(message, Mapping) and role not in _ROLES:
            raise bad_request(
                "messages", f"messages: role must be one of {', '.join(_ROLES)}, not {str(role)[:60]!r}"
            )
    return _checked(asked, _CHAT)


def text_for_llama_cpp(asked: Json) -> Json:
    """A text completion's body. Raises ApiError, which names the field."""
    check_prompt_field("prompt", asked.get("prompt"))
    return _checked(asked, _TEXT)


def without_prefill(answer: Json, body: Json) -> Json:
    """A whole answer without the beginning that the client gave it, as the last message, by the assistant: llama.cpp
    repeats that in whole answers, though not in streams."""
    messages, choices = body.get("messages"), answer.get("choices")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, Mapping) or last.get("role") != "assistant" or not isinstance(choices, list):
        return answer
    content = last.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    begun = "".join(text for part in parts if isinstance(part, Mapping) and isinstance(text := part.get("text"), str))
    return {**answer, "choices": [_beyond(begun, choice) for choice in choices]}


def _beyond(begun: str, choice: object) -> object:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    said = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping) or not isinstance(said, str):
        return choice
    return {**choice, "message": {**message, "content": said.removeprefix(begun)}}


def _checked(asked: Json, known: frozenset[str]) -> Json:
    body: dict[str, object] = {}
    for name, value in asked.items():
        if value is None:
            continue  # llama.cpp would take the null of json_schema for a schema, and that of grammar for one
        if name in known or is_tag(name):
            body[name] = value
        elif name not in _WITHOUT_EFFECT and value not in _SAYS_NOTHING.get(name, ()):
            how = _INSTEAD.get(name, "leave it out")
            raise bad_request(name, f"{name}: the embedded engine does not support it: {how}")
    check_values(body)
    _check_one_shape(body)
    for name, strict, schema in _schemas(body):
        try:
            if strict:
                check_schema(schema)
        except NotEnforced as error:
            message = f"{name}: the embedded engine does not enforce {error}: leave it out, or do not ask for strict"
            raise bad_request(name, message) from error
    try:
        return {**body, **_with_patterns(body)}
    except UnsupportedPattern as error:
        raise bad_request("response_format", f"response_format: a pattern with {error}") from error


def _check_one_shape(body: Json) -> None:
    """Of several shapes of an answer, llama.cpp takes one, or fails."""
    format_ = body.get("response_format")
    shaped = isinstance(format_, Mapping) and format_.get("type") != "text"
    given = [name for name in ("grammar", "json_schema") if name in body] + ["response_format"] * shaped
    if len(given) > 1:
        raise bad_request(given[-1], f"{given[-1]}: the answer has a shape by {given[0]} already: give one of them")


def _schemas(body: Json) -> list[tuple[str, bool, Json]]:
    """The schemas of a request: the field, whether it promises to enforce them, the schema."""
    found: list[tuple[str, bool, object]] = [("json_schema", True, body.get("json_schema"))]
    named, strict = _named(body)
    found.append(("response_format", strict, named))
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping):
            found.append(("tools", function.get("strict") is True, function.get("parameters")))
    return [(name, promised, schema) for name, promised, schema in found if isinstance(schema, Mapping)]


def _named(body: Json) -> tuple[object, bool]:
    """The schema of `response_format`, and whether the answer must meet it: always, unless `strict` is false."""
    format_ = body.get("response_format")
    if not isinstance(format_, Mapping):
        return None, False
    inner = format_.get("json_schema")
    if isinstance(inner, Mapping):
        return inner.get("schema"), inner.get("strict") is not False
    return format_.get("schema"), True


def _with_patterns(body: Json) -> dict[str, object]:
    """The fields with schemas, with their patterns translated."""
    changed: dict[str, object] = {}
    if "json_schema" in body:
        changed["json_schema"] = _as_enforced(body["json_schema"], strict=True)
    format_ = body.get("response_format")
    if isinstance(format_, Mapping):
        strict = _named(body)[1]
        made = dict(format_)
        if isinstance(inner := made.get("json_schema"), Mapping) and "schema" in inner:
            made["json_schema"] = {**inner, "schema": _as_enforced(inner["schema"], strict=strict)}
        if "schema" in made:
            made["schema"] = _as_enforced(made["schema"], strict=strict)
        changed["response_format"] = made
    if isinstance(tools := body.get("tools"), list):
        changed["tools"] = [_tool(tool) for tool in tools]
    return changed


def _as_enforced(schema: object, *, strict: bool) -> object:
    """A schema as llama.cpp enforces it. It passes over `true`, which is any JSON. Raises UnsupportedPattern."""
    if schema is True:
        return {}
    made = with_patterns(schema, strict=strict)
    return with_plain_references(made) if isinstance(made, Mapping) else made


def _tool(tool: object) -> object:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping) or "parameters" not in function:
        return tool
    given = _as_enforced(function["parameters"], strict=function.get("strict") is True)
    return {**tool, "function": {**function, "parameters": given}}
