"""The decoder: the JSON that the journal stores back to values, including what earlier versions wrote.

Code of the stored classes runs only if it cannot be avoided: an object is created without `__init__` and gets its
state. Exceptions are enum lookups, pydantic models that were stored as their own JSON (`pydantic`), and the
constructors of built-in exceptions.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import ipaddress
import operator
import pathlib
import re
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from types import MemberDescriptorType, NoneType
from typing import Any, cast
from uuid import UUID, SafeUUID

from ramify.runtime.codec.exceptions import decode_error, decode_validation_error
from ramify.runtime.codec.object_state import ASIDE, BASES, IPS, TAG, is_cached_property, is_url
from ramify.runtime.codec.times import decode_zone
from ramify.runtime.codec.type_names import resolve
from ramify.runtime.errors import NotSerialisable

Find = Callable[[str], Any]

_BARE = 3  # `$`, `t` and `v`: a dataclass with no state besides its fields
_SCALARS = frozenset((NoneType, bool, int, float, str))
_MANY = 64  # items that are worth a look at all of them together

OWN_KINDS = frozenset({"str", "float", "bytes", "tuple", "set", "frozenset", "dict", "path", "dataclass", "enum"})
"""The kinds that occur in Ramify's own records."""


class Decoder:
    """Decodes one value. `find`: looks up type names. `kinds`: the kinds that are allowed, None for all."""

    def __init__(self, find: Find | None = None, kinds: frozenset[str] | None = None) -> None:
        self._find = find
        self._kinds = kinds
        self._types = dict[str, Any]()  # by name
        self._models = dict[Any, tuple[Mapping[str, Any], Mapping[str, Any]]]()  # their fields and private attributes

    def decode(self, value: Any) -> Any:
        shape = type(value)
        if shape is list:
            if len(value) >= _MANY and _SCALARS.issuperset(map(type, value)):
                return value[:]
            return [one if type(one) in _SCALARS else self.decode(one) for one in value]
        if shape is not dict:
            return value
        kind = value.get(TAG)
        if kind is None:
            return {key: one if type(one) in _SCALARS else self.decode(one) for key, one in value.items()}
        if self._kinds is not None and kind not in self._kinds:
            raise NotSerialisable(
                f"a stored value is of the kind {kind!r}, and not what Ramify itself recorded there"
            )
        if (read := _READERS.get(kind)) is not None:
            return read(self, value["v"], value)
        if (make := _OBJECTS.get(kind)) is not None:
            return make(self, self._type(value["t"]), value["v"], value)
        raise NotSerialisable(f"a stored value is of the kind {kind!r}, which this version of Ramify does not know")

    def _type(self, ref: Any) -> Any:
        if type(ref) is not str:
            return resolve(ref, self._find)
        if ref not in self._types:
            self._types[ref] = resolve(ref, self._find)
        return self._types[ref]

    # Values

    def _items(self, body: Any, _: Any = None) -> list[Any]:
        return [self.decode(one) for one in body]

    def _pairs(self, body: Any) -> list[tuple[Any, Any]]:
        return [(self.decode(key), self.decode(one)) for key, one in body]

    def _uuid(self, body: str, value: Any) -> UUID:
        return UUID(body, is_safe=SafeUUID(value.get(ASIDE, {}).get("safe")))

    def _complex(self, body: Any, _: Any) -> complex:
        return complex(*self._items(body))

    def _defaultdict(self, body: Any, value: Any) -> Any:
        made_by = None if value["f"] is None else resolve(value["f"], self._find)
        return defaultdict(made_by, self._pairs(body))

    def _datetime(self, body: str, value: Any) -> Any:
        return self._placed(datetime.fromisoformat(body), value)

    def _time(self, body: str, value: Any) -> Any:
        return self._placed(time.fromisoformat(body), value)

    def _placed(self, found: Any, value: Any) -> Any:
        if "z" in value:
            found = found.replace(tzinfo=decode_zone(value["z"]))
        return found.replace(fold=1) if value.get("fold") else found

    def _path(self, body: Any, _: Any) -> pathlib.Path:
        return pathlib.Path(self.decode(body))

    def _purepath(self, body: Any, value: Any) -> pathlib.PurePath:
        windows = value["t"] == "PureWindowsPath"
        return (pathlib.PureWindowsPath if windows else pathlib.PurePosixPath)(self.decode(body))

    def _ip(self, body: str, value: Any) -> Any:
        if value["t"] not in IPS:
            raise NotSerialisable(f"a stored value names {value['t']!r} as an address, but it is not a valid one")
        return getattr(ipaddress, value["t"])(body)

    def _pattern(self, body: Any, value: Any) -> re.Pattern[Any]:
        return re.compile(self.decode(body), value["n"])

    def _range(self, body: Any, _: Any) -> range:
        return range(*self._items(body))

    def _slice(self, body: Any, _: Any) -> slice:
        return slice(*self._items(body))

    # Objects

    def _enum(self, cls: Any, body: Any, value: Any) -> Any:
        given, name = self.decode(body), value.get(ASIDE, {}).get("name")
        try:
            found = _is(cls, Enum, "enum")(given)
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

    def _member(self, cls: Any, body: str, _: Any) -> Any:
        try:
            return _is(cls, Enum, "enum")[body]
        except KeyError:
            raise NotSerialisable(
                f"a stored value is {cls.__qualname__}.{body}, which the class does not have now"
            ) from None

    def _namedtuple(self, cls: Any, body: Any, value: Any) -> Any:
        fields = getattr(_is(cls, tuple, "namedtuple"), "_fields", None)
        items = self._items(body)
        if fields is None:
            raise _not_any_more(cls, "namedtuple")
        if (named := value.get(ASIDE, {}).get("fields")) is not None and tuple(named) != fields[: len(items)]:
            items = _in_order_of_now(cls, fields, dict(zip(named, items, strict=True)))
        items += [cls._field_defaults[name] for name in fields[len(items) :] if name in cls._field_defaults]
        if len(items) != len(fields):
            raise NotSerialisable(f"a stored {cls.__qualname__} has {len(body)} fields, and the class {len(fields)}")
        return self._given_state(tuple.__new__(cls, items), value)

    def _sub(self, cls: Any, body: Any, value: Any) -> Any:
        base: Any = BASES.get(value["b"])
        if base is None or not isinstance(cls, type) or not issubclass(cls, base):
            raise _not_any_more(cls, str(value["b"]))
        items: Any = self._pairs(body) if base is dict else self.decode(body)
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
        return self._given_state(made, value)

    def _given_state(self, made: Any, value: Any) -> Any:
        for name, one in value.get("s", {}).items():
            if isinstance(getattr(type(made), name, None), MemberDescriptorType):  # a slot
                object.__setattr__(made, name, self.decode(one))
            else:
                vars(made)[name] = self.decode(one)
        if "orig" in value:
            object.__setattr__(made, "__orig_class__", resolve(value["orig"], self._find))
        for name, one in self._cached(type(made), value):
            vars(made)[name] = one
        return made

    def _cached(self, cls: type, value: Any) -> list[tuple[str, Any]]:
        """Return the stored values of the cached properties that the class still has."""
        cached = value[ASIDE].get("cached", {}) if ASIDE in value else {}
        return [(name, self.decode(one)) for name, one in cached.items() if is_cached_property(cls, name)]

    def _dataclass(self, cls: Any, body: Any, value: Any) -> Any:
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
            raise _not_any_more(cls, "dataclass")
        # without __init__: a field may have init=False, and __post_init__ ran before the value was stored
        made: Any = object.__new__(cast(type, cls))
        for name, one in self._fields(cls, body, value, _fields_of(cls), _dataclass_default).items():
            object.__setattr__(made, name, one)
        return made if len(value) == _BARE else self._given_state(made, {**value, "s": value.get("more", {})})

    def _fields(
        self,
        cls: Any,
        body: Mapping[str, Any],
        value: Mapping[str, Any],
        fields: Mapping[str, Any],
        default: Callable[[Any], Any],
    ) -> dict[str, Any]:
        """Return the fields of an object as the class declares them now; new fields get their default."""
        state = {
            name: one if type(one) in _SCALARS else self.decode(one) for name, one in body.items() if name in fields
        }
        if len(state) < len(body) and not cls.__module__.startswith("ramify."):
            lost = next(name for name in body if name not in fields)
            raise NotSerialisable(
                f"a stored {cls.__qualname__} has {lost!r}, which is no longer a field of the class"
            )
        if len(state) == len(fields):
            return state
        for name in fields.keys() - state.keys() - set(value.get("unset", ())):
            try:
                state[name] = default(fields[name])
            except LookupError:
                why = (
                    f"a stored {cls.__qualname__} lacks {name!r}, which the class requires: give the field a default"
                )
                raise NotSerialisable(why) from None
        return state

    def _model(self, cls: Any, body: Any, value: Any) -> Any:
        from pydantic_core import PydanticUndefined

        if (parts := self._models.get(cls) if isinstance(cls, type) else None) is None:
            parts = self._models[cls] = _model_parts(cls)
        fields, private = parts
        made = cls.__new__(cls)
        state = self._fields(cls, body, value, fields, _model_default)
        aside = value.get(ASIDE, {})
        if "more" in value:
            state |= {name: self.decode(one) for name, one in value["more"].items()}
        if aside:
            state.update(self._cached(cls, value))
        object.__setattr__(made, "__dict__", state)
        object.__setattr__(
            made, "__pydantic_fields_set__", set(value["set"] if "set" in value else aside.get("set", body))
        )
        if cls.__pydantic_root_model__:  # root models have no extra or private state
            return made
        object.__setattr__(made, "__pydantic_extra__", self.decode(value.get("extra")))
        told: dict[str, Any] | None = self.decode(value.get("private"))
        if private:
            told, known = told or {}, {*(told or {}), *aside.get("deleted", ())}
            for name, attribute in private.items():
                if name not in known and (one := _private_default(attribute, state | told)) is not PydanticUndefined:
                    told[name] = one
        object.__setattr__(made, "__pydantic_private__", told)
        return made

    def _pydantic(self, cls: Any, body: Any, value: Any) -> Any:
        _model_parts(cls)
        made = cls.model_validate(body)
        if "set" in value:
            object.__setattr__(made, "__pydantic_fields_set__", set(value["set"]))
        return made

    def _url(self, cls: Any, body: str, _: Any) -> Any:
        if not isinstance(cls, type) or not is_url(cls):
            raise _not_any_more(cls, "url")
        made: Any = cls
        return made(body)


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


