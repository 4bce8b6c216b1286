"""Which tools ran before a call of a model, by the results that its messages or its input bring."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

_MOST = 64  # results of one call; a client's loop may bring any number
_LONGEST = 64  # characters of a name, as in OpenAI's interface
_LONGEST_ID = 256  # characters of an id, which is kept until its workflow ends
_RESULTS = frozenset({"tool", "function", "function_call_output"})


def tool_results(said: object) -> dict[str, str]:
    """Return the names of the tools whose results follow the model's last answer in `messages` or `input`, by the id
    of the tool call. A result whose name the messages do not tell is left out.
    """
    if not isinstance(said, list):
        return {}
    newest = list(takewhile(_is_result, reversed(said)))[:_MOST]
    if not newest:
        return {}
    named = _asked_for(said)
    found: dict[str, str] = {}
    for result in reversed(newest):
        call = result.get("tool_call_id") or result.get("call_id")
        name = result.get("name") or (named.get(call) if isinstance(call, str) else None)
        if isinstance(name, str) and name:
            key = call if isinstance(call, str) else f"{name} {len(found)}"
            found[key[:_LONGEST_ID]] = name[:_LONGEST]
    return found


def _is_result(item: object) -> bool:
    return isinstance(item, Mapping) and any(str(item.get(field)) in _RESULTS for field in ("role", "type"))


def _asked_for(said: list[object]) -> dict[str, object]:
    """Return the names of the tools that the model asked for, by the id of the call."""
    named: dict[str, object] = {}
    for item in said:
        if not isinstance(item, Mapping):
            continue
        if item.get("type") == "function_call" and isinstance(item.get("call_id"), str):
            named[item["call_id"]] = item.get("name")
        calls = item.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping) and isinstance(call.get("id"), str):
                named[call["id"]] = function.get("name")
    return named
