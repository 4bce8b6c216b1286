"""Members of enums: how they are encoded and decoded.

A member is stored by its value (`enum`), with its name aside; by its name if the value does not identify it
(`member`). The class may change after that. A renamed member is found by its value. A value that another member has
now is refused.
"""

from __future__ import annotations

import functools
import operator
import sys
from enum import Enum, Flag
from typing import Any

from ramify.runtime.codec.coders import Decodes, Encodes, checked
from ramify.runtime.codec.object_parts import ASIDE, TAG
from ramify.runtime.errors import NotSerialisable


def encode_enum(encoder: Encodes, value: Enum, where: str) -> Any:
    kind, name = type(value), value._name_  # the class may have a `name` of its own
    ref = encoder.ref(kind, where)
    try:
        if kind(value.value) is value:
            encoded, decoded = encoder.encoded_and_decoded(value.value, where)
            if kind(decoded) is value:
                kept = {TAG: "enum", "t": ref, "v": encoded}
                return kept if name is None else kept | {ASIDE: {"name": name}}
    except (NotSerialisable, ValueError, TypeError):
        pass
    if name is None or kind.__members__.get(name) is not value:
        raise NotSerialisable(f"{where} is a {kind.__qualname__} that is not found by its value or by its name")
    return {TAG: "member", "t": ref, "v": name}


def decode_enum(decoder: Decodes, cls: Any, body: Any, value: Any) -> Any:
    given, name = decoder.decode(body), value.get(ASIDE, {}).get("name")
    try:
        found = checked(cls, Enum, "enum")(given)
    except ValueError:
        raise NotSerialisable(
            f"a stored value is {cls.__qualname__}({given!r}), which the class no longer has"
        ) from None
    if name is None or found._name_ == name or _is_named(cls, found, name):
        return found
    if name not in cls.__members__ and isinstance(given, str):  # renamed: its text still says what it means
        return found
    raise NotSerialisable(
        f"a stored value is {cls.__qualname__}.{name}, with the value {given!r}, which now is "
        f"{cls.__qualname__}.{found._name_}: give the members the values that they had (`auto()` counts them in "
        f"order), and keep the name of a renamed one as an alias, `{name} = {found._name_}`"
    )


def decode_member(_decoder: Decodes, cls: Any, body: str, _: Any) -> Any:
    try:
        return checked(cls, Enum, "enum")[body]
    except KeyError:
        raise NotSerialisable(
            f"a stored value is {cls.__qualname__}.{body}, which the class does not have now"
        ) from None


def _is_named(cls: Any, found: Any, name: str) -> bool:
    """Whether the class has the member under that name too. Versions of Python name members of its own classes
    differently, with the same values."""
    if cls.__module__.partition(".")[0] in sys.stdlib_module_names:
        return True
    if issubclass(cls, Flag) and isinstance(found._value_, int):
        return _has_bits(cls, found._value_, name)
    return cls.__members__.get(name) is found


def _has_bits(cls: Any, value: int, name: str) -> bool:
    """Whether a flag has the bits of its former name, such as `A|B`, or `A|8` if a bit had no name. A name of several
    bits, such as `AB`, may be gone: they were those of members with names of their own."""
    bits = {one: int(one) for one in name.split("|") if one.isdecimal()}
    bits |= {one: cls.__members__[one]._value_ for one in name.split("|") if one in cls.__members__}
    if not bits:
        return "|" not in name and value & (value - 1) != 0
    return len(bits) == name.count("|") + 1 and functools.reduce(operator.or_, bits.values()) == value
