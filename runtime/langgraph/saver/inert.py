"""A serialiser that reads a thread's stored values as plain data, without importing or calling anything.

LangGraph's msgpack extensions name a module and a callable. This serialiser ignores both: it returns an object as its
fields, a set as its members, and an array as a description. Commands that only look at a thread, or move it, use it.
"""

from __future__ import annotations

import json
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT, EXT_NUMPY_ARRAY

EXACT = 64
"""The form of an object that LangGraph's own would change: the journal's (`ramify.runtime.codec`)."""

_ID = (8, 4, 4, 4, 12)  # how a UUID is written


class Inert:
    """A read-only serialiser. It returns only values that JSON and msgpack can express themselves."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        raise NotImplementedError("it only reads")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Raises `ValueError` for what is damaged, and for a kind that only its own serialiser reads."""
        kind, body = data
        match kind:
            case "null" | "empty":
                return None
            case "bytes" | "bytearray":
                return bytes(body)
            case "json":
                return json.loads(body)
            case "msgpack":
                return ormsgpack.unpackb(body, ext_hook=_laid_open, option=ormsgpack.OPT_NON_STR_KEYS)
        raise ValueError(f"{len(body)} bytes ({kind})")


def _laid_open(code: int, data: bytes) -> Any:
    if code == EXACT:
        return _bare(json.loads(data))
    held = ormsgpack.unpackb(data, ext_hook=_laid_open, option=ormsgpack.OPT_NON_STR_KEYS)
    if code == EXT_DELTA_SNAPSHOT:
        return held
    if code == EXT_NUMPY_ARRAY:
        kind, shape, *_ = held
        return f"array {kind}, shape {'x'.join(map(str, shape))}"
    module, name, value, *_ = held
    if (module, name) == ("uuid", "UUID") and isinstance(value, str):
        parts = iter(value)
        return "-".join("".join(next(parts, "") for _ in range(length)) for length in _ID)
    return value


def _bare(value: Any) -> Any:
    """What the journal's form holds, without the names of types."""
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, dict):
        return value
    return _bare(value["v"]) if "$" in value and "v" in value else {key: _bare(one) for key, one in value.items()}


INERT = Inert()
