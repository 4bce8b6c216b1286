"""Digests of values beside those of `codec`: of long texts without parsing them, and of earlier versions' texts.

A text in which nothing has to be sorted is not parsed and written again (`digest_of_text`).

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from ramify.runtime.codec import codec
from ramify.runtime.codec.encoder import sort_encoded
from ramify.runtime.codec.long_texts import PIECE, has_surrogates, parts_of_base64, parts_of_string, sha256_of
from ramify.runtime.codec.object_state import TAG
from ramify.runtime.codec.persisted_names import stored_name
from ramify.runtime.user_code.workflow_loader import canonical_module


def digest_of_result(value: object, text: str) -> str:
    """Return `codec.digest_text(text)`. `text`: the encoded value, which nobody has changed since."""
    return sha256_of(_parts_of_value(value)) if _is_long(value) else _digest_with(value, text)


def digest_of_text(text: str) -> str:
    """Return `codec.digest_text(text)`. A text without objects is its own canonical form."""
    return sha256_of([text]) if "{" not in text else codec.digest_text(text)


def _digest_with(value: object, text: str) -> str:
    """Return `codec.digest_text(text)`; a long text is not parsed for it if its value tells enough."""
    if len(text) <= PIECE or "{" not in text:
        return digest_of_text(text)
    if _is_in_order(value):
        return sha256_of([text])
    return codec.digest_text(text) if f'"{TAG}"' in text else codec.digest_of_parsed(text, value)


def _is_in_order(value: object) -> bool:
    """Whether the encoded value is its own canonical form, because nothing in it has to be sorted."""
    kind, items = type(value), value
    if isinstance(value, dict) and kind is dict:
        names = list(value)
        if not set(map(type, names)) <= {str} or TAG in value or not all(map(str.isascii, names)):
            return False
        if names != sorted(names):
            return False
        items = value.values()
    elif kind not in (list, tuple):
        return kind in _ATOMS
    kinds: set[type] = set(map(type, items))  # type: ignore[call-overload]
    return kinds <= _ATOMS or all(map(_is_in_order, items))  # type: ignore[call-overload]


_ATOMS = frozenset((str, bytes, bytearray, int, float, bool, type(None)))


def digest_of_arguments(arguments: Mapping[str, object], text: str) -> str:
    """Return `codec.digest_text(text)`. `text`: the encoded arguments, by name. If none of them holds an object, only
    the names have an order."""
    is_plain = text.count("{") == 1 and f'"{TAG}":' not in text  # so the names are strings
    if is_plain and list(arguments) == sorted(arguments):
        return sha256_of([text])
    if len(text) > PIECE and _is_in_order(arguments):
        return sha256_of([text])
    return digest_of_text(text)  # not `digest_of_parsed`: a thread may have changed an argument since


def digest_of_long_arguments(arguments: Mapping[str, object]) -> str | None:
    """Return `codec.digest_text` of the encoded arguments without writing them as one text. None if it has to be
    written: no argument is long bytes or a long string, or one has surrogates."""
    if not any(map(_is_long, arguments.values())):
        return None
    if any(type(one) is str and has_surrogates(one) for one in arguments.values()):
        return None
    return sha256_of(_parts(arguments))


def _is_long(value: object) -> bool:
    """Whether a value is long bytes, or a long string without surrogates."""
    return (type(value) is bytes and len(value) > PIECE) or (
        type(value) is str and len(value) > PIECE and not has_surrogates(value)
    )


def _parts(arguments: Mapping[str, object]) -> Iterator[str]:
    for at, name in enumerate(sorted(arguments)):
        yield f"{',' if at else '{'}{json.dumps(name)}:"
        yield from _parts_of_value(arguments[name])
    yield "}"


def _parts_of_value(value: object) -> Iterator[str]:
    if type(value) is str:
        yield from parts_of_string(value)
    elif type(value) is bytes:
        yield f'{{"{TAG}":"bytes","v":"'
        yield from parts_of_base64(value)
        yield '"}'
    else:
        yield codec.encode(value)


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


def digest_in_journal(journal: KnownDigests, value: object, text: str) -> str:
    """Return the digest by which this run's journal knows a value. `text`: the value as encoded today."""
    now = digest_of_arguments(value, text) if type(value) is dict else codec.digest_text(text)
    if not journal.has_digests:
        return now
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
    digests = (codec.digest_text(earlier) for earlier in journal.earlier_texts(text))
    return next((digest for digest in digests if journal.has_digest(digest)), None)


def _digest_before(value: object) -> str | None:
    """Return the digest of earlier versions, or None if they refused the value."""
    try:
        text = json.dumps(_encode(value), separators=(",", ":"), ensure_ascii=True)
        return codec.digest_text(text)
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
