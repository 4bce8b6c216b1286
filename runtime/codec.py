"""Values to JSON and back: what crosses a step's boundary and what the journal keeps.

JSON's own types stay as they are; everything else becomes `{"$": kind, …}`. No pickle: a stored value can name a
dataclass, an enum or a pydantic model by module and qualified name, never code to run. What comes back is equal to
what went in and of the same type, or `encode` refuses it. The order of a dict is kept, and is no part
of a digest but that of `digest_as_given`.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import importlib
import json
import math
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import FunctionType, MemberDescriptorType
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


def encode(value: object, what: str = "value") -> str:
    """JSON of a value, ASCII only. Raises `NotSerialisable` naming the place inside the value, which is `what`."""
    try:
        return json.dumps(_encode(value, what), separators=(",", ":"), ensure_ascii=True)
    except RecursionError as error:
        where = _holds_itself(value, what)
        why = f"{where} is a value that it is itself a part of" if where else "it is nested too deeply"
        mend = "Pass a flat value, with names for what it refers to"
        raise NotSerialisable(f"{what} cannot be kept: {why}. {mend}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise NotSerialisable(f"{what} cannot be kept: {error}") from error


def _holds_itself(value: object, what: str) -> str | None:
    """Where, in the value, one stands that is around itself; None where none was found."""
    around, seen = set[int](), set[int]()  # each is gone through once: what is shared may be reached in 2^n ways
    todo: list[tuple[object, str, int]] = [(value, what, 0)]
    while todo:
        one, where, depth = todo.pop()
        if depth < 0:  # all inside it was gone through
            around.discard(id(one))
            continue
        if id(one) in around:
            return where
        if id(one) in seen or depth >= sys.getrecursionlimit():
            continue
        around.add(id(one))
        seen.add(id(one))
        todo.append((one, where, -1))
        inner: list[tuple[object, object]] = []
        if isinstance(one, Mapping):
            inner = [(f"[{key!r}]", each) for key, each in one.items()]
        elif isinstance(one, list | tuple):
            inner = [(f"[{at}]", each) for at, each in enumerate(one)]
        elif dataclasses.is_dataclass(one) or hasattr(type(one), "__pydantic_validator__"):
            inner = [(f".{name}", each) for name, each in getattr(one, "__dict__", {}).items()]
        todo += ((each, f"{where}{part}", depth + 1) for part, each in reversed(inner))
    return None


def decode(text: str) -> Any:
    """The value that `encode` was given."""
    return _decode(json.loads(text))


def digest_text(text: str) -> str:
    """sha256, hex, of what `encode` gave, whatever the order of its dicts."""
    canonical = json.dumps(_canonical(json.loads(text)), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def digest_as_given(text: str) -> str:
    """The same, of dicts in their order: code may loop over one, and what it makes of it is another result then."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest(value: object) -> str:
    """sha256, hex, of a value: equal for equal values of equal types."""
    return digest_text(encode(value))


def _canonical(value: Any) -> Any:
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.get(_TAG) == "dict":
        return {_TAG: "dict", "v": _sorted(_canonical(value["v"]))}
    return {k: _canonical(v) for k, v in value.items()}


def _sorted(encoded: list[Any]) -> list[Any]:
    return sorted(encoded, key=lambda item: json.dumps(item, sort_keys=True))


def _encode(value: object, where: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, Enum):
        return {_TAG: "enum", "t": _type_name(kind), "v": _encode(value.value, where)}
    if kind is float:
        return value if math.isfinite(cast(float, value)) else {_TAG: "float", "v": repr(value)}
    if kind is list:
        return [_encode(v, f"{where}[{i}]") for i, v in enumerate(cast(list[Any], value))]
    if kind is dict:
        return _encode_dict(cast(dict[Any, Any], value), where)
    if kind is tuple:
        return {_TAG: "tuple", "v": [_encode(v, f"{where}[{i}]") for i, v in enumerate(cast(tuple[Any, ...], value))]}
    if kind in (set, frozenset):
        items = [_encode(v, f"{where}{{}}") for v in cast(set[Any], value)]
        return {_TAG: kind.__name__, "v": _sorted(items)}
    if isinstance(value, Path):
        return {_TAG: "path", "v": str(value)}
    if (simple := _SIMPLE.get(kind)) is not None:
        return {_TAG: simple[0], "v": simple[1](value)}
    return _encode_object(value, where)


