"""A policy's options: a dataclass, made from the names and values that a user gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from math import isnan
from typing import Any, get_args, get_origin, get_type_hints


def make_options(values: Mapping[str, object], *kinds: type[Any]) -> tuple[Any, ...]:
    """Make an instance of each dataclass from the values of its fields. A field that is a dataclass itself has its
    fields beside the others.

    Raises ValueError, naming the option, if there is none of this name, or if its value has another type than the
    field. A dataclass raises the same from `__post_init__` for a value out of range.
    """
    known = [name for kind in kinds for name in _names(kind)]
    for name in values:
        if name not in known:
            raise ValueError(f"there is no option {name}: there are {', '.join(known) or 'none'}")
    return tuple(_make(kind, values) for kind in kinds)


def _names(kind: type[Any]) -> list[str]:
    names: list[str] = []
    for one, hint in _fields(kind):
        names += _names(hint) if isinstance(hint, type) and is_dataclass(hint) else [one.name]
    return names


def _fields(kind: type[Any]) -> list[tuple[Field[Any], Any]]:
    """The fields that users can set, with their types. Functions are for code."""
    hints = get_type_hints(kind)
    return [(one, hints[one.name]) for one in fields(kind) if one.init and not _is_function(hints[one.name])]


def _is_function(hint: Any) -> bool:
    return getattr(get_origin(hint), "__name__", "") == "Callable"


def _make(kind: type[Any], values: Mapping[str, object]) -> Any:
    given: dict[str, object] = {}
    for one, hint in _fields(kind):
        if isinstance(hint, type) and is_dataclass(hint):
            given[one.name] = _make(hint, values)
        elif one.name in values:
            given[one.name] = _value(one.name, values[one.name], hint)
    return kind(**given)


def _value(name: str, value: object, hint: Any) -> object:
    """Return the value of an option as its field has it. Raises ValueError if the types differ."""
    if type(None) in get_args(hint):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
        if value is None:
            return None
    if get_origin(hint) is not None:
        keys, inner = get_args(hint)
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is {value!r}: it must be a JSON object")
        return {_value(name, key, keys): _value(f"{name}.{key}", one, inner) for key, one in value.items()}
    if issubclass(hint, Enum):
        if value not in list(hint):
            raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(str(one.value) for one in hint)}")
        return hint(value)
    if hint is float:
        if not _is_number(value):
            raise ValueError(f"{name} is {value!r}: it must be a number")
    elif not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        what = {bool: "true or false", int: "a whole number", str: "a text"}.get(hint, f"a {hint.__name__}")
        raise ValueError(f"{name} is {value!r}: it must be {what}")
    return value


def _is_number(value: object) -> bool:
    """Is it a number that a double can hold? True and False are not."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)
    except OverflowError:
        return False
