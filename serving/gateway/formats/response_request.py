"""A request for a response as a chat, for engines whose own responses leave too much out.

What a chat cannot say (a stored conversation, tools that a provider runs) is refused by name. Fields that only a
provider's accounts and caches use are left out: they change no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ramify.serving.gateway.errors import bad_request, list_in, text_in
from ramify.serving.protocol.tags import without_tags

Json = Mapping[str, object]
_AS_THEY_ARE = frozenset({"model", "stream", "temperature", "top_p", "seed", "stop", "parallel_tool_calls"})
_WITHOUT_EFFECT = frozenset(
    {
        "background", "include", "metadata", "prompt_cache_key", "prompt_cache_retention", "reasoning",
        "safety_identifier", "service_tier", "store", "stream_options", "truncation", "user",
    }
)  # fmt: skip
_READ = frozenset({"input", "instructions", "max_output_tokens", "text", "tool_choice", "tools", "top_logprobs"})
_NO_STORE = "the embedded engine keeps no answers: send the whole conversation in input"
_WHY = {"previous_response_id": _NO_STORE, "conversation": _NO_STORE, "prompt": "no prompt templates are kept here"}
_LOGPROBS = "message.output_text.logprobs"


def chat_of_response(asked: Json) -> dict[str, object]:
    """The body of the chat. Raises ApiError, which names the field, for what a chat cannot say."""
    plain = without_tags(asked)
    for name, value in plain.items():
        if value is not None and name not in _AS_THEY_ARE | _WITHOUT_EFFECT | _READ:
            raise bad_request(name, f"{name}: {_WHY.get(name, 'not supported in a response of the embedded engine')}")
    body: dict[str, object] = {k: v for k, v in plain.items() if k in _AS_THEY_ARE and v is not None}
    body["messages"] = _messages(plain)
    if plain.get("stream"):
        body["stream_options"] = {"include_usage": True}
    if (most := plain.get("max_output_tokens")) is not None:
        body["max_tokens"] = most
    if tools := list_in("tools", plain.get("tools")):
        body["tools"] = [_tool(tool) for tool in tools]
    if (choice := plain.get("tool_choice")) is not None:
        body["tool_choice"] = _tool_choice(choice)
    if (format_ := _response_format(plain.get("text"))) is not None:
        body["response_format"] = format_
    top = plain.get("top_logprobs")
    if top or _LOGPROBS in list_in("include", plain.get("include")):
        body |= {"logprobs": True, "top_logprobs": top or 0}
    return body


def _messages(asked: Json) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    if (system := asked.get("instructions")) is not None:
        messages.append({"role": "system", "content": text_in("instructions", system)})
    said = asked.get("input")
    if isinstance(said, str):
        return [*messages, {"role": "user", "content": said}]
    for item in list_in("input", said):
        if not isinstance(item, Mapping):
            raise bad_request("input", "input: each item must be an object")
        kind = item.get("type", "message")
        take = _ITEMS.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise bad_request("input", f"input: items of type {str(kind)[:60]!r} are not supported by this engine")
        take(item, messages)
    return messages


def _message(item: Json, messages: list[dict[str, object]]) -> None:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise bad_request("input", f"input: a message's role must be user, assistant, system or developer: {role!r}")
    content = item.get("content")
    if not isinstance(content, str):
        parts = [_part(part) for part in list_in("input", content)]
        only_text = all(part["type"] == "text" for part in parts)
        content = "".join(str(part["text"]) for part in parts) if only_text else parts
    messages.append({"role": "system" if role == "developer" else role, "content": content})


def _part(part: object) -> dict[str, object]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    assert isinstance(part, Mapping) or kind is None
    if isinstance(part, Mapping) and kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text_in("input", part.get("text"))}
    if isinstance(part, Mapping) and kind == "refusal":
        return {"type": "text", "text": text_in("input", part.get("refusal"))}
    if isinstance(part, Mapping) and kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    raise bad_request("input", f"input: content of type {str(kind)[:60]!r} is not supported by this engine")


def _function_call(item: Json, messages: list[dict[str, object]]) -> None:
    call = {
        "id": text_in("input", item.get("call_id")),
        "type": "function",
        "function": {
            "name": text_in("input", item.get("name")),
            "arguments": text_in("input", item.get("arguments")),
        },
    }
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        last = {"role": "assistant", "content": None, "tool_calls": []}
        messages.append(last)
    calls = last.setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append(call)


def _function_output(item: Json, messages: list[dict[str, object]]) -> None:
    output = item.get("output")
    if not isinstance(output, str):
        output = "".join(str(part["text"]) for part in map(_part, list_in("input", output)) if part["type"] == "text")
    messages.append({"role": "tool", "tool_call_id": text_in("input", item.get("call_id")), "content": output})


def _thoughts(_: Json, __: list[dict[str, object]]) -> None:
    """Thoughts of earlier answers are left out: chat templates leave them out, too."""


_ITEMS: dict[str, Callable[[Json, list[dict[str, object]]], None]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_output,
    "reasoning": _thoughts,
}


def _tool(tool: object) -> dict[str, object]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise bad_request("tools", f"tools: only functions are supported by this engine, not {str(kind)[:60]!r}")
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type" and v is not None}}


def _tool_choice(choice: object) -> object:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    raise bad_request("tool_choice", "tool_choice: give auto, none, required, or one function by its name")


def _response_format(text: object) -> dict[str, object] | None:
    if text is None:
        return None
    asked = text.get("format") if isinstance(text, Mapping) else text
    if asked is None or (isinstance(asked, Mapping) and asked.get("type") == "text"):
        return None
    if isinstance(asked, Mapping) and asked.get("type") == "json_object":
        return {"type": "json_object"}
    if isinstance(asked, Mapping) and asked.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {k: v for k, v in asked.items() if k != "type"}}
    raise bad_request("text", "text: format must be an object of type text, json_object or json_schema")
