"""Values to JSON and back: what crosses a step's boundary and what the journal keeps.

JSON's own types stay as they are; everything else becomes `{"$": kind, …}`. No pickle: a stored value can name a
dataclass, an enum or a pydantic model by module and qualified name, never code to run. Encoding is canonical, so
its sha256 is a digest of the value.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, cast
from uuid import UUID

from ramify.runtime.errors import NotSerialisable
from ramify.runtime.loading import canonical_module, main_is

_TAG = "$"

_SIMPLE: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda v: base64.b64encode(v).decode(), base64.b64decode),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    timedelta: ("timedelta", timedelta.total_seconds, lambda s: timedelta(seconds=s)),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
    complex: ("complex", lambda v: [v.real, v.imag], lambda v: complex(*v)),
}
_DECODE_SIMPLE = {name: decode for name, _, decode in _SIMPLE.values()}


def encode(value: object) -> str:
    """Canonical JSON of a value. Raises `NotSerialisable` naming the place inside the value."""
    return json.dumps(_encode(value, "value"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def decode(text: str) -> Any:
    """The value that `encode` was given."""
    return _decode(json.loads(text))


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest(value: object) -> str:
    """sha256, hex, of the canonical encoding."""
    return digest_text(encode(value))


def _encode(value: object, where: str) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value if not isinstance(value, Enum) else _encode_enum(value)
    if isinstance(value, Enum):
        return _encode_enum(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if isinstance(value, int):
        return int(value)
    if type(value) is list:
        return [_encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if type(value) is dict:
        return _encode_dict(value, where)
    if type(value) is tuple:
        return {_TAG: "tuple", "v": [_encode(v, f"{where}[{i}]") for i, v in enumerate(value)]}
    if isinstance(value, set | frozenset):
        items = [_encode(v, f"{where}{{}}") for v in value]
        return {_TAG: type(value).__name__, "v": sorted(items, key=lambda i: json.dumps(i, sort_keys=True))}
    if isinstance(value, PurePath):
        return {_TAG: "path", "v": str(value)}
    if (simple := _SIMPLE.get(type(value))) is not None:
        return {_TAG: simple[0], "v": simple[1](value)}
    return _encode_object(value, where)


def _encode_enum(value: Enum) -> Any:
    return {_TAG: "enum", "t": _type_name(type(value)), "v": value.name}


def _encode_dict(value: dict[Any, Any], where: str) -> Any:
    if all(isinstance(k, str) and not isinstance(k, Enum) for k in value) and _TAG not in value:
        return {k: _encode(v, f"{where}[{k!r}]") for k, v in value.items()}
    pairs = [[_encode(k, f"{where} key"), _encode(v, f"{where}[{k!r}]")] for k, v in value.items()]
    return {_TAG: "dict", "v": sorted(pairs, key=lambda p: json.dumps(p[0], sort_keys=True))}


def _encode_object(value: object, where: str) -> Any:
    cls = type(value)
    if dataclasses.is_dataclass(value):
        fields = {f.name: _encode(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)}
        return {_TAG: "dataclass", "t": _type_name(cls), "v": fields}
    if hasattr(cls, "__pydantic_validator__") and hasattr(value, "model_dump"):
        return {_TAG: "pydantic", "t": _type_name(cls), "v": value.model_dump(mode="json")}
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        items = [_encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
        return {_TAG: "namedtuple", "t": _type_name(cls), "v": items}
    raise NotSerialisable(
        f"{where} is a {cls.__module__}.{cls.__qualname__}, which the journal cannot keep. "
        "Pass JSON values, dataclasses, enums, paths, bytes, tuples, sets or pydantic models across a step"
    )


def _type_name(cls: type) -> str:
    if "<locals>" in cls.__qualname__:
        raise NotSerialisable(f"{cls.__qualname__} is defined inside a function: move it to the module's top level")
    return f"{canonical_module(cls.__module__)}:{cls.__qualname__}"


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_TAG)
    if kind is None:
        return {k: _decode(v) for k, v in value.items()}
    return _decode_tagged(kind, value)


def _decode_tagged(kind: str, value: dict[str, Any]) -> Any:
    body = value["v"]
    if kind in _DECODE_SIMPLE:
        return _DECODE_SIMPLE[kind](body)
    if kind == "float":
        return float(body)
    if kind == "path":
        return Path(body)
    if kind in ("tuple", "set", "frozenset"):
        make: Callable[[Any], Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}[kind]
        return make(_decode(v) for v in body)
    if kind == "dict":
        return {_decode(k): _decode(v) for k, v in body}
    return _decode_object(kind, _find_type(value["t"]), body)


def _decode_object(kind: str, cls: Any, body: Any) -> Any:
    if kind == "enum" and issubclass(cls, Enum):
        return cls[body]
    if kind == "pydantic" and hasattr(cls, "__pydantic_validator__"):
        return cls.model_validate(body)
    if kind == "namedtuple" and issubclass(cls, tuple):
        return cls(*(_decode(v) for v in body))
    if kind == "dataclass" and dataclasses.is_dataclass(cls):
        # not through __init__: a field may be init=False, and __post_init__ has had its say already
        made: Any = object.__new__(cast(type, cls))
        for name, v in body.items():
            object.__setattr__(made, name, _decode(v))
        return made
    raise NotSerialisable(f"a stored value names {cls!r} as a {kind}, which it is not (any more)")


def _find_type(name: str) -> Any:
    module_name, _, qualname = name.partition(":")
    try:
        found: Any = sys.modules["__main__"] if main_is(module_name) else importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise NotSerialisable(f"a stored value is a {name}, which cannot be imported: {error}") from error
    return found
