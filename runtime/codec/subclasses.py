"""Named tuples and other subclasses of built-in types: how they are encoded and decoded.

A named tuple is stored as its items, with the names of its fields aside (`namedtuple`). Any other is stored as the
value of its base type, with its attributes (`sub`).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from ramify.runtime.codec.attributes import encode_all_attributes, with_attributes
from ramify.runtime.codec.coders import Decodes, Encodes, checked, not_any_more
from ramify.runtime.codec.object_parts import ASIDE, TAG, refusal
from ramify.runtime.errors import NotSerialisable

_VALUE_OF_BASE: Mapping[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    bytearray: lambda v: bytearray.__getitem__(v, slice(None)),
    int: int.__index__,
    float: float.__float__,
    complex: complex.__pos__,
    list: lambda v: list(list.__iter__(v)),
    tuple: lambda v: tuple(tuple.__iter__(v)),
    dict: lambda v: dict((OrderedDict if isinstance(v, OrderedDict) else dict).items(v)),
    set: lambda v: set(set.__iter__(v)),
    frozenset: lambda v: frozenset(frozenset.__iter__(v)),
}
BASES: Mapping[str, type] = {kind.__name__: kind for kind in _VALUE_OF_BASE}
"""The built-in types whose subclasses are stored, by name."""


def encode_namedtuple(encoder: Encodes, value: tuple[Any, ...], where: str) -> Any:
    items = [encoder.part(one, f"{where}.{at}") for at, one in enumerate(tuple.__iter__(value))]
    cls: Any = type(value)
    kept: dict[str, Any] = {TAG: "namedtuple", "t": encoder.ref(cls, where), "v": items}
    kept |= encode_all_attributes(encoder, value, where)
    return kept | {ASIDE: {**kept.get(ASIDE, {}), "fields": list(cls._fields)}}


def decode_namedtuple(decoder: Decodes, cls: Any, body: Any, value: Any) -> Any:
    fields = getattr(checked(cls, tuple, "namedtuple"), "_fields", None)
    items = decoder.items(body)
    if fields is None:
        raise not_any_more(cls, "namedtuple")
    if (named := value.get(ASIDE, {}).get("fields")) is not None and tuple(named) != fields[: len(items)]:
        items = _in_order_of_now(cls, fields, dict(zip(named, items, strict=True)))
    items += [cls._field_defaults[name] for name in fields[len(items) :] if name in cls._field_defaults]
    if len(items) != len(fields):
        raise NotSerialisable(f"a stored {cls.__qualname__} has {len(body)} fields, and the class {len(fields)}")
    return with_attributes(decoder, tuple.__new__(cls, items), value)


def _in_order_of_now(cls: Any, fields: tuple[str, ...], stored: Mapping[str, Any]) -> list[Any]:
    """Return the items of a named tuple whose class had its fields in another order; new fields get their default."""
    if lost := [name for name in stored if name not in fields]:
        raise NotSerialisable(f"a stored {cls.__qualname__} has {lost[0]!r}, which is no longer a field of the class")
    given = {**cls._field_defaults, **stored}
    if lacks := [name for name in fields if name not in given]:
        raise NotSerialisable(
            f"a stored {cls.__qualname__} lacks {lacks[0]!r}, which the class requires: give the field a default"
        )
    return [given[name] for name in fields]


def is_subclass(cls: type) -> bool:
    """Whether a class is one of the types in `BASES` or a subclass of one."""
    return any(kind in _VALUE_OF_BASE for kind in cls.__mro__)


def encode_subclass(encoder: Encodes, value: Any, where: str) -> Any:
    base = next(kind for kind in type(value).__mro__ if kind in _VALUE_OF_BASE)
    if isinstance(value, defaultdict) and value.default_factory is not None:
        raise refusal(value, where)  # it is in no attribute that could be set again
    encoder.unsure = True
    plain = _VALUE_OF_BASE[base](value)
    items = encoder.pairs(plain.items(), where) if base is dict else encoder.part(plain, where)
    kept = {TAG: "sub", "t": encoder.ref(type(value), where), "b": base.__name__, "v": items}
    return kept | encode_all_attributes(encoder, value, where)


def decode_subclass(decoder: Decodes, cls: Any, body: Any, value: Any) -> Any:
    base: Any = BASES.get(value["b"])
    if base is None or not isinstance(cls, type) or not issubclass(cls, base):
        raise not_any_more(cls, str(value["b"]))
    items: Any = decoder.pairs(body) if base is dict else decoder.decode(body)
    if base in (list, dict, set, bytearray):
        made: Any = base.__new__(cls)
        if base is bytearray:
            bytearray.__init__(made, items)
        elif issubclass(cls, OrderedDict):  # `dict.update` would leave its list of keys empty
            for key, one in items:
                OrderedDict.__setitem__(made, key, one)
        else:
            (list.extend if base is list else base.update)(made, items)
    else:
        made = base.__new__(cls, items)
    return with_attributes(decoder, made, value)
