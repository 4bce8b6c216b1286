"""Objects of dataclasses: how they are encoded and decoded. They are stored as their fields, without calling their
code. `fields_of_now` also decodes the fields of pydantic models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MemberDescriptorType
from typing import Any, NamedTuple, cast

from ramify.runtime.codec.attributes import encode_attributes, slot_names, with_attributes
from ramify.runtime.codec.coders import SCALARS, Decodes, Encodes, not_any_more
from ramify.runtime.codec.object_parts import TAG
from ramify.runtime.errors import NotSerialisable

_BARE = 3  # `$`, `t` and `v`: there is no state besides the fields


class _Layout(NamedTuple):
    """Where the state of a dataclass lies. `slots`: slots that are not fields. `plain`: an instance can be restored
    by setting its fields, because no field is a custom descriptor."""

    fields: dict[str, None]
    slots: tuple[str, ...]
    plain: bool


@functools.lru_cache(maxsize=1024)
def _layout(cls: Any) -> _Layout:
    names = dict.fromkeys(field.name for field in dataclasses.fields(cls))
    found = [vars(owner)[name] for name in names for owner in cls.__mro__ if name in vars(owner)]
    plain = not any(hasattr(one, "__set__") and not isinstance(one, MemberDescriptorType) for one in found)
    slots = tuple(name for name in slot_names(cls) if name not in names)
    return _Layout(names, slots, plain and cls.__getattribute__ is object.__getattribute__)


def encode_dataclass(encoder: Encodes, value: Any, where: str) -> Any:
    cls: Any = type(value)
    ref, layout = encoder.ref(cls, where), _layout(cls)
    encoder.unsure = encoder.unsure or not layout.plain
    fields = {}
    for name in layout.fields:
        try:
            one = getattr(value, name)
        except AttributeError:  # a field with init=False that was never set
            continue
        fields[name] = one if encoder.is_plain(one) else encoder.part(one, f"{where}.{name}")
    kept: dict[str, Any] = {TAG: "dataclass", "t": ref, "v": fields}
    if len(fields) < len(layout.fields):
        kept["unset"] = sorted(layout.fields.keys() - fields.keys())
    more = {name: getattr(value, name) for name in layout.slots if hasattr(value, name)} if layout.slots else {}
    inside = getattr(value, "__dict__", None)
    if inside and inside.keys() != fields.keys():
        more |= {name: one for name, one in inside.items() if name not in fields}
    if more:
        kept |= encode_attributes(encoder, value, more, where)
    return kept


def decode_dataclass(decoder: Decodes, cls: Any, body: Any, value: Any) -> Any:
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise not_any_more(cls, "dataclass")
    # without __init__: a field may have init=False, and __post_init__ ran before the value was stored
    made: Any = object.__new__(cast(type, cls))
    for name, one in fields_of_now(decoder, cls, body, value, _fields(cls), _default).items():
        object.__setattr__(made, name, one)
    return made if len(value) == _BARE else with_attributes(decoder, made, value, "more")


@functools.lru_cache(maxsize=1024)
def _fields(cls: Any) -> Mapping[str, Any]:
    return {field.name: field for field in dataclasses.fields(cls)}


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise LookupError(field.name)


def fields_of_now(
    decoder: Decodes,
    cls: Any,
    body: Mapping[str, Any],
    value: Mapping[str, Any],
    fields: Mapping[str, Any],
    default: Callable[[Any], Any],
) -> dict[str, Any]:
    """Return the fields of an object as the class declares them now; new fields get their default. body: the stored
    fields. value: the encoded object. fields: those of the class. default: returns that of one, or raises
    `LookupError`."""
    state = {
        name: one if type(one) in SCALARS else decoder.decode(one) for name, one in body.items() if name in fields
    }
    if len(state) < len(body) and not cls.__module__.startswith("ramify."):
        lost = next(name for name in body if name not in fields)
        raise NotSerialisable(f"a stored {cls.__qualname__} has {lost!r}, which is no longer a field of the class")
    if len(state) == len(fields):
        return state
    for name in fields.keys() - state.keys() - set(value.get("unset", ())):
        try:
            state[name] = default(fields[name])
        except LookupError:
            why = f"a stored {cls.__qualname__} lacks {name!r}, which the class requires: give the field a default"
            raise NotSerialisable(why) from None
    return state
