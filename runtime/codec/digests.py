"""The digests by which a journal knows values: those of now, and those of earlier versions.

Journal keys contain a digest of the arguments. Earlier versions encoded a pydantic model as its own JSON, a time zone
as its offset, a duration as seconds, and left out `fold`. Their texts can still be decoded (`decoder`). If a run's
journal knows a value by its earlier digest, the run continues with that digest (`KnownDigests`), so that its journal
keys are found again. The same holds for values whose classes have changed since (`recorded_layouts`).
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from ramify.runtime.codec.canonical import sort_encoded
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.codec.long_texts import digest_text
from ramify.runtime.codec.object_parts import TAG
from ramify.runtime.codec.persisted_names import stored_name
from ramify.runtime.user_code.workflow_loader import canonical_module

_CHANGED = re.compile(r'"\$":"(?:model|pydantic|delta|str|sub)"|"fold":1|"z":\{')
_NAMED_TUPLE = '"$":"namedtuple"'

_SIMPLE: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda v: base64.b64encode(v).decode()),
    datetime: ("datetime", datetime.isoformat),
    date: ("date", date.isoformat),
    timedelta: ("timedelta", timedelta.total_seconds),
    Decimal: ("decimal", str),
    UUID: ("uuid", str),
    complex: ("complex", lambda v: [v.real, v.imag]),
}


class KnownDigests(Protocol):
    """The part of a journal that knows digests of arguments."""

    @property
    def has_digests(self) -> bool: ...
    def has_digest(self, digest: str) -> bool: ...
    def earlier_texts(self, text: str) -> Iterable[str]: ...
    def is_reordered(self, text: str) -> bool: ...


def digest_in_journal(journal: KnownDigests, value: object, encoded: Encoded) -> str:
    """Return the digest by which this run's journal knows a value. `encoded`: the value as it is encoded today."""
    now = encoded.digest()
    if not journal.has_digests or not encoded.tagged:  # JSON's own types were never encoded otherwise
        return now
    text = encoded.text()
    reordered = _NAMED_TUPLE in text and journal.is_reordered(text)
    if reordered and (earlier := _earlier_digest(journal, text)) is not None:
        return earlier
    if journal.has_digest(now):
        return now
    if _CHANGED.search(text) is not None:
        before = _digest_before(value)
        if before is not None and journal.has_digest(before):
            return before
    return (None if reordered else _earlier_digest(journal, text)) or now


def _earlier_digest(journal: KnownDigests, text: str) -> str | None:
    digests = (digest_text(earlier) for earlier in journal.earlier_texts(text))
    return next((digest for digest in digests if journal.has_digest(digest)), None)


def _digest_before(value: object) -> str | None:
    """Return the digest of earlier versions, or None if they refused the value."""
    try:
        text = json.dumps(_encode(value), separators=(",", ":"), ensure_ascii=True)
        return digest_text(text)
    except Exception:  # noqa: BLE001  a user's class may raise anything: then there is no earlier digest
        return None


def _encode(value: Any) -> Any:
    kind: Any = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, Enum):
        return {TAG: "enum", "t": _name(kind), "v": _encode(value.value)}
    if kind is float:
        return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
    if kind is list:
        return [_encode(one) for one in value]
    if kind is dict:
        if all(isinstance(key, str) and not isinstance(key, Enum) for key in value) and TAG not in value:
            return {str(key): _encode(one) for key, one in value.items()}
        return {TAG: "dict", "v": [[_encode(key), _encode(one)] for key, one in value.items()]}
    if kind is tuple:
        return {TAG: "tuple", "v": [_encode(one) for one in value]}
    if kind in (set, frozenset):
        return {TAG: kind.__name__, "v": sort_encoded([_encode(one) for one in value])}
    if isinstance(value, Path):
        return {TAG: "path", "v": str(value)}
    if (simple := _SIMPLE.get(kind)) is not None:
        return {TAG: simple[0], "v": simple[1](value)}
    return _encode_object(value, kind)


def _encode_object(value: Any, kind: Any) -> Any:
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {TAG: "namedtuple", "t": _name(kind), "v": [_encode(one) for one in value]}
    if hasattr(kind, "__pydantic_validator__") and hasattr(value, "model_dump"):
        body = value.model_dump(mode="json", by_alias=True)
        if kind.model_validate(body) != value:
            raise ValueError("it was refused")
        return {TAG: "pydantic", "t": _name(kind), "v": body}
    if dataclasses.is_dataclass(value):
        fields = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {TAG: "dataclass", "t": _name(kind), "v": fields}
    raise ValueError("it was refused")


@functools.lru_cache(maxsize=256)
def _name(kind: Any) -> str:
    return stored_name(f"{canonical_module(kind.__module__)}:{kind.__qualname__}")
