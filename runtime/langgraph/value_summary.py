"""Summarise a value of a graph's state in one line for people: messages by speaker and text, other values as the
beginning of their JSON.

The journal summarises the user's own objects as nodes return them. Viewers of a thread summarise the plain JSON that
the checkpoints hold. Only the beginning of a large value is read, and no class of the user's is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from json.encoder import encode_basestring
from typing import Any

_LONGEST = 80  # characters of a line, and of a text in it
_LOOKED_AT = 4 * _LONGEST  # characters of a text that are read before white space is removed
_ITEMS = 6  # items of a container
_DEPTH = 3
# modules whose generated methods do not count as the user's own
_GENERATED = ("dataclasses.", "reprlib.", "pydantic.", "langchain_core.")
_SPEAKERS = {"human", "user", "ai", "assistant", "system", "developer", "tool", "function", "chat", "remove"}


def brief(value: object) -> str:
    """Return the beginning of a value; "" for None. An update shows its channels, a `Command` its update and its
    targets."""
    try:
        return _brief(value)
    except Exception:  # noqa: BLE001  the user's own code, and a line for people is no reason to fail
        return type(value).__name__


def _brief(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _line(value)
    if type(value) is dict and "content" not in value:  # most results, and no message
        return _line(_channels(value))
    several = value if isinstance(value, list | tuple) else [value]
    if several and all(_is(one, "Command") for one in several):  # `create_agent` returns one in a list
        return _line(", ".join(_command(one) for one in islice(several, _ITEMS)))
    return _line(_update(value))


def _update(value: object) -> str:
    if is_message(value) or (told := _fields(value)) is None:
        return _part(value, _DEPTH)
    return _channels(told)


def _channels(told: Mapping[Any, object]) -> str:
    parts = [f"{name}: {_channel(one)}" for name, one in islice(told.items(), _ITEMS)]
    if len(told) > _ITEMS:
        parts.append("…")
    return ", ".join(parts)


def messages_in(value: object) -> Sequence[Any]:
    """Return the messages of a list that holds only messages; otherwise an empty sequence."""
    return value if isinstance(value, list | tuple) and value and all(map(is_message, value)) else ()


def is_message(value: object) -> bool:
    """Tell whether a value is a message: of LangChain, as an object or as its fields, or in the form of chat
    servers."""
    if isinstance(value, Mapping):
        said = value.get("content", value)
        return (said is None or isinstance(said, str | list | tuple)) and _speaker(value) in _SPEAKERS
    return any(kind.__name__ == "BaseMessage" for kind in type(value).__mro__)


def text_of(message: object, most: int | None = None) -> str:
    """Return the text of a message, and one line for each tool that it calls. `most` limits the characters of the
    text and the number of tools; None means no limit."""
    content = _field(message, "content")
    if isinstance(content, list | tuple):  # content blocks, some of which are text
        content = "".join(_block(one)[:most] for one in islice(content, most))
    calls = _field(message, "tool_calls")
    some = islice(calls, None if most is None else _ITEMS) if isinstance(calls, list | tuple) else ()
    return "\n".join([*([str(content)[:most]] if content else []), *(f"calls {_call(one, most)}" for one in some)])


def line_of(message: object, most: int | None = None) -> str:
    """Return who speaks and what: `ai: It is done.`, `tool search: 3 found`, `ai calls search(query="x")`."""
    name = _field(message, "name")
    who = _speaker(message) + (f" {name}" if name and isinstance(name, str) else "")
    said = " ".join(text_of(message, most).split())
    if not said:
        return who
    return f"{who} {said}" if said.startswith("calls ") and not _field(message, "content") else f"{who}: {said}"


def _line(text: str) -> str:
    begun = " ".join(text[:_LOOKED_AT].split())
    return begun if len(begun) <= _LONGEST else f"{begun[: _LONGEST - 1]}…"


def _channel(value: object) -> str:
    """Return text without quotes, since the name of its channel precedes it."""
    return _line(value) if isinstance(value, str) and value else _part(value, _DEPTH)


def _part(value: object, depth: int) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        return encode_basestring(_line(value))
    if is_message(value):
        return _line(line_of(value, _LOOKED_AT))
    if isinstance(value, list | tuple) and messages_in([*value[:_ITEMS], *value[-1:]]):
        last = _line(line_of(value[-1], _LOOKED_AT))
        return last if len(value) == 1 else f"{len(value)} messages, last {last}"
    if _is(value, "Command"):
        return _between("()", iter([_command(value)]), 1, depth)
    if (told := _fields(value)) is not None:
        inside = (f"{name}: {_part(one, depth - 1)}" for name, one in told.items())
        return _between("{}", inside, len(told), depth)
    if isinstance(value, list | tuple | set | frozenset):
        return _between("[]", (_part(one, depth - 1) for one in value), len(value), depth)
    return _other(value)


def _between(ends: str, parts: Iterable[str], number: int, depth: int) -> str:
    if number and depth <= 0:
        return f"{ends[0]}…{ends[1]}"
    more = [f"… {number} in all"] if number > _ITEMS else []
    return f"{ends[0]}{', '.join([*islice(parts, _ITEMS), *more])}{ends[1]}"


def _speaker(message: object) -> str:
    """Return the speaker as LangChain's `type` names it, also for a part of a streamed message."""
    named = _field(message, "type")
    if not isinstance(named, str) or named == "message":
        named = _field(message, "role")
    return named.removesuffix("MessageChunk").lower() if isinstance(named, str) else ""


