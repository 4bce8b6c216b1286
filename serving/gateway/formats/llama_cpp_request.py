"""A request as the embedded engine gets it: an allow-list of fields, checked values, and enforced constraints.

llama.cpp ignores fields that it does not know, and has fields of its own that reach beyond the call (its cache, its
slots). So every field is passed on, left out because it changes no answer, or refused by name.

It takes the value of a field if it has the right type, and otherwise its default. So a call with a wrong type, or
with a number that means nothing, would be answered as if the field were not there. OpenAI refuses these;
`check_values` does, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from ramify.serving.gateway.errors import ApiError, bad_request, list_in
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
_NUMBERS: Mapping[str, tuple[float, float]] = {  # the least and the most
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
}
_ANY_NUMBER = (
    "dry_base", "dry_multiplier", "dynatemp_exponent", "dynatemp_range", "mirostat_eta", "mirostat_tau",
    "repeat_penalty", "top_n_sigma", "typical_p",
)  # fmt: skip
_WHOLE: Mapping[str, int] = {  # the least
    "max_tokens": 1,
    "max_completion_tokens": 1,
    "n": 1,
    "top_logprobs": 0,
    "n_probs": 0,
    "top_k": -1,
    "min_keep": 0,
    "mirostat": 0,
    "repeat_last_n": 0,
    "dry_allowed_length": 0,
    "dry_penalty_last_n": 0,
}
_FLAGS = ("add_generation_prompt", "continue_final_message", "ignore_eos", "parallel_tool_calls")
_TEXTS = ("grammar", "model", "reasoning_format")
_OBJECTS = ("stream_options", "chat_template_kwargs")
_LARGEST = 2**31 - 1  # llama.cpp takes a larger number for the rest of its division by 2^32
_FORMATS = ("text", "json_object", "json_schema")
_READ_AT = {"json_object": "schema", "json_schema": "json_schema.schema"}  # where llama.cpp looks for the schema


def check_values(body: Json) -> None:
    """Raises ApiError, which names the field. null stands for a field that is not there."""
    for name, (low, high) in _NUMBERS.items():
        value = body.get(name)
        if value is not None and not _in_range(value, low, high):
            raise bad_request(name, f"{name}: must be a number from {low} to {high}")
    for name, least in _WHOLE.items():
        value = body.get(name)
        if value is not None and not (type(value) is int and least <= value <= _LARGEST):
            raise bad_request(name, f"{name}: must be a whole number from {least} to {_LARGEST}")
    for name in _ANY_NUMBER:
        if body.get(name) is not None and not _in_range(body[name], -math.inf, math.inf):
            raise bad_request(name, f"{name}: must be a number")
    if body.get("seed") is not None and type(body["seed"]) is not int:
        raise bad_request("seed", "seed: must be a whole number")
    for name in _FLAGS:
        if body.get(name) is not None and not isinstance(body[name], bool):
            raise bad_request(name, f"{name}: must be true or false")
    for name in _TEXTS:
        if body.get(name) is not None and not isinstance(body[name], str):
            raise bad_request(name, f"{name}: must be a text")
    for name in _OBJECTS:
        if body.get(name) is not None and not isinstance(body[name], Mapping):
            raise bad_request(name, f"{name}: must be an object")
    _check_bias(body.get("logit_bias"))
    _check_stop(body.get("stop"))
    _check_logprobs(body)
    _check_format(body.get("response_format"))
    if body.get("json_schema") is not None and not isinstance(body["json_schema"], Mapping):
        raise bad_request("json_schema", "json_schema: must be an object")
    _check_choice(body.get("tool_choice"), _check_tools(body))


def check_prompt_field(name: str, said: object) -> None:
    """Raises ApiError for a call that says nothing."""
    if said is None:
        raise ApiError(400, "missing_required_parameter", f"{name}: is missing", name)
    if name == "messages" and not isinstance(said, list):
        raise bad_request(name, f"{name}: must be a list")
    if said == []:
        raise ApiError(400, "empty_array", f"{name}: must not be empty", name)
    if name == "prompt" and any(one in ("", []) for one in (said if isinstance(said, list) else [said])):
        raise bad_request(name, "prompt: an empty text has no answer: say something")


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


def _in_range(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _check_bias(said: object) -> None:
    """By token, as OpenAI has it, or llama.cpp's list of pairs, in which `false` forbids a token."""
    pairs = list(said.items()) if isinstance(said, Mapping) else [] if said is None else said
    if not isinstance(pairs, list) or not all(_is_bias(pair) for pair in pairs):
        raise bad_request("logit_bias", "logit_bias: must be an object with a number for each token")


