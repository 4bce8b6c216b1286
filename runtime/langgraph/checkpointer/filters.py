"""The values that a filter's keys name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_at(value: Any, key: str) -> Any:
    """Return the value under a key, as LangGraph's classes do: those on PostgreSQL take the key as it is, those on
    SQLite take "a.b" for "b" of the object "a". None if there is none."""
    if not isinstance(value, Mapping):
        return None
    if key in value or "." not in key:
        return value.get(key)
    first, _, rest = key.partition(".")
    return value_at(value.get(first), rest)