def _encode_dict(value: dict[Any, Any], where: str) -> Any:
    if all(isinstance(k, str) and not isinstance(k, Enum) for k in value) and _TAG not in value:
        return {k: _encode(v, f"{where}[{k!r}]") for k, v in value.items()}
    return {
        _TAG: "dict",
        "v": [[_encode(k, f"{where} key"), _encode(v, f"{where}[{k!r}]")] for k, v in value.items()],
    }


_BUILTIN = (str, bytes, int, float, complex, list, dict, set, frozenset, BaseException)


def _encode_object(value: object, where: str) -> Any:
    cls = type(value)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return {
            _TAG: "namedtuple",
            "t": _type_name(cls),
            "v": [_encode(v, f"{where}.{i}") for i, v in enumerate(value)],
        }
    if isinstance(value, BaseException):
        args = value.__reduce__()[1] if isinstance(value, OSError) else value.args  # which lack its file names
        state = {name: v for name, v in vars(value).items() if name not in _OF_ITS_RUN}
        parts = [args, state, _slots(value), *([] if value.__cause__ is None else [value.__cause__])]
        return {_TAG: "error", "t": _type_name(cls), "v": [_encode(one, where) for one in parts]}
    if hasattr(cls, "__pydantic_validator__") and hasattr(value, "model_dump"):
        return {_TAG: "pydantic", "t": _type_name(cls), "v": _encode_pydantic(cls, value, where)}
    if dataclasses.is_dataclass(value) and not isinstance(value, (*_BUILTIN, tuple)):
        fields = {f.name: _encode(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)}
        if more := [
            name for name in getattr(value, "__dict__", ()) if name not in fields and not _is_cached(cls, name)
        ]:
            raise NotSerialisable(f"{where} is a {cls.__qualname__} with {more[0]!r}, which is not among its fields")
        return {_TAG: "dataclass", "t": _type_name(cls), "v": fields}
    if isinstance(value, Awaitable):
        what = getattr(value, "__qualname__", cls.__qualname__)
        if hasattr(cls, "__aenter__"):
            raise NotSerialisable(
                f"{where} is something to enter ({what}), and not what is found inside: write `async with` around "
                "the call, and hand over what comes of it there"
            )
        raise NotSerialisable(f"{where} is something to await ({what}), and not what comes of it: write `await`")
    raise NotSerialisable(
        f"{where} is a {cls.__module__}.{cls.__qualname__}, which the journal cannot keep. "
        "Pass JSON values, dataclasses, enums, paths, bytes, tuples, sets or pydantic models across a step"
    )


def _encode_pydantic(cls: Any, value: Any, where: str) -> Any:
    """A model's own JSON, where it loses nothing: it blurs bytes and text in an `Any`, secrets, NaN, a subclass."""
    body = value.model_dump(mode="json", by_alias=True)
    try:
        same = cls.model_validate(body) == value
    except ValueError:  # pydantic's own is one
        same = False
    if not same:
        raise NotSerialisable(
            f"{where} is a {cls.__qualname__} that its own JSON does not bring back as it is. Give its fields types "
            "that JSON keeps, without `exclude`, secrets or NaN"
        )
    return body


def _slots(error: BaseException) -> dict[str, Any]:
    """What is not in its `__dict__`: `__slots__`, and what built-in classes hold beside their arguments."""
    classes = (cls for cls in type(error).__mro__ if cls not in (OSError, BaseExceptionGroup))  # theirs are arguments
    names = {name for cls in classes for name, d in vars(cls).items() if isinstance(d, MemberDescriptorType)}
    found = ((name, getattr(error, name, None)) for name in sorted(names) if not name.startswith("__"))
    return {name: v for name, v in found if v is not None and not any(v is one for one in error.args)}


_OF_ITS_RUN = ("__notes__", "__ramify_step__")
"""Of an error: what the runtime wrote on it."""


def _is_cached(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), functools.cached_property)


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
    if kind == "error" and issubclass(cls, BaseException):
        args, state, *more = map(_decode, body)  # rows of before had those two
        # not through an __init__ of the user's, which may take other arguments than it hands on
        error = cls.__new__(cls, *args) if isinstance(cls.__init__, FunctionType) else cls(*args)
        vars(error).update(state)
        for name, v in (more[0] if more else {}).items():
            setattr(error, name, v)
        if more[1:]:
            error.__cause__ = more[1]
        return error
    if kind == "enum" and issubclass(cls, Enum):
        return cls(_decode(body))
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
