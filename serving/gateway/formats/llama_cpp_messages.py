"""The messages of a chat as the embedded engine gets them.

llama.cpp passes over what it does not know in a message, and says of some faults that they are its own. So each
message is checked here: its role, its parts, its calls of tools. The embedded model reads text, so parts of other
types are refused by name. A refusal that a client sends back is text, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from ramify.serving.gateway.errors import ApiError, bad_request, list_in

Json = Mapping[str, object]
_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXTS = ("name", "reasoning_content", "refusal", "tool_call_id")
_OLD = ("audio", "function_call")  # of an assistant: they name what the engine does not have


def messages_for_llama_cpp(messages: object) -> list[Json]:
    """Raises ApiError, which names the field."""
    return [_message(message) for message in list_in("messages", messages)]


def _message(message: object) -> Json:
    if not isinstance(message, Mapping):
        raise _bad("each must be an object")
    if (role := message.get("role")) not in _ROLES:
        raise _bad(f"role must be one of {', '.join(_ROLES)}, not {str(role)[:60]!r}")
    for name in _TEXTS:
        if message.get(name) is not None and not isinstance(message[name], str):
            raise _bad(f"{name} must be a text")
    content = message.get("content")
    if role == "assistant":
        for name in _OLD:
            if message.get(name) is not None:
                raise _bad(f"{name} of an earlier answer is not supported by the embedded engine")
        calls = list_in("messages", message.get("tool_calls"))
        for call in calls:
            _check_call(call)
        content = message.get("refusal") if content is None else content
        if content is None and not calls:
            raise _bad("a message of role assistant needs a content or tool_calls")
    if content is None and role != "assistant":
        raise _bad(f"the content of role {role} must be a text or a list of parts")
    return {**message, "content": _content(content, str(role))}


def _content(content: object, role: str) -> object:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(f"the content of role {role} must be a text or a list of parts")
    return [_part(part) for part in content]


def _part(part: object) -> Json:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise _bad("each part of a content must be an object with a type")
    if kind not in ("text", "refusal"):
        what = "images are" if kind == "image_url" else f"content of type {kind[:60]!r} is"
        raise _bad(f"{what} not supported: the embedded model reads text")
    if not isinstance(text := part.get(kind), str):
        raise _bad(f"a part of type {kind} needs a {kind} that is a text")
    return part if kind == "text" else {"type": "text", "text": text}


def _check_call(call: object) -> None:
    function = call.get("function") if isinstance(call, Mapping) and call.get("type") == "function" else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _bad("each of tool_calls must be an object of type function, with a function")
    if call.get("id") is not None and not isinstance(call["id"], str):
        raise _bad("the id of a tool call must be a text")
    if not all(isinstance(function.get(name), str) for name in ("name", "arguments")):
        raise _bad("the function of a tool call needs a name and arguments that are texts")


def _bad(said: str) -> ApiError:
    return bad_request("messages", f"messages: {said}")