@functools.lru_cache(maxsize=1024)
def _fields_of(cls: Any) -> Mapping[str, Any]:
    return {field.name: field for field in dataclasses.fields(cls)}


def _dataclass_default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise LookupError(field.name)


def _model_default(field: Any) -> Any:
    if field.is_required():
        raise LookupError
    return field.get_default(call_default_factory=True)


def _private_default(attribute: Any, validated: Mapping[str, Any]) -> Any:
    """Return the value that a new model gives to its private attribute."""
    if attribute.default_factory is None:
        return attribute.get_default()
    takes_data = getattr(attribute, "default_factory_takes_validated_data", False)  # older pydantics lack it
    return attribute.default_factory(validated) if takes_data else attribute.default_factory()


def _model_parts(cls: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if not isinstance(cls, type) or not hasattr(cls, "__pydantic_validator__") or not hasattr(cls, "model_validate"):
        raise _not_any_more(cls, "pydantic")
    found: Any = cls
    return found.model_fields, found.__private_attributes__


def _is(cls: Any, base: type, kind: str) -> Any:
    if not isinstance(cls, type) or not issubclass(cls, base):
        raise _not_any_more(cls, kind)
    return cls


def _not_any_more(cls: Any, kind: str) -> NotSerialisable:
    return NotSerialisable(f"a stored value names {cls!r} as a {kind}, but it is not one now")


def _from_base64(body: str | bytes) -> bytes:
    return body if isinstance(body, bytes) else base64.b64decode(body)  # long bytes are decoded already


_READERS: Mapping[str, Callable[[Decoder, Any, Any], Any]] = {
    "str": lambda _, v, __: "".join(map(chr, v)),
    "float": lambda _, v, __: float(v),
    "bytes": lambda _, v, __: _from_base64(v),
    "bytearray": lambda _, v, __: bytearray(_from_base64(v)),
    "decimal": lambda _, v, __: Decimal(v),
    "uuid": Decoder._uuid,
    "fraction": lambda _, v, __: Fraction(*v),
    "complex": Decoder._complex,
    "path": Decoder._path,
    "purepath": Decoder._purepath,
    "ip": Decoder._ip,
    "range": Decoder._range,
    "slice": Decoder._slice,
    "pattern": Decoder._pattern,
    "const": lambda _, v, __: {"Ellipsis": ..., "NotImplemented": NotImplemented}[v],
    "date": lambda _, v, __: date.fromisoformat(v),
    "datetime": Decoder._datetime,
    "time": Decoder._time,
    "timedelta": lambda _, v, __: timedelta(seconds=v),
    "delta": lambda _, v, __: timedelta(*v),
    "tz": lambda _, v, __: decode_zone(v),
    "tuple": lambda self, v, _: tuple(self._items(v)),
    "set": lambda self, v, _: set(self._items(v)),
    "frozenset": lambda self, v, _: frozenset(self._items(v)),
    "deque": lambda self, v, value: deque(self._items(v), value["n"]),
    "dict": lambda self, v, _: dict(self._pairs(v)),
    "ordered": lambda self, v, _: OrderedDict(self._pairs(v)),
    "defaultdict": Decoder._defaultdict,
    "validation": decode_validation_error,
}

_OBJECTS: Mapping[str, Callable[[Decoder, Any, Any, Any], Any]] = {
    "enum": Decoder._enum,
    "member": Decoder._member,
    "namedtuple": Decoder._namedtuple,
    "sub": Decoder._sub,
    "dataclass": Decoder._dataclass,
    "model": Decoder._model,
    "pydantic": Decoder._pydantic,
    "error": decode_error,
    "url": Decoder._url,
}
