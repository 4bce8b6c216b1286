"""Check from a declared return type whether no result could be stored.

This is checked before an irreversible step begins and before a run is created, because afterwards it is too late. If
the declaration leaves it open (no annotation, `Any`, an abstract class, a name that exists only for type checkers),
the result itself is checked later.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import functools
import inspect
import types
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from enum import Enum
from pathlib import PurePath
from types import MappingProxyType
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from ramify.runtime.codec.encoder import WRITERS
from ramify.runtime.codec.pydantic_objects import is_url
from ramify.runtime.codec.simple_values import is_ip
from ramify.runtime.codec.subclasses import BASES
from ramify.runtime.errors import NotSerialisable

_ITEMS = (
    *(list, tuple, set, frozenset, dict, deque, OrderedDict, defaultdict, Counter),
    *(abc.Iterable, abc.Collection, abc.Sequence, abc.MutableSequence, abc.Mapping, abc.MutableMapping),
    *(abc.Set, abc.MutableSet),
)
"""Types whose arguments are the types of their items."""

_Bound = Mapping[Any, Any]
_NONE_BOUND: _Bound = MappingProxyType({})
_NEVER = (
    abc.Iterator,
    abc.Generator,
    abc.AsyncIterator,
    abc.AsyncIterable,
    abc.AsyncGenerator,
    abc.Awaitable,
    abc.Coroutine,
    abc.Callable,
    type,
    types.FunctionType,
    types.ModuleType,
)


def refuse_unstorable_return(function: Callable[..., Any], what: str) -> None:
    """Raise `NotSerialisable` if no value of the declared return type could be stored. `what`: names the function."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return
    if (why := _why_not(function)) is not None:
        raise NotSerialisable(
            f"{what} was not begun, since its result could not be kept: it is declared to return {why}. "
            "Return JSON values, a dataclass or a pydantic model, and annotate that"
        )


@functools.lru_cache(maxsize=1024)
def _why_not(function: Callable[..., Any]) -> str | None:
    try:
        declared = typing.get_type_hints(function).get("return")
        return _cannot(declared, frozenset())
    except Exception:  # noqa: BLE001  the annotation is not a type, or a name that exists only for type checkers
        return None


def _cannot(declared: Any, seen: frozenset[Any], bound: _Bound = _NONE_BOUND) -> str | None:
    """Say what of a declared type cannot be stored; None if it can, or if the declaration leaves it open. `bound`:
    the types that stand for type variables."""
    origin, args = get_origin(declared), get_args(declared)
    if declared is None or declared is types.NoneType or origin is Literal or declared in seen:
        return None
    if isinstance(declared, TypeVar):
        return _cannot(bound[declared], seen, bound) if declared in bound else None
    if isinstance(declared, NewType):
        return _cannot(declared.__supertype__, seen, bound)
    if origin is Annotated:
        return _cannot(args[0], seen, bound)
    if origin in (Union, types.UnionType):
        told = [_cannot(each, seen, bound) for each in args if each is not types.NoneType]
        return told[0] if told and all(told) else None
    if origin in (typing.Required, typing.NotRequired, typing.ClassVar, typing.Final):
        return _cannot(args[0], seen, bound) if args and origin is not typing.ClassVar else None
    if origin in _NEVER or declared in _NEVER:
        return f"{_shown(declared)}, which is not data"
    if origin in _ITEMS:
        return _first(_cannot(each, seen, bound) for each in args if each is not ...)
    if isinstance(origin, type):
        return _cannot_class(origin, seen | {declared}, _arguments(declared, bound))
    if not isinstance(declared, type):
        return None
    return _cannot_class(declared, seen | {declared}, _NONE_BOUND)


def _arguments(alias: Any, bound: _Bound) -> _Bound:
    """Return what a parametrised class, such as `Box[int]`, gives to its type variables."""
    parameters = getattr(get_origin(alias), "__parameters__", ())
    given = [bound.get(each, each) if isinstance(each, TypeVar) else each for each in get_args(alias)]
    return dict(zip(parameters, given, strict=False))


def _cannot_class(cls: Any, seen: frozenset[Any], bound: _Bound) -> str | None:
    if cls in (object, Any) or inspect.isabstract(cls) or getattr(cls, "_is_protocol", False):
        return None
    if "<locals>" in cls.__qualname__:
        return f"{cls.__qualname__}, which is defined inside a function: move it to the module's top level"
    if hasattr(cls, "get_secret_value"):
        return f"the secret {_shown(cls)}"
    for base in getattr(cls, "__orig_bases__", ()):  # class Orders(list[Order]), class Page(Box[Order])
        bound = {**_arguments(base, bound), **bound}
        if get_origin(base) in _ITEMS and (why := _cannot(base, seen, bound)) is not None:
            return f"{_shown(cls)}, whose items are {why}"
    if typing.is_typeddict(cls):
        return _of_fields(cls, typing.get_type_hints(cls), seen, bound)
    if hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_fields"):
        return _of_fields(cls, _fields_of_model(cls), seen, bound)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _of_fields(cls, typing.get_type_hints(cls), seen, bound)
    if cls in WRITERS or issubclass(cls, (Enum, BaseException, PurePath, tzinfo, *BASES.values())):
        return None
    if is_url(cls) or is_ip(cls) or cls is types.NoneType or cls is bool:
        return None
    if dataclasses.is_dataclass(cls):
        return _of_fields(cls, typing.get_type_hints(cls), seen, bound)
    if any(_cannot(sub, seen) is None for sub in cls.__subclasses__()):
        return None
    return f"{_shown(cls)}, which the journal cannot keep"


def _fields_of_model(cls: Any) -> dict[str, Any]:
    """Return the fields of a pydantic model that are known to decide: secrets, models, and classes that pydantic
    itself knows nothing of (`arbitrary_types_allowed`). Of the others, a value may be of another type than the field
    is declared to be, as `EmailStr` is a `str`."""
    arbitrary = bool(cls.model_config.get("arbitrary_types_allowed"))
    return {
        name: field.annotation
        for name, field in cls.model_fields.items()
        if hasattr(field.annotation, "get_secret_value")
        or hasattr(field.annotation, "model_fields")
        or (arbitrary and _is_unknown_to_pydantic(field.annotation))
    }


def _is_unknown_to_pydantic(declared: Any) -> bool:
    return (
        isinstance(declared, type)
        and type(declared) is type
        and not hasattr(declared, "__get_pydantic_core_schema__")
    )


def _of_fields(cls: Any, fields: dict[str, Any], seen: frozenset[Any], bound: _Bound) -> str | None:
    for name, declared in fields.items():
        if (why := _cannot(declared, seen, bound)) is not None:
            return f"{_shown(cls)}, whose {name!r} is {why}"
    return None


def _first(told: Iterable[str | None]) -> str | None:
    return next((one for one in told if one is not None), None)


def _shown(declared: Any) -> str:
    return f"a {declared.__module__}.{declared.__qualname__}" if isinstance(declared, type) else f"{declared}"
