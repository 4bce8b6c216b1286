"""The encoder: values to the JSON that the journal stores, `{"$": kind, …}`. The decoder is its counterpart.

| kind | content |
|---|---|
| str, float | text in which two surrogates form a pair; a number that JSON cannot write |
| bytes, bytearray, uuid, decimal, fraction, complex, path, purepath, ip, range, slice, pattern, const | itself |
| datetime, time, date, timedelta, delta, tz | in ISO format; besides, `z` for the zone, and `fold` |
| tuple, set, frozenset, deque, dict, ordered, defaultdict | its items, encoded; a dict's as pairs |
| enum, member | a member by its value; by its name if the value does not identify it |
| dataclass, model | the fields; `more`, `extra`, `private`: other state; `set`: pydantic's fields that were set |
| pydantic | a model's own JSON, for fields of types that only pydantic can write; `set` as above |
| namedtuple, sub | the items, or the value of the built-in base type `b`; `s`: its state |
| error, validation, url | an exception; pydantic's ValidationError; pydantic's addresses |

`t` names the type, as `type_names` writes it. `aside` is state that does not belong to the digest (`ASIDE`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from types import NoneType
from typing import Any
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

from ramify.runtime.codec.canonical import sort_encoded
from ramify.runtime.codec.decoder import Decoder
from ramify.runtime.codec.exceptions import encode_error, encode_validation_error
from ramify.runtime.codec.long_texts import PIECE, width_and_more
from ramify.runtime.codec.object_state import (
    ASIDE,
    IPS,
    TAG,
    dataclass_layout,
    distinct_parts,
    is_cached_property,
    is_undefined,
    is_url,
    model_json,
    private_defaults,
    refusal,
    slots_of,
)
from ramify.runtime.codec.times import encode_date, encode_datetime, encode_timedelta, encode_tzinfo
from ramify.runtime.codec.type_names import ref_of
from ramify.runtime.errors import NotSerialisable

_PLAIN = frozenset((NoneType, bool, int))
_STR, _FLOAT = frozenset((str,)), frozenset((float,))
_JSON = frozenset((float, list, dict))
_IN_ORDER = frozenset((tuple, set, frozenset, bytes, bytearray))
"""Kinds whose encoded form is sorted already."""
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")  # JSON would read it back as one character
_LOOK_AT, _MANY_TIMES = 1_000_000, 100
_MANY = 64  # items that are worth a look at all of them together
_NUMBER = 8  # about the characters of a number, and of a key

_BASE_VALUE: Mapping[type, Callable[[Any], Any]] = {
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


def _whole(texts: Iterable[str]) -> bool:
    return not any(map(_PAIR.search, texts))


class Encoder:
    """Encodes one value. What it returns holds no container of the value's, and nothing else that can be changed.

    Besides JSON's own types it holds bytes, whose base64 is written into the text.

    unsure: the value contains an object whose class may change what is decoded. by_text: only the text tells what is
    decoded. tagged: it holds more than JSON's own types. in_order: nothing in it has to be sorted for the digest.
    uncanonical: more than JSON's own objects may have to be sorted for it, or left out. size: about the number of
    characters of its text with those beyond ASCII as they are. containers: their number.
    """

    def __init__(self) -> None:
        self.unsure = self.by_text = self.tagged = self.uncanonical = False
        self.in_order = True
        self.size = self.containers = 0
        self._width, self._escapes = 1, 0  # of strings beyond ASCII, see `width_and_more`
        self._has_surrogates = False
        self._written, self._look_at = 0, _LOOK_AT
        self._root: object = None
        self._caching = set[int]()  # the objects whose cached properties are being encoded
        self._objects = dict[Any, Writer]()  # by class
        self._refs, self._names = dict[Any, Any](), dict[Any, frozenset[str]]()  # by class

    @property
    def size_in_ascii(self) -> int:
        """About the number of characters of its text in ASCII."""
        return self.size + self._escapes

    @property
    def is_shorter_in_unicode(self) -> bool:
        """Whether the text is long, and takes less memory with characters beyond ASCII as they are."""
        if self.size <= PIECE or not self._escapes or self._has_surrogates:
            return False
        return self._width * self.size < self.size + self._escapes

    def encode(self, value: object, where: str) -> Any:
        self._root = value
        return self.part(value, where)

    def part(self, value: Any, where: str) -> Any:
        """Return a part of the value, encoded. `where`: its place, for errors."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is str:
            self.size += len(value)
            return value if value.isascii() else self._str(value)
        if kind not in _JSON:
            self.tagged = True
            self.in_order = self.in_order and kind in _IN_ORDER
        write = WRITERS.get(kind)
        return write(self, value, where) if write is not None else self._object(value, where)

    def can_store(self, value: object, where: str) -> bool:
        """Whether a part of the value can be stored."""
        try:
            self.part(value, where)
        except NotSerialisable:
            return False
        return True

    def _ref(self, kind: Any, where: str) -> Any:
        if (ref := self._refs.get(kind)) is None:
            ref = self._refs[kind] = ref_of(kind, where)
        return ref

    def _as_is(self, one: Any) -> bool:
        """Whether a part is encoded as it is. Takes less time than `part`, whose caller has to name its place."""
        kind = type(one)
        if kind is str and one.isascii():
            self.size += len(one)
            return True
        return kind in _PLAIN or (kind is float and math.isfinite(one))

    def _are_json(self, items: Collection[Any]) -> bool:
        """Whether many items are all encoded as they are. It looks at them without a step of Python for each."""
        kinds = set(map(type, items))
        if kinds == _STR:
            if not all(map(str.isascii, items)):
                return False
            self.size += sum(map(len, items))
        elif kinds == _FLOAT and all(map(math.isfinite, items)):
            self.size += _NUMBER * len(items)
        elif not kinds <= _PLAIN:
            return False
        self.size += _NUMBER * len(items)
        return True

    def _str(self, value: str, _: str = "") -> Any:
        if (found := width_and_more(value)) is not None:
            self._width, self._escapes = max(self._width, found[0]), self._escapes + found[1]
            return value
        self._has_surrogates = True
        if _PAIR.search(value) is None:
            return value
        self.tagged = True
        return {TAG: "str", "v": [ord(one) for one in value]}

    def _float(self, value: float, _: str) -> Any:
        if math.isfinite(value):
            return value
        self.tagged = True
        return {TAG: "float", "v": repr(value)}

    def _items(self, items: Iterable[Any], where: str) -> list[Any]:
        self._count()
        found = list(items)  # code of the user's that the encoder calls, or a thread, may change the list meanwhile
        self.size += len(found)
        if len(found) >= _MANY and self._are_json(found):
            return found
        return [one if self._as_is(one) else self.part(one, f"{where}[{at}]") for at, one in enumerate(found)]

    def _count(self) -> None:
        """Refuse values that share parts excessively: each shared part is written once per place, so n nested lists
        that hold the next one twice would be written 2^n times."""
        self.containers += 1
        self._written += 1
        if self._written > self._look_at:
            if distinct_parts(self._root) * _MANY_TIMES < self._written:
                raise NotSerialisable(
                    "the value holds the same objects so many times that it cannot be written out: pass each "
                    "object once, and refer to it by name"
                )
            self._look_at *= 4

    def _list(self, value: list[Any], where: str) -> Any:
        return self._items(value, where)

    def _tuple(self, value: tuple[Any, ...], where: str) -> Any:
        return {TAG: "tuple", "v": self._items(value, where)}

    def _set(self, value: set[Any] | frozenset[Any], where: str) -> Any:
        items = [self.part(one, f"{where}{{}}") for one in value]
        return {TAG: type(value).__name__, "v": sort_encoded(items)}

    def _dict(self, value: dict[Any, Any], where: str) -> Any:
        self._count()
        value = dict(value)  # as in `_items`
        self.size += 2 * _NUMBER * len(value)
        if set(map(type, value)) <= _STR and TAG not in value and (all(map(str.isascii, value)) or _whole(value)):
            if self.in_order and len(value) > 1:
                names = list(value)
                self.in_order = names == sorted(names)
            if len(value) >= _MANY and self._are_json(value.values()):
                return value
            return {
                key: one if self._as_is(one) else self.part(one, f"{where}[{key!r}]") for key, one in value.items()
            }
        self.tagged = self.uncanonical = True
        self.in_order = False
        return {TAG: "dict", "v": self._pairs(value.items(), where)}

    def _pairs(self, items: Iterable[tuple[Any, Any]], where: str) -> list[Any]:
        return [[self.part(key, f"{where} key"), self.part(one, f"{where}[{key!r}]")] for key, one in items]

    def _ordered(self, value: OrderedDict[Any, Any], where: str) -> Any:
        self._refuse_state(value, where)
        return {TAG: "ordered", "v": self._pairs(value.items(), where)}

    def _defaultdict(self, value: defaultdict[Any, Any], where: str) -> Any:
        made_by = value.default_factory
        if made_by is not None and not isinstance(made_by, type):
            raise NotSerialisable(f"{where} is a defaultdict made by {made_by!r}: pass dict(it), or name a class")
        by = None if made_by is None else ref_of(made_by, where)
        self.uncanonical = True
        return {TAG: "defaultdict", "f": by, "v": self._pairs(value.items(), where)}

    def _refuse_state(self, value: object, where: str) -> None:
        if vars(value):
            raise NotSerialisable(f"{where} is a {type(value).__name__} with attributes of its own: pass a dataclass")

    def _deque(self, value: deque[Any], where: str) -> Any:
        return {TAG: "deque", "v": self._items(value, where), "n": value.maxlen}

    def _bytes(self, value: bytes | bytearray, _: str) -> Any:
        self.size += 4 * len(value) // 3
        return {TAG: type(value).__name__, "v": bytes(value)}  # a thread may change a bytearray meanwhile

    def _text(self, value: object, _: str) -> Any:
        return {TAG: type(value).__name__.lower(), "v": str(value)}

    def _uuid(self, value: UUID, _: str) -> Any:
        kept = {TAG: "uuid", "v": str(value)}
        if value.is_safe is SafeUUID.unknown:
            return kept
        self.uncanonical = True
        return kept | {ASIDE: {"safe": value.is_safe.value}}

    def _complex(self, value: complex, where: str) -> Any:
        return {TAG: "complex", "v": [self._float(value.real, where), self._float(value.imag, where)]}

    def _path(self, value: PurePath, _: str) -> Any:
        return {TAG: "path", "v": self._str(str(value))}

    def _purepath(self, value: PurePath, _: str) -> Any:
        return {TAG: "purepath", "t": type(value).__name__, "v": self._str(str(value))}

    def _fraction(self, value: Fraction, _: str) -> Any:
        return {TAG: "fraction", "v": [value.numerator, value.denominator]}

    def _range(self, value: range | slice, where: str) -> Any:
        parts = [self.part(one, where) for one in (value.start, value.stop, value.step)]
        return {TAG: type(value).__name__, "v": parts}

    def _pattern(self, value: re.Pattern[Any], where: str) -> Any:
        return {TAG: "pattern", "v": self.part(value.pattern, where), "n": value.flags & ~re.DEBUG}

    def _const(self, value: object, _: str) -> Any:
        return {TAG: "const", "v": repr(value)}

    # Objects

    def _object(self, value: Any, where: str) -> Any:
        cls = type(value)
        if (write := self._objects.get(cls)) is None:
            write = self._objects[cls] = _writer_of(value, where)
        kept = write(self, value, where)
        self.containers += 2
        if kept[TAG] not in ("dataclass", "model") or ASIDE in kept:
            self.uncanonical = True
        return kept

    def _ip(self, value: Any, _: str) -> Any:
        return {TAG: "ip", "t": type(value).__name__, "v": str(value)}

    def _url(self, value: Any, where: str) -> Any:
        self.unsure = True
        return {TAG: "url", "t": self._ref(type(value), where), "v": str(value)}

    def _enum(self, value: Enum, where: str) -> Any:
        kind, name = type(value), value._name_  # the class may have a `name` of its own
        ref = self._ref(kind, where)
        try:
            if kind(value.value) is value:
                inner = Encoder()
                kept = {TAG: "enum", "t": ref, "v": inner._by_value(value, where)}
                return kept if name is None else kept | {ASIDE: {"name": name}}
        except (NotSerialisable, ValueError, TypeError):
            pass
        if name is None or kind.__members__.get(name) is not value:
            raise NotSerialisable(f"{where} is a {kind.__qualname__} that is not found by its value or by its name")
        return {TAG: "member", "t": ref, "v": name}

    def _by_value(self, value: Enum, where: str) -> Any:
        """Return the encoded value of an enum member. Raises `NotSerialisable` if decoding it gives another
        member."""
        encoded = self.part(value.value, where)
        if type(value)(Decoder().decode(encoded)) is not value:
            raise NotSerialisable(where)
        return encoded

    def _namedtuple(self, value: tuple[Any, ...], where: str) -> Any:
        items = [self.part(one, f"{where}.{at}") for at, one in enumerate(tuple.__iter__(value))]
        cls: Any = type(value)
        kept: dict[str, Any] = {TAG: "namedtuple", "t": self._ref(cls, where), "v": items}
        kept |= self._state(value, where)
        return kept | {ASIDE: {**kept.get(ASIDE, {}), "fields": list(cls._fields)}}

    def _sub(self, value: Any, where: str) -> Any:
        base = next(kind for kind in type(value).__mro__ if kind in _BASE_VALUE)
        if isinstance(value, defaultdict) and value.default_factory is not None:
            raise refusal(value, where)  # it is in no attribute that could be set again
        self.unsure = True
        plain = _BASE_VALUE[base](value)
        items = self._pairs(plain.items(), where) if base is dict else self.part(plain, where)
        kept = {TAG: "sub", "t": ref_of(type(value), where), "b": base.__name__, "v": items}
        return kept | self._state(value, where)

    def _state(self, value: object, where: str) -> dict[str, Any]:
        """Return the attributes of an object that has items as well."""
        return self._more(value, {**getattr(value, "__dict__", {}), **slots_of(value)}, where, "s")

    def _dataclass(self, value: Any, where: str) -> Any:
        cls: Any = type(value)
        ref, layout = self._ref(cls, where), dataclass_layout(cls)
        self.unsure = self.unsure or not layout.plain
        fields = {}
        for name in layout.fields:
            try:
                one = getattr(value, name)
            except AttributeError:  # a field with init=False that was never set
                continue
            fields[name] = one if self._as_is(one) else self.part(one, f"{where}.{name}")
        kept: dict[str, Any] = {TAG: "dataclass", "t": ref, "v": fields}
        if len(fields) < len(layout.fields):
            kept["unset"] = sorted(layout.fields.keys() - fields.keys())
        state = {name: getattr(value, name) for name in layout.slots if hasattr(value, name)} if layout.slots else {}
        inside = getattr(value, "__dict__", None)
        if inside and inside.keys() != fields.keys():
            state |= {name: one for name, one in inside.items() if name not in fields}
        if state:
            kept |= self._more(value, state, where)
        return kept

    def _more(self, value: object, state: dict[str, Any], where: str, called: str = "more") -> dict[str, Any]:
        """Return the state of an object besides its fields or items."""
        kept: dict[str, Any] = {}
        if (origin := state.pop("__orig_class__", None)) is not None:
            kept["orig"] = ref_of(origin, where)
        cached = {name: one for name, one in state.items() if is_cached_property(type(value), name)}
        if len(cached) < len(state):
            more = {name: one for name, one in state.items() if name not in cached}
            kept[called] = {name: self.part(one, f"{where}.{name}") for name, one in more.items()}
        if encoded := self._cached(value, cached, where):
            kept[ASIDE] = {"cached": encoded}
        return kept

    def _cached(self, value: object, cached: dict[str, Any], where: str) -> dict[str, Any]:
        """Return the cached properties that can be stored. The others are computed again when they are read."""
        if not cached:
            return {}
        if id(value) in self._caching:
            raise NotSerialisable(f"{where} refers to itself through a cached property")
        self._caching.add(id(value))
        kept = {}
        for name, one in cached.items():
            try:
                kept[name] = self.part(one, f"{where}.{name}")
            except Exception:  # noqa: BLE001  a cached value may be of any class: it is computed again when it is read
                continue
        self._caching.discard(id(value))
        return kept

    def _model(self, value: Any, where: str) -> Any:
        cls: Any = type(value)
        ref = self._ref(cls, where)
        try:
            return self._model_state(cls, value, where, ref)
        except NotSerialisable as refused:
            if (by_itself := model_json(cls, value)) is None:
                raise
            del refused
        self.by_text = True
        kept = {TAG: "pydantic", "t": ref, "v": by_itself}
        if value.model_fields_set != set(cls.model_fields):
            kept["set"] = sorted(value.model_fields_set)
        return kept

    def _model_state(self, cls: Any, value: Any, where: str, ref: Any) -> Any:
        if (names := self._names.get(cls)) is None:
            names = self._names[cls] = frozenset(cls.model_fields)
        state = dict(value.__dict__)
        fields = {
            name: one if self._as_is(one) else self.part(one, f"{where}.{name}")
            for name, one in state.items()
            if name in names
        }
        kept: dict[str, Any] = {TAG: "model", "t": ref, "v": fields}
        if len(fields) < len(names):
            kept["unset"] = sorted(names - state.keys())
        if len(fields) < len(state):
            kept |= self._more(value, {name: one for name, one in state.items() if name not in names}, where)
        given = value.__pydantic_fields_set__
        if given != names:
            kept["set"] = sorted(given)
        elif given != fields.keys():  # a field was set, and deleted
            kept.setdefault(ASIDE, {})["set"] = sorted(given)
        if value.__pydantic_extra__ is not None:
            kept["extra"] = self._dict(value.__pydantic_extra__, where)
        private = getattr(value, "__pydantic_private__", None)
        if private is not None and not cls.__pydantic_root_model__:
            told = {name: one for name, one in private.items() if not is_undefined(one)}
            kept["private"] = self._dict(told, where)
            if deleted := private_defaults(cls) - told.keys():
                kept.setdefault(ASIDE, {})["deleted"] = sorted(deleted)
        return kept


