"""Checks of the values in a request for the embedded engine.

llama.cpp takes the value of a field if it has the right type, and otherwise its default. So a call with a wrong type,
or with a number that means nothing, would be answered as if the field were not there. OpenAI refuses these;
`check_values` does, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ramify.serving.gateway.errors import ApiError, bad_request, list_in

Json = Mapping[str, object]
_NUMBERS: Mapping[str, tuple[float, float]] = {  # the least and the most
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "typical_p": (0, 1),
    "dry_base": (1, math.inf),
    "dry_multiplier": (0, math.inf),
    "dynatemp_range": (0, math.inf),
    "mirostat_eta": (0, math.inf),
    "mirostat_tau": (0, math.inf),
}
_ANY_NUMBER = ("dynatemp_exponent", "repeat_penalty", "top_n_sigma")
_WHOLE: Mapping[str, int] = {  # the least
    "max_tokens": 1,
    "max_completion_tokens": 1,
    "n": 1,
    "top_logprobs": 0,
    "n_probs": 0,
    "top_k": -1,
    "min_keep": 0,
    "mirostat": 0,
    "repeat_last_n": -1,  # all of the context
    "dry_allowed_length": 0,
    "dry_penalty_last_n": -1,
}
_FLAGS = ("add_generation_prompt", "continue_final_message", "ignore_eos", "parallel_tool_calls")
_TEXTS = ("grammar", "model", "reasoning_format")
_OBJECTS = ("stream_options", "chat_template_kwargs")
_STREAM_OPTIONS = ("include_usage", "include_obfuscation")
_REASONING = ("none", "auto", "deepseek", "deepseek-legacy")
_MOST_BIAS = 100  # OpenAI's
_LARGEST = 2**31 - 1  # llama.cpp takes a larger number for the rest of its division by 2^32
_FORMATS = ("text", "json_object", "json_schema")
_READ_AT = {"json_object": "schema", "json_schema": "json_schema.schema"}  # where llama.cpp looks for the schema


def check_values(body: Json) -> None:
    """Raises ApiError, which names the field. null stands for a field that is not there."""
    for name, (low, high) in _NUMBERS.items():
        value = body.get(name)
        if value is not None and not _in_range(value, low, high):
            raise bad_request(
                name, f"{name}: must be a number from {low} {f'to {high}' if high < math.inf else 'on'}"
            )
    for name, least in _WHOLE.items():
        value = body.get(name)
        if value is not None and not (type(value) is int and least <= value <= _LARGEST):
            raise bad_request(name, f"{name}: must be a whole number from {least} to {_LARGEST}")
    for name in _ANY_NUMBER:
        if body.get(name) is not None and not _in_range(body[name], -math.inf, math.inf):
            raise bad_request(name, f"{name}: must be a number")
    _check_sampling(body)
    for name in _FLAGS:
        if body.get(name) is not None and not isinstance(body[name], bool):
            raise bad_request(name, f"{name}: must be true or false")
    for name in _TEXTS:
        if body.get(name) is not None and not isinstance(body[name], str):
            raise bad_request(name, f"{name}: must be a text")
    for name in _OBJECTS:
        if body.get(name) is not None and not isinstance(body[name], Mapping):
            raise bad_request(name, f"{name}: must be an object")
    _check_stream_options(body.get("stream_options"))
    _check_samplers(body.get("samplers"))
    _check_bias(body.get("logit_bias"))
    _check_stop(body.get("stop"))
    _check_logprobs(body)
    _check_format(body.get("response_format"))
    if body.get("json_schema") is not None and not isinstance(body["json_schema"], Mapping):
        raise bad_request("json_schema", "json_schema: must be an object")
    _check_choice(body.get("tool_choice"), _check_tools(body))


def _check_sampling(body: Json) -> None:
    """Values that are no range of numbers."""
    if (penalty := body.get("repeat_penalty")) is not None and not penalty > 0:  # type: ignore[operator]  # a number
        raise bad_request("repeat_penalty", "repeat_penalty: must be a number above 0")
    if body.get("mirostat") not in (None, 0, 1, 2):
        raise bad_request("mirostat", "mirostat: must be 0, 1 or 2")
    if body.get("reasoning_format") not in (None, *_REASONING):
        raise bad_request("reasoning_format", f"reasoning_format: must be one of {', '.join(_REASONING)}")
    if body.get("continue_final_message") and body.get("add_generation_prompt") is not False:
        said = "needs add_generation_prompt to be false: an answer is either begun or gone on with"
        raise bad_request("continue_final_message", f"continue_final_message: {said}")
    if body.get("seed") is not None and type(body["seed"]) is not int:
        raise bad_request("seed", "seed: must be a whole number")


def _in_range(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _check_stream_options(said: object) -> None:
    for name, value in said.items() if isinstance(said, Mapping) else ():
        if name not in _STREAM_OPTIONS:
            raise bad_request("stream_options", f"stream_options: the embedded engine does not support {name[:60]!r}")
        if value is not None and not isinstance(value, bool):
            raise bad_request("stream_options", f"stream_options: {name} must be true or false")


def _check_samplers(said: object) -> None:
    """Their names, or one letter for each, as llama.cpp has it."""
    names = said if isinstance(said, list) else [] if said is None else [said]
    if not all(isinstance(one, str) for one in names):
        raise bad_request("samplers", "samplers: must be a list of texts")


def _check_bias(said: object) -> None:
    """By token, as OpenAI has it, or llama.cpp's list of pairs, in which `false` forbids a token."""
    if isinstance(said, Mapping):
        ok = all(_is_token(key) and _in_range(value, -_MOST_BIAS, _MOST_BIAS) for key, value in said.items())
    else:
        ok = said is None or (isinstance(said, list) and all(map(_is_bias, said)))
    if not ok:
        how = f"an object with a number from -{_MOST_BIAS} to {_MOST_BIAS} for each token"
        raise bad_request("logit_bias", f"logit_bias: must be {how}")


def _is_bias(pair: object) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    return _is_token(pair[0]) and (pair[1] is False or type(pair[1]) in (int, float))


def _is_token(said: object) -> bool:
    """The number of a token, or the text of some. llama.cpp passes over a negative number."""
    if isinstance(said, str):
        return bool(said) and not (said[0] == "-" and said[1:].isdecimal())
    return type(said) is int and said >= 0


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
    if not isinstance(named.get("name") or "", str):
        raise _bad_format("json_schema.name must be a text")
    if not isinstance(named.get("strict") or False, bool):
        raise _bad_format("json_schema.strict must be true or false")
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
    """The names of the tools."""
    names = []
    for tool in list_in("tools", body.get("tools")):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        function = tool.get("function") if isinstance(tool, Mapping) and kind == "function" else None
        if not isinstance(function, Mapping):
            raise bad_request("tools", "tools: each must be an object of type function, with a function")
        if not isinstance(name := function.get("name"), str) or not name:
            raise bad_request("tools", "tools: each function needs a name")
        if function.get("parameters") is not None and not isinstance(function["parameters"], Mapping):
            raise bad_request("tools", f"tools: the parameters of {name[:60]!r} must be an object")
        if not isinstance(function.get("description") or "", str):
            raise bad_request("tools", f"tools: the description of {name[:60]!r} must be a text")
        if not isinstance(function.get("strict") or False, bool):
            raise bad_request("tools", f"tools: strict of {name[:60]!r} must be true or false")
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
