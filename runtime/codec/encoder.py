"""The encoder: values to the JSON that the journal stores, `{"$": kind, …}`. The decoder is its counterpart.

| kind | content | module |
|---|---|---|
| str, float | text in which two surrogates form a pair; a number that JSON cannot write | here |
| tuple, set, frozenset, deque, dict, ordered, defaultdict | its items, encoded; a dict's as pairs | here |
| bytes, bytearray, uuid, decimal, fraction, complex, path, purepath, ip, range, slice, pattern, const | itself | \
`simple_values` |
| datetime, time, date, timedelta, delta, tz | in ISO format; besides, `z` for the zone, and `fold` | `times` |
| enum, member | a member by its value; by its name if the value does not identify it | `enums` |
| namedtuple, sub | the items, or the value of the built-in base type `b`; `s`: its attributes | `subclasses` |
| dataclass | the fields; `unset`: those without a value; `more`: other attributes | `dataclass_objects` |
| model | as a dataclass; `extra`, `private`: other state; `set`: the fields that were set | `pydantic_objects` |
| pydantic | a model's own JSON, if only pydantic can write a field; `set` as above | `pydantic_objects` |
| url | an address of pydantic's | `pydantic_objects` |
| error, validation | an exception; pydantic's ValidationError | `exceptions` |

`t` names the type, as `type_names` writes it. `aside` is state that does not belong to the digest (`ASIDE`).

Start at `Encoder.part`. `WRITERS` has what encodes values of a built-in type, `_writer_of` finds what encodes others.
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
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from ramify.runtime.codec import simple_values
from ramify.runtime.codec.canonical import sort_encoded
from ramify.runtime.codec.dataclass_objects import encode_dataclass
from ramify.runtime.codec.decoder import Decoder
from ramify.runtime.codec.enums import encode_enum
from ramify.runtime.codec.exceptions import encode_error, encode_validation_error
from ramify.runtime.codec.long_texts import PIECE, width_and_more
from ramify.runtime.codec.object_parts import ASIDE, TAG, distinct_parts, refusal
from ramify.runtime.codec.pydantic_objects import encode_model, encode_url, is_model, is_url
from ramify.runtime.codec.subclasses import encode_namedtuple, encode_subclass, is_subclass
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


def _whole(texts: Iterable[str]) -> bool:
    return not any(map(_PAIR.search, texts))


class Encoder:
    """Encodes one value. What it returns holds no container of the value's, and nothing else that can be changed.

    Besides JSON's own types it holds bytes, whose base64 is written into the text.

    unsure: the value contains an object whose class may change what is decoded. by_text: only the text tells what is
    decoded. tagged: it holds more than JSON's own types. in_order: nothing in it has to be sorted for the digest.
    uncanonical: more than JSON's own objects may have to be sorted for it, or left out. size: about the number of
    characters of its text with those beyond ASCII as they are. containers: their number.

    caching: the objects whose cached properties are being encoded, by id. field_names: those of models, by class.
    """

    def __init__(self) -> None:
        self.unsure = self.by_text = self.tagged = self.uncanonical = False
        self.in_order = True
        self.size = self.containers = 0
        self.caching = set[int]()
        self.field_names = dict[Any, frozenset[str]]()
        self._width, self._escapes = 1, 0  # of strings beyond ASCII, see `width_and_more`
        self._has_surrogates = False
        self._written, self._look_at = 0, _LOOK_AT
        self._root: object = None
        self._objects = dict[Any, Writer]()  # by class
        self._refs = dict[Any, Any]()  # by class

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
        try:
            return self.part(value, where)
        finally:
            self._root = None  # so that the value does not live as long as what was made of it

    def part(self, value: Any, where: str) -> Any:
        """Return a part of the value, encoded. `where`: its place, for errors."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is str:
            self.size += len(value)
            return value if value.isascii() else self.string(value)
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

    def encoded_and_decoded(self, value: object, where: str) -> tuple[Any, Any]:
        """Encode a part as if it were a value of its own. Return it, and what is decoded of it."""
        encoded = Encoder().part(value, where)
        return encoded, Decoder().decode(encoded)

    def ref(self, kind: Any, where: str) -> Any:
        """Return the reference to the class of a part."""
        if (ref := self._refs.get(kind)) is None:
            ref = self._refs[kind] = ref_of(kind, where)
        return ref

    def is_plain(self, one: Any) -> bool:
        """Whether a part is encoded as it is. Takes less time than `part`, whose caller has to name its place."""
        kind = type(one)
        if kind is str and one.isascii():
            self.size += len(one)
            return True
        return kind in _PLAIN or (kind is float and math.isfinite(one))

    def _are_plain(self, items: Collection[Any]) -> bool:
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

    def string(self, value: str) -> Any:
        """Return a string, encoded. Its characters are not counted."""
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

    # Containers

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

    def _items(self, items: Iterable[Any], where: str) -> list[Any]:
        self._count()
        found = list(items)  # code of the user's that the encoder calls, or a thread, may change the list meanwhile
        self.size += len(found)
        if len(found) >= _MANY and self._are_plain(found):
            return found
        return [one if self.is_plain(one) else self.part(one, f"{where}[{at}]") for at, one in enumerate(found)]

    def _list(self, value: list[Any], where: str) -> Any:
        return self._items(value, where)

    def _tuple(self, value: tuple[Any, ...], where: str) -> Any:
        return {TAG: "tuple", "v": self._items(value, where)}

    def _set(self, value: set[Any] | frozenset[Any], where: str) -> Any:
        items = [self.part(one, f"{where}{{}}") for one in value]
        return {TAG: type(value).__name__, "v": sort_encoded(items)}

    def _deque(self, value: deque[Any], where: str) -> Any:
        return {TAG: "deque", "v": self._items(value, where), "n": value.maxlen}

    def _dict(self, value: dict[Any, Any], where: str) -> Any:
        self._count()
        value = dict(value)  # as in `_items`
        self.size += 2 * _NUMBER * len(value)
        if set(map(type, value)) <= _STR and TAG not in value and (all(map(str.isascii, value)) or _whole(value)):
            if self.in_order and len(value) > 1:
                names = list(value)
                self.in_order = names == sorted(names)
            if len(value) >= _MANY and self._are_plain(value.values()):
                return value
            return {
                key: one if self.is_plain(one) else self.part(one, f"{where}[{key!r}]") for key, one in value.items()
            }
        self.tagged = self.uncanonical = True
        self.in_order = False
        return {TAG: "dict", "v": self.pairs(value.items(), where)}

    def pairs(self, items: Iterable[tuple[Any, Any]], where: str) -> list[Any]:
        return [[self.part(key, f"{where} key"), self.part(one, f"{where}[{key!r}]")] for key, one in items]

    def _ordered(self, value: OrderedDict[Any, Any], where: str) -> Any:
        if vars(value):
            raise NotSerialisable(f"{where} is an OrderedDict with attributes of its own: pass a dataclass")
        return {TAG: "ordered", "v": self.pairs(value.items(), where)}

    def _defaultdict(self, value: defaultdict[Any, Any], where: str) -> Any:
        made_by = value.default_factory
        if made_by is not None and not isinstance(made_by, type):
            raise NotSerialisable(f"{where} is a defaultdict made by {made_by!r}: pass dict(it), or name a class")
        by = None if made_by is None else ref_of(made_by, where)
        self.uncanonical = True
        return {TAG: "defaultdict", "f": by, "v": self.pairs(value.items(), where)}

    def _object(self, value: Any, where: str) -> Any:
        cls = type(value)
        if (write := self._objects.get(cls)) is None:
            write = self._objects[cls] = _writer_of(value, where)
        kept = write(self, value, where)
        self.containers += 2
        if kept[TAG] not in ("dataclass", "model") or ASIDE in kept:
            self.uncanonical = True
        return kept


