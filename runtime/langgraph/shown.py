"""Values as a thread's saver keeps them, laid open for people without the user's classes."""

from __future__ import annotations

import json

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import _msgpack_ext_hook_to_json


def shown(kind: str, data: bytes) -> object:
    """A JSON value that says what was kept: an object by its fields, what nobody else can read by its size.

    Raises `ValueError` for what is damaged.
    """
    if kind in ("null", "empty"):
        return None
    if kind == "json":
        return json.loads(data)
    if kind == "msgpack":
        return _json(ormsgpack.unpackb(data, ext_hook=_msgpack_ext_hook_to_json, option=ormsgpack.OPT_NON_STR_KEYS))
    return f"{len(data)} bytes ({kind})"


def _json(value: object) -> object:
    """Bytes as text, and any key as one: what msgpack holds and JSON does not."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return value
