"""The decoder: the JSON that the journal stores back to values, including what earlier versions wrote.

Code of the stored classes runs only if it cannot be avoided: an object is created without `__init__` and gets its
state. Exceptions are enum lookups, pydantic models that were stored as their own JSON (`pydantic`), and the
constructors of built-in exceptions.

Start at `Decoder.decode`. `_READERS` and `_OBJECTS` have what decodes each kind; `encoder` lists the kinds.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ramify.runtime.codec import simple_values
from ramify.runtime.codec.coders import SCALARS
from ramify.runtime.codec.dataclass_objects import decode_dataclass
from ramify.runtime.codec.enums import decode_enum, decode_member
from ramify.runtime.codec.exceptions import decode_error, decode_validation_error
from ramify.runtime.codec.object_parts import TAG
from ramify.runtime.codec.pydantic_objects import decode_model, decode_own_json, decode_url
from ramify.runtime.codec.subclasses import decode_namedtuple, decode_subclass
from ramify.runtime.codec.times import decode_datetime, decode_time, decode_zone
from ramify.runtime.codec.type_names import resolve
from ramify.runtime.errors import NotSerialisable

Find = Callable[[str], Any]

_MANY = 64  # items that are worth a look at all of them together

OWN_KINDS = frozenset({"str", "float", "bytes", "tuple", "set", "frozenset", "dict", "path", "dataclass", "enum"})
"""The kinds that occur in Ramify's own records."""


class Decoder:
    """Decodes one value. `find`: looks up type names. `kinds`: the kinds that are allowed, None for all.

    models: the fields and the private attributes of the models that it met, by class.
    """

    def __init__(self, find: Find | None = None, kinds: frozenset[str] | None = None) -> None:
        self.models = dict[Any, tuple[Mapping[str, Any], Mapping[str, Any]]]()
        self._find = find
        self._kinds = kinds
        self._types = dict[str, Any]()  # by name

    def decode(self, value: Any) -> Any:
        shape = type(value)
        if shape is list:
            if len(value) >= _MANY and SCALARS.issuperset(map(type, value)):
                return value[:]
            return [one if type(one) in SCALARS else self.decode(one) for one in value]
        if shape is not dict:
            return value
        kind = value.get(TAG)
        if kind is None:
            return {key: one if type(one) in SCALARS else self.decode(one) for key, one in value.items()}
        if self._kinds is not None and kind not in self._kinds:
            raise NotSerialisable(
                f"a stored value is of the kind {kind!r}, and not what Ramify itself recorded there"
            )
        if (read := _READERS.get(kind)) is not None:
            return read(self, value["v"], value)
        if (make := _OBJECTS.get(kind)) is not None:
            return make(self, self.type_of(value["t"]), value["v"], value)
        raise NotSerialisable(f"a stored value is of the kind {kind!r}, which this version of Ramify does not know")

    def type_of(self, ref: Any) -> Any:
        """Return the type that a reference names."""
        if type(ref) is not str:
            return resolve(ref, self._find)
        if ref not in self._types:
            self._types[ref] = resolve(ref, self._find)
        return self._types[ref]

    def items(self, body: Any) -> list[Any]:
        return [self.decode(one) for one in body]

    def pairs(self, body: Any) -> list[tuple[Any, Any]]:
        return [(self.decode(key), self.decode(one)) for key, one in body]

    def _defaultdict(self, body: Any, value: Any) -> Any:
        made_by = None if value["f"] is None else self.type_of(value["f"])
        return defaultdict(made_by, self.pairs(body))


_READERS: Mapping[str, Callable[[Decoder, Any, Any], Any]] = {
    "str": lambda _, v, __: "".join(map(chr, v)),
    "float": lambda _, v, __: float(v),
    "bytes": simple_values.decode_bytes,
    "bytearray": simple_values.decode_bytearray,
    "decimal": lambda _, v, __: Decimal(v),
    "uuid": simple_values.decode_uuid,
    "fraction": lambda _, v, __: Fraction(*v),
    "complex": simple_values.decode_complex,
    "path": simple_values.decode_path,
    "purepath": simple_values.decode_purepath,
    "ip": simple_values.decode_ip,
    "range": simple_values.decode_range,
    "slice": simple_values.decode_slice,
    "pattern": simple_values.decode_pattern,
    "const": simple_values.decode_constant,
    "date": lambda _, v, __: date.fromisoformat(v),
    "datetime": decode_datetime,
    "time": decode_time,
    "timedelta": lambda _, v, __: timedelta(seconds=v),
    "delta": lambda _, v, __: timedelta(*v),
    "tz": lambda _, v, __: decode_zone(v),
    "tuple": lambda self, v, _: tuple(self.items(v)),
    "set": lambda self, v, _: set(self.items(v)),
    "frozenset": lambda self, v, _: frozenset(self.items(v)),
    "deque": lambda self, v, value: deque(self.items(v), value["n"]),
    "dict": lambda self, v, _: dict(self.pairs(v)),
    "ordered": lambda self, v, _: OrderedDict(self.pairs(v)),
    "defaultdict": Decoder._defaultdict,
    "validation": decode_validation_error,
}

_OBJECTS: Mapping[str, Callable[[Decoder, Any, Any, Any], Any]] = {
    "enum": decode_enum,
    "member": decode_member,
    "namedtuple": decode_namedtuple,
    "sub": decode_subclass,
    "dataclass": decode_dataclass,
    "model": decode_model,
    "pydantic": decode_own_json,
    "error": decode_error,
    "url": decode_url,
}