def _block(block: object) -> str:
    return str(block.get("text") or "") if isinstance(block, Mapping) else str(block)


def _call(call: object, most: int | None) -> str:
    """Return `name(a=1)` for a tool call in LangChain's form or in that of chat servers."""
    inner = _field(call, "function")
    call = inner if isinstance(inner, Mapping) else call
    args = _field(call, "args")
    if isinstance(args, Mapping):
        return f"{_field(call, 'name')}({', '.join(f'{name}={_part(one, 1)}' for name, one in args.items())})"
    return f"{_field(call, 'name')}({str(_field(call, 'arguments') or '')[:most]})"


def _command(command: Any) -> str:
    goto = command.goto if isinstance(command.goto, list | tuple) else [command.goto]
    to = ", ".join(one if isinstance(one, str) else str(getattr(one, "node", one)) for one in goto[:_ITEMS])
    update = "" if command.update is None else _update(command.update)
    return "; ".join(part for part in (update, f"goes to {to}" if to else "") if part)


def _fields(value: object) -> Mapping[Any, object] | None:
    """Return the fields of a mapping, a dataclass or a pydantic model. Fields that the class leaves out of its `repr`
    may be secret and are left out. None if the class defines `repr` itself."""
    if isinstance(value, Mapping):
        return value
    kind = type(value)
    if isinstance(value, type) or _is(value, "Command") or _has_own_words(kind):
        return None
    if is_dataclass(value):
        return {one.name: getattr(value, one.name, None) for one in fields(value) if one.repr}
    known = getattr(kind, "model_fields", None)
    if not isinstance(known, dict):
        return None
    return {name: getattr(value, name, None) for name, one in known.items() if getattr(one, "repr", True)}


def _has_own_words(kind: type) -> bool:
    """Tell whether the class's own code, not that of `@dataclass` or pydantic, defines how it is printed."""
    written = (getattr(kind, name, None) for name in ("__str__", "__repr__", "__repr_args__"))
    homes = (str(getattr(one, "__globals__", {}).get("__name__", "")) for one in written)
    return any(home and not f"{home}.".startswith(_GENERATED) for home in homes)


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _is(value: object, name: str) -> bool:
    """Tell whether the value has one of LangGraph's own types, without importing LangGraph."""
    return type(value).__name__ == name and type(value).__module__.startswith("langgraph.")


def _other(value: object) -> str:
    """Return how the object prints itself; its class name if it would print only an address."""
    if isinstance(value, bytes | bytearray):
        value = value[:_LONGEST]
    kind = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return kind.__name__
    try:
        return _line(str(value))
    except Exception:  # noqa: BLE001  the user's own code, and a line for people is no reason to fail
        return kind.__name__
