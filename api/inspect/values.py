"""Recorded values for people, decoded without the user's types, and values that people type."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from ramify.inspect.text import beginning, byte_count, fitted
from ramify.runtime.codec import codec
from ramify.runtime.codec.persisted_names import present_name
from ramify.runtime.errors import NotSerialisable
from ramify.runtime.langgraph.value_summary import brief, messages_in
from ramify.runtime.records import OpRecord
from ramify.runtime.store.cut_texts import CUT
from ramify.sandboxes.contract import RunResult


def plain(value: object) -> object:
    """A stored value without the codec's tags, if plain JSON says as much."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if is_cut(value):
        return f"{value['begins']}… ({_size(value)})"
    if "$" not in value or "v" not in value:
        return {key: plain(one) for key, one in value.items()}
    kind, body = value["$"], value["v"]
    if kind == "bytes" and isinstance(body, str):
        return base64.b64decode(body).decode(errors="replace")
    if kind == "dataclass" or kind == "pydantic":
        return {str(value.get("t", kind)).rpartition(":")[2]: plain(body)}
    if kind == "dict" and isinstance(body, list):
        return {json.dumps(plain(key)).strip('"'): plain(one) for key, one in body}
    return plain(body)


def is_cut(value: dict[str, Any]) -> bool:
    """Whether an object stands for a long value that was not read. A model's own JSON may have the same tag."""
    return value.get("$") == CUT and value.keys() == {"$", "digest", "bytes", "exact", "begins"}


def _size(cut: dict[str, Any]) -> str:
    return f"{'' if cut['exact'] else 'more than '}{byte_count(cut['bytes'])} in all"


def spoken(value: object) -> str:
    """The value in one line; of messages, their number and the last one."""
    told = plain(value)
    return brief(told) if messages_in(told) else json.dumps(told, ensure_ascii=False)


def value_line(value: object, width: int) -> str:
    """A stored value in one line, as `spoken`; of a long one, its beginning and its size."""
    if isinstance(value, dict) and is_cut(value):
        return beginning(value["begins"], _size(value), width)
    return fitted(spoken(value), width)


def json_line(text: str, width: int) -> str:
    """The JSON of a stored value in one line; of a long one, its beginning and its size."""
    return value_line(json.loads(text), width) if text.startswith(f'{{"$": "{CUT}"') else fitted(text, width)


def parse_value(text: str) -> Any:
    """The value that a person typed: JSON if it parses, otherwise the text itself.

    Raises `NotSerialisable` for JSON that is nested more deeply than Python can read.
    """
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise NotSerialisable("the JSON is nested too deeply to be read: give a flatter value") from None


def command_result(row: OpRecord) -> RunResult | None:
    """The step's result, if it is the outcome of a command and nothing else."""
    value = json.loads(row.result_json or "null")
    return _result(value) if isinstance(value, dict) and _is_result(value) else None


def _is_result(value: dict[str, object]) -> bool:
    tag = value.get("t")
    if value.get("$") != "dataclass" or not isinstance(tag, str):
        return False
    return present_name(tag) == f"{RunResult.__module__}:{RunResult.__qualname__}"


def _result(value: dict[str, object]) -> RunResult:
    return codec.decode_own(json.dumps(value), RunResult)


def command_results(value: object) -> Iterator[RunResult]:
    """The outcomes of all commands inside a stored value. The user's types are not loaded."""
    if isinstance(value, list):
        for one in value:
            yield from command_results(one)
    elif isinstance(value, dict):
        if _is_result(value):
            yield _result(value)
        else:
            for one in value.values():
                yield from command_results(one)