Writer = Callable[[Encoder, Any, str], Any]


def _writer_of(value: Any, where: str) -> Writer:
    """Return what encodes objects of the value's class."""
    cls = type(value)
    if isinstance(value, Enum):
        return Encoder._enum
    if cls.__module__ == "ipaddress" and cls.__name__ in IPS:
        return Encoder._ip
    if is_url(cls):
        return Encoder._url
    if cls.__module__.startswith("pydantic_core"):
        if cls.__name__ == "TzInfo":
            return encode_tzinfo
        if cls.__name__ == "ValidationError":
            return encode_validation_error
        raise refusal(value, where)
    if isinstance(value, BaseException):
        return encode_error
    if hasattr(cls, "__pydantic_validator__") and hasattr(value, "model_dump"):
        return Encoder._model
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return Encoder._namedtuple
    if any(kind in _BASE_VALUE for kind in cls.__mro__):
        return Encoder._sub
    if dataclasses.is_dataclass(value):
        return Encoder._dataclass
    raise refusal(value, where)


WRITERS: Mapping[type, Writer] = {
    float: Encoder._float,
    list: Encoder._list,
    dict: Encoder._dict,
    tuple: Encoder._tuple,
    set: Encoder._set,
    frozenset: Encoder._set,
    deque: Encoder._deque,
    OrderedDict: Encoder._ordered,
    defaultdict: Encoder._defaultdict,
    bytes: Encoder._bytes,
    bytearray: Encoder._bytes,
    Decimal: Encoder._text,
    UUID: Encoder._uuid,
    Fraction: Encoder._fraction,
    complex: Encoder._complex,
    range: Encoder._range,
    slice: Encoder._range,
    re.Pattern: Encoder._pattern,
    type(...): Encoder._const,
    type(NotImplemented): Encoder._const,
    type(Path()): Encoder._path,
    PurePosixPath: Encoder._purepath,
    PureWindowsPath: Encoder._purepath,
    date: encode_date,
    datetime: encode_datetime,
    time: encode_datetime,
    timedelta: encode_timedelta,
    timezone: encode_tzinfo,
    ZoneInfo: encode_tzinfo,
}
