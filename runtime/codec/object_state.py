"""The parts and the state of objects, for the encoder: find cycles, count distinct parts, read slots and fields."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections import deque
from collections.abc import Awaitable, Iterator, Mapping
from datetime import datetime, time
from decimal import Decimal
from types import MemberDescriptorType
from typing import Any, NamedTuple

from ramify.runtime.errors import NotSerialisable

TAG = "$"
"""The key that marks an encoded object: `{"$": kind, …}`."""
ASIDE = "aside"
"""The part of an encoded object that is decoded but does not belong to its digest: cached properties, notes of
errors, and other state that earlier versions did not store, so that the digests which they recorded are found."""
IPS = ("IPv4Address", "IPv4Interface", "IPv4Network", "IPv6Address", "IPv6Interface", "IPv6Network")
_URLS = ("_BaseUrl", "_BaseMultiHostUrl", "Url", "MultiHostUrl")
BASES: Mapping[str, type] = {
    kind.__name__: kind for kind in (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset)
}
"""Built-in types whose subclasses are stored by value."""


def without_aside(encoded: Any) -> Any:
    """Return an encoded value without the state that does not belong to its digest."""
    if isinstance(encoded, list):
        return [without_aside(one) for one in encoded]
    if not isinstance(encoded, dict):
        return encoded
    return {key: without_aside(one) for key, one in encoded.items() if key != ASIDE or TAG not in encoded}


def find_cycle(value: object, what: str) -> str | None:
    """Return the place of an object in the value that contains itself; None if there is none."""
    around, seen = set[int](), set[int]()  # each object is visited once: shared ones may be reached in 2^n ways
    todo: list[tuple[object, str, int]] = [(value, what, 0)]
    while todo:
        one, where, depth = todo.pop()
        if depth < 0:  # all of its parts have been visited
            around.discard(id(one))
            continue
        if id(one) in around:
            return where
        if id(one) in seen or depth >= sys.getrecursionlimit():
            continue
        around.add(id(one))
        seen.add(id(one))
        todo.append((one, where, -1))
        todo += ((each, f"{where}{part}", depth + 1) for part, each in reversed(list(parts_of(one))))
    return None


def distinct_parts(value: object) -> int:
    """Return the number of distinct objects in the value."""
    seen, todo = set[int](), [value]
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            todo += (each for _, each in parts_of(one))
    return len(seen)


def parts_of(one: object) -> Iterator[tuple[str, Any]]:
    """Yield the direct parts of an object, each with its place, such as `[3]` or `.name`."""
    if isinstance(one, Mapping):
        yield from ((f"[{key!r}]", each) for key, each in one.items())
    elif isinstance(one, list | tuple | deque):
        yield from ((f"[{at}]", each) for at, each in enumerate(one))
    elif dataclasses.is_dataclass(one) or hasattr(type(one), "__pydantic_validator__"):
        names = [field.name for field in dataclasses.fields(one)] if dataclasses.is_dataclass(one) else []
        state = {name: getattr(one, name, None) for name in names} | getattr(one, "__dict__", {})
        yield from ((f".{name}", each) for name, each in state.items())


def is_url(cls: type) -> bool:
    return any(
        kind.__module__ in ("pydantic.networks", "pydantic_core._pydantic_core") and kind.__name__ in _URLS
        for kind in cls.__mro__
    )


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same types, in all their parts."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if hasattr(type(one), "__pydantic_validator__") and hasattr(one, "model_dump"):
        return same(one.__dict__, other.__dict__) and one.model_fields_set == other.model_fields_set
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name, None), getattr(other, name, None)) for name in names)
    if isinstance(one, float | complex | Decimal):
        return repr(one) == repr(other)
    if isinstance(one, datetime | time):
        zones = [(type(each.tzinfo), str(each.tzinfo), each.fold) for each in (one, other)]
        return one.replace(tzinfo=None) == other.replace(tzinfo=None) and zones[0] == zones[1]
    return bool(one == other)


def slots_of(value: Any) -> dict[str, Any]:
    cls: Any = type(value)
    return {name: getattr(value, name) for name in _slot_names(cls) if hasattr(value, name)}


@functools.lru_cache(maxsize=1024)
def _slot_names(cls: Any) -> tuple[str, ...]:
    return tuple(
        name
        for owner in cls.__mro__
        for name, found in vars(owner).items()
        if isinstance(found, MemberDescriptorType) and owner.__module__ != "builtins" and not name.startswith("__")
    )


def is_cached_property(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), functools.cached_property)


class DataclassLayout(NamedTuple):
    """Where the state of a dataclass lies. `slots`: slots that are not fields. `plain`: an instance can be restored
    by setting its fields, because no field is a custom descriptor."""

    fields: dict[str, None]
    slots: tuple[str, ...]
    plain: bool


@functools.lru_cache(maxsize=1024)
def dataclass_layout(cls: Any) -> DataclassLayout:
    names = dict.fromkeys(field.name for field in dataclasses.fields(cls))
    found = [vars(owner)[name] for name in names for owner in cls.__mro__ if name in vars(owner)]
    plain = not any(hasattr(one, "__set__") and not isinstance(one, MemberDescriptorType) for one in found)
    slots = tuple(name for name in _slot_names(cls) if name not in names)
    return DataclassLayout(names, slots, plain and cls.__getattribute__ is object.__getattribute__)


def model_json(cls: Any, value: Any) -> Any:
    """Return a model's own JSON; None if validating it does not give back an equal model."""
    try:
        body = value.model_dump(mode="json", by_alias=True)
        back = cls.model_validate(body)
        json.dumps(body)
    except Exception:  # noqa: BLE001  a validator or a serialiser of the user's own
        return None
    if type(back) is not type(value) or not same(back.__dict__, value.__dict__):
        return None
    hidden = ("__pydantic_extra__", "__pydantic_private__")
    if not all(same(getattr(back, name, None) or {}, getattr(value, name, None) or {}) for name in hidden):
        return None
    return body


def is_undefined(value: object) -> bool:
    return type(value).__name__ == "PydanticUndefinedType"


def private_defaults(cls: Any) -> set[str]:
    """Return the private attributes of a model class that every new model has."""
    private = cls.__private_attributes__.items()
    return {name for name, one in private if one.default_factory is not None or not is_undefined(one.default)}


def refusal(value: object, where: str) -> NotSerialisable:
    """Return the error for a value that cannot be stored, with advice."""
    cls = type(value)
    if isinstance(value, Awaitable):
        what = getattr(value, "__qualname__", cls.__qualname__)
        if hasattr(cls, "__aenter__"):
            return NotSerialisable(
                f"{where} is a context manager ({what}), not the value inside it: write `async with` around "
                "the call, and pass the value"
            )
        return NotSerialisable(f"{where} is an awaitable ({what}), not its result: write `await`")
    if hasattr(cls, "get_secret_value"):
        return NotSerialisable(
            f"{where} is a {cls.__module__}.{cls.__qualname__}: the journal stores no secrets. Read it inside the "
            "step that uses it"
        )
    return NotSerialisable(
        f"{where} is a {cls.__module__}.{cls.__qualname__}, which the journal cannot keep. "
        "Pass JSON values, dataclasses, enums, paths, bytes, tuples, sets or pydantic models across a step"
    )
