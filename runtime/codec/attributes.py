"""Attributes of objects besides their fields or items: how they are encoded and decoded.

Such are those that were set later, slots that are no fields, and cached properties. Cached properties are kept aside:
they are computed again if they cannot be stored.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MemberDescriptorType
from typing import Any

from ramify.runtime.codec.coders import Decodes, Encodes
from ramify.runtime.codec.object_parts import ASIDE
from ramify.runtime.codec.type_names import ref_of
from ramify.runtime.errors import NotSerialisable


def encode_attributes(
    encoder: Encodes, value: object, found: Mapping[str, Any], where: str, called: str = "more"
) -> dict[str, Any]:
    """Return the parts of an encoded object that hold these attributes. called: the name of the main part."""
    state = dict(found)
    kept: dict[str, Any] = {}
    if (origin := state.pop("__orig_class__", None)) is not None:
        kept["orig"] = ref_of(origin, where)
    cached = {name: one for name, one in state.items() if is_cached_property(type(value), name)}
    if len(cached) < len(state):
        more = {name: one for name, one in state.items() if name not in cached}
        kept[called] = {name: encoder.part(one, f"{where}.{name}") for name, one in more.items()}
    if encoded := _encode_cached(encoder, value, cached, where):
        kept[ASIDE] = {"cached": encoded}
    return kept


def encode_all_attributes(encoder: Encodes, value: object, where: str) -> dict[str, Any]:
    """Return the parts of an encoded object that hold all of its attributes: it has items as well."""
    return encode_attributes(encoder, value, {**getattr(value, "__dict__", {}), **slots_of(value)}, where, "s")


def _encode_cached(encoder: Encodes, value: object, cached: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the cached properties that can be stored. The others are computed again when they are read."""
    if not cached:
        return {}
    if id(value) in encoder.caching:
        raise NotSerialisable(f"{where} refers to itself through a cached property")
    encoder.caching.add(id(value))
    kept = {}
    for name, one in cached.items():
        try:
            kept[name] = encoder.part(one, f"{where}.{name}")
        except Exception:  # noqa: BLE001  a cached value may be of any class: it is computed again when it is read
            continue
    encoder.caching.discard(id(value))
    return kept


def with_attributes(decoder: Decodes, made: Any, value: Mapping[str, Any], called: str = "s") -> Any:
    """Return an object, which was decoded without its attributes, with those of the encoded one."""
    for name, one in value.get(called, {}).items():
        if isinstance(getattr(type(made), name, None), MemberDescriptorType):  # a slot
            object.__setattr__(made, name, decoder.decode(one))
        else:
            vars(made)[name] = decoder.decode(one)
    if "orig" in value:
        object.__setattr__(made, "__orig_class__", decoder.type_of(value["orig"]))
    for name, one in decode_cached(decoder, type(made), value):
        vars(made)[name] = one
    return made


def decode_cached(decoder: Decodes, cls: type, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the stored values of the cached properties that the class still has."""
    cached = value[ASIDE].get("cached", {}) if ASIDE in value else {}
    return [(name, decoder.decode(one)) for name, one in cached.items() if is_cached_property(cls, name)]


def is_cached_property(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), functools.cached_property)


def slots_of(value: Any) -> dict[str, Any]:
    cls: Any = type(value)
    return {name: getattr(value, name) for name in slot_names(cls) if hasattr(value, name)}


@functools.lru_cache(maxsize=1024)
def slot_names(cls: Any) -> tuple[str, ...]:
    return tuple(
        name
        for owner in cls.__mro__
        for name, found in vars(owner).items()
        if isinstance(found, MemberDescriptorType) and owner.__module__ != "builtins" and not name.startswith("__")
    )