def _is_bias(pair: object) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and (pair[1] is False or type(pair[1]) in (int, float))


def _check_stop(stop: object) -> None:
    texts = stop if isinstance(stop, list) else [] if stop is None else [stop]
    if not all(isinstance(text, str) for text in texts):
        raise bad_request("stop", "stop: must be a text or a list of texts")
    if "" in texts:
        raise bad_request("stop", "stop: an empty text ends every answer before it begins")


def _check_logprobs(body: Json) -> None:
    """A chat says whether, a text completion how many."""
    value, chat = body.get("logprobs"), "messages" in body
    if value is None or isinstance(value, bool):
        return
    if chat:
        raise bad_request("logprobs", "logprobs: must be true or false; top_logprobs says how many")
    if not isinstance(value, int) or value < 0:
        raise bad_request("logprobs", "logprobs: must be a whole number from 0 on")


def _check_format(format_: object) -> None:
    if format_ is None:
        return
    kind = format_.get("type") if isinstance(format_, Mapping) else None
    if not isinstance(format_, Mapping) or kind not in _FORMATS:
        raise _bad_format(f"must be an object whose type is one of {', '.join(_FORMATS)}")
    named = {} if format_.get("json_schema") is None else format_["json_schema"]
    if not isinstance(named, Mapping):
        raise _bad_format("json_schema must be an object")
    given = {
        at: of["schema"]
        for at, of in (("schema", format_), ("json_schema.schema", named))
        if of.get("schema") is not None
    }
    if not all(isinstance(schema, Mapping) or schema is True for schema in given.values()):
        raise _bad_format("the schema must be an object")
    if kind == "json_schema" and "json_schema.schema" not in given:
        raise _bad_format("json_schema.schema is missing")
    if unread := given.keys() - {_READ_AT.get(kind)}:
        raise _bad_format(f"{min(unread)} is not read where the type is {kind}: it would not be enforced")


def _bad_format(said: str) -> ApiError:
    return bad_request("response_format", f"response_format: {said}")


def _check_tools(body: Json) -> list[str]:
    """The names of the tools. Their types are left to the engine, which refuses those that it does not know."""
    names = []
    for tool in list_in("tools", body.get("tools")):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        if not isinstance(name := function.get("name"), str) or not name:
            raise bad_request("tools", "tools: each function needs a name")
        if function.get("parameters") is not None and not isinstance(function["parameters"], Mapping):
            raise bad_request("tools", f"tools: the parameters of {name[:60]!r} must be an object")
        names.append(name)
    return names


def _check_choice(choice: object, tools: list[str]) -> None:
    if choice is None or choice in ("auto", "none"):
        return
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice != "required" and not isinstance(name, str):
        raise bad_request("tool_choice", "tool_choice: give auto, none, required, or one function by its name")
    if not tools:
        raise bad_request("tool_choice", "tool_choice: asks for a call of a tool, and there are no tools")
    if name is not None and name not in tools:
        raise bad_request("tool_choice", f"tool_choice: {name[:60]!r} is none of the tools")


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
_ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_for_llama_cpp(asked: Json) -> Json:
    """A chat's body. Raises ApiError, which names the field."""
    check_prompt_field("messages", asked.get("messages"))
    for message in list_in("messages", asked.get("messages")):
        _check_message(message)
    return _checked(asked, _CHAT)


def _check_message(message: object) -> None:
    if not isinstance(message, Mapping):
        raise bad_request("messages", "messages: each must be an object")
    if (role := message.get("role")) not in _ROLES:
        raise bad_request("messages", f"messages: role must be one of {', '.join(_ROLES)}, not {str(role)[:60]!r}")
    content = message.get("content")
    if isinstance(content, str) or (content is None and role == "assistant"):
        return
    if not isinstance(content, list):
        raise bad_request("messages", f"messages: the content of role {role} must be a text or a list of parts")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or not isinstance(kind, str):
            raise bad_request("messages", "messages: each part of a content must be an object with a type")
        if kind == "text" and not isinstance(part.get("text"), str):
            raise bad_request("messages", "messages: a part of type text needs a text")


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
        if name in known or is_tag(name) or is_hint(name, value):
            body[name] = value
        elif name == "cache_salt":
            body["cache_prompt"] = False  # it then finds nothing that other calls have left
        elif name not in _WITHOUT_EFFECT and value not in _SAYS_NOTHING.get(name, ()):
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
