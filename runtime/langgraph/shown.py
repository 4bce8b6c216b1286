"""Values as a thread's saver keeps them, laid open for people without the user's classes."""

from __future__ import annotations

from ramify.runtime.langgraph.checkpointer.serializers import PLAIN_SERIALIZER

_READ = ("null", "empty", "json", "msgpack")


def shown(kind: str, data: bytes) -> object:
    """A JSON value that says what was kept: an object by its fields, what nobody else can read by its size.

    Raises `ValueError` for what is damaged.
    """
    if kind not in _READ:
        return f"{len(data)} bytes ({kind})"
    return _json(PLAIN_SERIALIZER.loads_typed((kind, data)))


def _json(value: object) -> object:
    """Bytes as text, and any key as one: what msgpack holds and JSON does not."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return value
