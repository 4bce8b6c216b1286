"""A request as the embedded engine gets it: an allow-list of fields, checked values, and enforced constraints.

llama.cpp ignores fields that it does not know, and has fields of its own that reach beyond the call (its cache, its
slots). So every field is passed on, left out because it changes no answer, or refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ramify.serving.gateway.errors import ApiError, asks_nothing, bad_request
from ramify.serving.gateway.formats.llama_cpp_messages import messages_for_llama_cpp
from ramify.serving.gateway.formats.llama_cpp_values import check_values
from ramify.serving.gateway.formats.log_probabilities import for_llama_cpp
from ramify.serving.gateway.formats.pattern_translation import UnsupportedPattern
from ramify.serving.gateway.formats.schema_keywords import (
    NotEnforced,
    check_schema,
    with_patterns,
    with_plain_references,
)
from ramify.serving.protocol.agent_hints import is_hint
from ramify.serving.protocol.tags import is_tag

Json = Mapping[str, object]


def check_prompt_field(name: str, said: object) -> None:
    """Raises ApiError for a call that says nothing."""
    if said is None:
        raise ApiError(400, "missing_required_parameter", f"{name}: is missing", name)
    if name == "messages" and not isinstance(said, list):
        raise bad_request(name, f"{name}: must be a list")
    if said == []:
        raise ApiError(400, "empty_array", f"{name}: must not be empty", name)
    if name == "prompt":
        _check_prompts(said)


def _check_prompts(said: object) -> None:
    each = said if isinstance(said, list) else [said]
    if any(one in ("", []) for one in each):
        raise bad_request("prompt", "prompt: an empty text has no answer: say something")
    tokens = [one for prompt in each for one in (prompt if isinstance(prompt, list) else [prompt])]
    if not isinstance(said, str | list) or not all(type(one) in (str, int) for one in tokens):
        raise bad_request("prompt", "prompt: must be a text, the numbers of tokens, or a list of prompts")


def check_characters(body: Json) -> None:
    """Raises ApiError for half of a surrogate pair: JSON can write it, and UTF-8 cannot."""
    for name, value in body.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise bad_request(name, f"{name}: holds half of a surrogate pair, which is not a character") from None
        except RecursionError:
            raise bad_request(name, f"{name}: nested too deeply") from None


def check_prompt_length(body: Json, most: int | None) -> None:
    """Raises ApiError for a prompt of more than `most` characters, which cannot fit the model's context.

    Only the texts of messages count, or the longest of several prompts: there is no doubt that they are all read.
    """
    if most is None:
        return
    name = "messages" if "messages" in body else "prompt"
    said = body.get(name)
    lengths = [_characters(one) for one in said] if isinstance(said, list) else [_characters(said)]
    length = sum(lengths) if name == "messages" else max(lengths, default=0)
    if length > most:
        message = f"{name}: {length} characters, and at most {most} can fit the model's context: shorten it"
        raise ApiError(400, "context_length_exceeded", message, name)


def _characters(of: object) -> int:
    """Of a prompt, a message or a part of its content."""
    if isinstance(of, str):
        return len(of)
    if not isinstance(of, Mapping):
        return 0
    content = of.get("content", of.get("text"))
    return sum(map(_characters, content)) if isinstance(content, list) else _characters(content)


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
    "id_slot": (-1,),
    "modalities": (["text"],),
    "priority": (0,),
    "response_format": ({"type": "text"},),  # of a text completion
    "slot_id": (-1,),
    "suffix": ("",),
}
_INSTEAD = {"response_format": "give json_schema instead"}


def chat_for_llama_cpp(asked: Json) -> Json:
    """A chat's body. Raises ApiError, which names the field."""
    check_prompt_field("messages", asked.get("messages"))
    return _checked({**asked, "messages": messages_for_llama_cpp(asked["messages"])}, _CHAT)


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
        if value is None or (name == "tools" and value == []):
            continue  # llama.cpp would take the null of json_schema for a schema, and that of grammar for one
        if name in known or is_tag(name) or is_hint(name, value):
            body[name] = value
        elif name == "cache_salt":
            body["cache_prompt"] = False  # it then finds nothing that other calls have left
        elif not _says_nothing(name, value, asked):
            how = _INSTEAD.get(name, "leave it out")
            raise bad_request(name, f"{name}: the embedded engine does not support it: {how}")
    check_values(body)
    _check_one_constraint(body)
    for name, strict, schema in _schemas(body):
        try:
            if strict:
                check_schema(schema)
        except NotEnforced as error:
            message = f"{name}: the embedded engine does not enforce {error}: leave it out, or do not ask for strict"
            raise bad_request(name, message) from error
    try:
        return {**for_llama_cpp(body), **_with_patterns(body)}
    except UnsupportedPattern as error:
        raise bad_request("response_format", f"response_format: a pattern with {error}") from error


def _says_nothing(name: str, value: object, asked: Json) -> bool:
    """Does the field ask for no more than the engine does anyway?"""
    if name == "best_of" and value == asked.get("n", 1):
        return True  # of so many answers, the best so many
    return asks_nothing(value) or name in _WITHOUT_EFFECT or value in _SAYS_NOTHING.get(name, ())


def _check_one_constraint(body: Json) -> None:
    """Of several constraints of an answer, llama.cpp takes one, or fails."""
    format_ = body.get("response_format")
    by_format = isinstance(format_, Mapping) and format_.get("type") != "text"
    given = [name for name in ("grammar", "json_schema") if name in body] + ["response_format"] * by_format
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