Writer = Callable[[Encoder, Any, str], Any]


def _writer_of(value: Any, where: str) -> Writer:
    """Return what encodes objects of the value's class. Raises `NotSerialisable` if they cannot be stored."""
    cls = type(value)
    if isinstance(value, Enum):
        return encode_enum
    if simple_values.is_ip(cls):
        return simple_values.encode_ip
    if is_url(cls):
        return encode_url
    if cls.__module__.startswith("pydantic_core"):
        if cls.__name__ == "TzInfo":
            return encode_tzinfo
        if cls.__name__ == "ValidationError":
            return encode_validation_error
        raise refusal(value, where)
    if isinstance(value, BaseException):
        return encode_error
    if is_model(value):
        return encode_model
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return encode_namedtuple
    if is_subclass(cls):
        return encode_subclass
    if dataclasses.is_dataclass(value):
        return encode_dataclass
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
    bytes: simple_values.encode_bytes,
    bytearray: simple_values.encode_bytes,
    Decimal: simple_values.encode_text,
    UUID: simple_values.encode_uuid,
    Fraction: simple_values.encode_fraction,
    complex: simple_values.encode_complex,
    range: simple_values.encode_range,
    slice: simple_values.encode_range,
    re.Pattern: simple_values.encode_pattern,
    type(...): simple_values.encode_constant,
    type(NotImplemented): simple_values.encode_constant,
    type(Path()): simple_values.encode_path,
    PurePosixPath: simple_values.encode_purepath,
    PureWindowsPath: simple_values.encode_purepath,
    date: encode_date,
    datetime: encode_datetime,
    time: encode_datetime,
    timedelta: encode_timedelta,
    timezone: encode_tzinfo,
    ZoneInfo: encode_tzinfo,
}
