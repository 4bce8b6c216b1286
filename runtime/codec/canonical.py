"""The canonical form of encoded values, of which digests are taken: without an order of dict entries, and without the
state that is stored aside."""

from __future__ import annotations

import binascii
import json
from typing import Any

from ramify.runtime.codec.object_parts import ASIDE, TAG, without_aside


class OrderUnknown(Exception):
    """The order of items depends on strings that are not at hand."""


def base64_of(leaf: object) -> str:
    """Write what an encoded value holds beside JSON's own types: the bytes of the kinds `bytes` and `bytearray`."""
    if type(leaf) is bytes:
        return binascii.b2a_base64(leaf, newline=False).decode("ascii")
    raise TypeError(f"a {type(leaf).__qualname__} is no part of an encoded value")


_SORTED = json.JSONEncoder(sort_keys=True, default=base64_of).encode


def sort_encoded(encoded: list[Any]) -> list[Any]:
    """Return items in the order of their texts, to which the state aside does not belong."""
    return sorted(encoded, key=_text)


def _text(item: Any) -> str:
    full = _SORTED(item)
    return full if ASIDE not in full else _SORTED(without_aside(item))


def canonical(value: Any, mark: str | None = None) -> Any:
    """Return the canonical form of an encoded value, but for the order of JSON's own objects. `mark`: stands for the
    long strings of a text."""
    if isinstance(value, list):
        return [canonical(one, mark) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: canonical(one, mark) for key, one in value.items() if key != ASIDE or TAG not in value}
    if value.get(TAG) in ("dict", "defaultdict") or (value.get(TAG) == "sub" and value.get("b") == "dict"):
        found["v"] = _sorted_pairs(found["v"], mark)
    return found


def _sorted_pairs(pairs: list[Any], mark: str | None) -> list[Any]:
    """Return the pairs of a dict in the order of their texts. Usually the keys are enough for it: no text of one
    begins with the whole text of another and a comma."""
    keys = [f"{_text(key)}, " for key, _ in pairs]
    if len(set(keys)) == len(keys) and (mark is None or not any(mark in key for key in keys)):
        return [pair for _, pair in sorted(zip(keys, pairs, strict=True), key=_first)]
    if mark is not None:
        raise OrderUnknown
    return sort_encoded(pairs)


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]
