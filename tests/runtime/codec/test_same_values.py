"""A value comes back equal and of the same type in all its parts, or it is refused. So are the states that `==` does
not see: cached properties, fields that were set, private attributes, notes of errors, signs of zero."""

from __future__ import annotations

import array
import collections
import enum
import functools
import math
import pathlib
import re
import types
import uuid
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel

from ramify.runtime.codec import codec
from ramify.runtime.errors import NotSerialisable


class Kept(enum.Flag, boundary=enum.KEEP):
    A = 1
    B = 2


class Bits(enum.IntFlag):
    A = 1
    B = 4


class Slotted:
    __slots__ = ("__hidden", "free")


@dataclass
class Data(Slotted):
    x: Any = 0
    y: Any = field(default=1, compare=False)

    @functools.cached_property
    def computed(self) -> Any:
        return [self.x]


@dataclass(frozen=True)
class Fixed:
    x: Any = 0

    @functools.cached_property
    def computed(self) -> Any:
        return (self.x,)


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: Any = 0
    y: Any = 1
    _count: Any = PrivateAttr(default=3)
    _made: list[int] = PrivateAttr(default_factory=list)
    _unset: int

    @functools.cached_property
    def computed(self) -> Any:
        return [self.x]


class Root(RootModel[dict[str, Any]]):
    pass


class Pair(NamedTuple):
    a: Any
    b: Any = "x"


class Labelled(Pair):
    """It has a `__dict__`, which `Pair` has not."""


class Items(list):  # type: ignore[type-arg]
    @functools.cached_property
    def computed(self) -> int:
        return len(self)


class Signed(complex):
    pass


class Tally(Counter[str]):
    pass


class Slow(OSError):
    __slots__ = ("seconds",)


def with_state(made: Any, state: dict[str, Any]) -> Any:
    vars(made).update(state)
    return made


def without(made: Any, names: set[str]) -> Any:
    for name in names:
        if hasattr(made, name):
            delattr(made, name)
    return made


def error(made: BaseException, notes: list[str], cause: BaseException | None, hidden: bool) -> BaseException:
    for note in notes:
        made.add_note(note)
    made.__cause__ = cause
    made.__suppress_context__ = hidden
    return made


zones = st.sampled_from(
    [None, timezone.utc, ZoneInfo("UTC"), ZoneInfo("Europe/Berlin"), timezone(timedelta(hours=2), "CEST")]  # noqa: UP017
)
floats = st.floats() | st.sampled_from([-0.0, math.nan, math.inf])
decimals = st.decimals() | st.sampled_from([Decimal(text) for text in ("NaN", "-NaN12", "sNaN", "-0.00", "1E+5")])
text = st.text(max_size=5)
names = st.sampled_from("abc")
plain: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    floats,
    text,
    st.binary(max_size=5),
    decimals,
    st.fractions(),
    st.builds(complex, floats, floats),
    st.builds(Signed, floats, floats),
    st.builds(bytearray, st.binary(max_size=5)),
    st.uuids(allow_nil=True),
    st.builds(uuid.UUID, int=st.integers(0, 9), is_safe=st.sampled_from(list(uuid.SafeUUID))),
    st.ip_addresses(),
    st.builds(datetime.replace, st.datetimes(timezones=zones, allow_imaginary=True), fold=st.integers(0, 1)),
    st.builds(time.replace, st.times(timezones=zones), fold=st.integers(0, 1)),
    st.dates(),
    st.timedeltas(),
    st.integers(0, 15).map(Kept),
    st.integers(-8, 15).map(Bits),
    st.sampled_from([pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.Path]).flatmap(
        lambda kind: st.builds(kind, st.text("ab/\\.:", max_size=6))
    ),
    st.builds(re.compile, st.just("a b"), st.sampled_from([re.I, re.X | re.M, re.A | re.S, re.U, re.NOFLAG])),
    st.builds(re.compile, st.just(b"a b"), st.sampled_from([re.L, re.I])),
    st.builds(range, st.integers(), st.integers(), st.integers(1, 9)),
    st.builds(Counter, st.text("ab", max_size=5)),
    st.builds(Tally, st.text("ab", max_size=5)),
    st.builds(lambda items: Root(items), st.dictionaries(text, st.integers(), max_size=2)),
)
hashable = (
    text
    | st.integers()
    | floats
    | text.map(Fixed)
    | st.tuples(st.booleans(), decimals.filter(lambda d: not d.is_snan()))
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    table = st.dictionaries(hashable, inner, max_size=3)
    state = st.dictionaries(names | st.just("computed"), inner, max_size=2)
    slots = st.fixed_dictionaries({}, optional={"_Slotted__hidden": inner, "free": inner})
    removed = st.sets(st.sampled_from(["x", "y", "_count", "_made", "a"]))
    errors = st.builds(
        error,
        inner.map(ValueError) | st.builds(Slow, st.integers(), text, text) | inner.map(KeyError),
        st.lists(text, max_size=2),
        st.none() | st.builds(with_state, text.map(ValueError), st.dictionaries(names, inner, max_size=1)),
        st.booleans(),
    )
    return st.one_of(
        some,
        some.map(tuple),
        table,
        some.map(lambda items: with_state(Items(items), {"tag": items, "computed": 9})),
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
        st.builds(OrderedDict, table),
        st.builds(defaultdict, st.sampled_from([None, int, dict, Fixed]), table),
        st.builds(deque, some, st.none() | st.integers(0, 3)),
        st.builds(slice, inner, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(with_state, inner.map(Labelled), st.dictionaries(names, inner, max_size=2)),
        st.builds(given_attributes, st.builds(with_state, st.builds(Data, inner, inner), state), slots),
        st.builds(with_state, inner.map(Fixed), state),
        st.builds(
            lambda made, private, names: without(given_attributes(made, private), names),
            st.builds(
                with_state,
                st.builds(lambda x, a: Model(x=x, a=a), inner, inner) | st.builds(lambda y: Model(y=y), inner),
                computed_of(inner),
            ),
            st.fixed_dictionaries({}, optional={"_count": inner, "_unset": st.integers()}),
            removed,
        ),
        st.builds(lambda given, x: Model.model_construct(given, x=x), st.sets(st.sampled_from("xy")), inner),
        errors,
        st.builds(lambda one, note: error(ExceptionGroup("g", [one]), [note], None, False), errors, text),
    )


def computed_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={"computed": inner})


def given_attributes(made: Any, attributes: dict[str, Any]) -> Any:
    for name, one in attributes.items():
        setattr(made, name, one)
    return made


values = st.recursive(plain, grown, max_leaves=8)


def described(value: Any) -> Any:
    """Describe a value in built-in types, with the type and the state of each of its parts."""
    kind: Any = type(value)
    if isinstance(value, type):
        return value
    if isinstance(value, enum.Enum):
        return kind, value.name, value.value
    if isinstance(value, datetime | time):
        return (
            kind,
            value.replace(tzinfo=None, fold=0).isoformat(),
            value.fold,
            type(value.tzinfo),
            repr(value.tzinfo),
        )
    if isinstance(value, uuid.UUID):
        return kind, value.int, value.is_safe
    if isinstance(value, pathlib.PurePath):
        # The slots of a path are caches, and one of them keeps how the path was spelled: "" or ".".
        return kind, str(value), value.parts
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [(described(key), described(one)) for key, one in value.items()]
        parts.append(getattr(value, "default_factory", None))
    elif isinstance(value, list | tuple | deque):
        parts = [*map(described, value), getattr(value, "maxlen", None)]
    elif isinstance(value, set | frozenset):
        parts = sorted(repr(described(one)) for one in value)
    elif isinstance(value, slice):
        parts = [described(one) for one in (value.start, value.stop, value.step)]
    elif isinstance(value, re.Pattern):
        parts = [value.pattern, value.flags]
    elif isinstance(value, BaseException):
        parts = [described(one) for one in (value.args, value.__cause__, value.__suppress_context__)]
        parts += [described(getattr(value, name, None)) for name in ("errno", "filename", "exceptions")]
    elif not isinstance(value, BaseModel | Slotted | Fixed):
        parts = [repr(value)]
    slots = {
        name: described(found.__get__(value))
        for owner in kind.__mro__
        for name, found in vars(owner).items()
        if isinstance(found, types.MemberDescriptorType) and owner.__module__ != "builtins" and has(value, found)
    }
    return kind, parts, slots, described(dict(sorted(vars(value).items()))) if hasattr(value, "__dict__") else None


def has(value: Any, slot: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


@given(values)
def test_a_value_comes_back_with_its_type_and_its_state(value: Any) -> None:
    encoded = codec.encode(value)
    back = codec.decode(encoded)
    assert described(back) == described(value)
    assert codec.encode(back) == encoded


class OwnDate(date):
    pass


class OwnDatetime(datetime):
    pass


class OwnDecimal(Decimal):
    pass


class OwnFraction(Fraction):
    pass


class OwnUUID(uuid.UUID):
    pass


class OwnPath(pathlib.PurePosixPath):
    pass


class OwnDeque(deque):  # type: ignore[type-arg]
    pass


class OwnDuration(timedelta):
    pass


NOT_KEPT: dict[str, Callable[[], Any]] = {
    "ChainMap": lambda: ChainMap({1: 2}),
    "MappingProxyType": lambda: types.MappingProxyType({1: 2}),
    "SimpleNamespace": lambda: types.SimpleNamespace(a=1),
    "UserDict": lambda: UserDict(a=1),
    "UserList": lambda: UserList([1]),
    "UserString": lambda: collections.UserString("a"),
    "memoryview": lambda: memoryview(b"x"),
    "array": lambda: array.array("i", [1]),
    "subclass of date": lambda: OwnDate(2026, 1, 1),
    "subclass of datetime": lambda: OwnDatetime(2026, 1, 1),
    "subclass of timedelta": lambda: OwnDuration(1),
    "subclass of Decimal": lambda: OwnDecimal(1),
    "subclass of Fraction": lambda: OwnFraction(1),
    "subclass of UUID": lambda: OwnUUID(int=1),
    "subclass of PurePath": lambda: OwnPath("a"),
    "subclass of deque": lambda: OwnDeque([1], 2),
    "attributes of an OrderedDict": lambda: with_state(OrderedDict(a=1), {"b": 2}),
    "iterator": lambda: iter([1]),
    "keys": lambda: {}.keys(),
    "match": lambda: re.match("a", "a"),
    "type": lambda: int,
}


@pytest.mark.parametrize("make", NOT_KEPT.values(), ids=NOT_KEPT)
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [{"in": one}], Data, Fixed, ValueError])
def test_a_value_that_would_come_back_different_is_refused(make: Callable[[], Any], wrap: Callable[..., Any]) -> None:
    with pytest.raises(NotSerialisable):
        codec.encode(wrap(make()))


def test_a_cached_property_is_no_part_of_the_digest() -> None:
    """A step may read it: then a call with the same object has another state when the run is resumed."""
    read = Fixed(1)
    assert read.computed == (1,)
    for wrap in (lambda one: one, lambda one: {"aside": one}, lambda one: {one, Fixed(0)}):
        assert codec.digest(wrap(read)) == codec.digest(wrap(Fixed(1)))
    assert codec.digest({"aside": 1}) != codec.digest({"aside": 2})
    assert codec.digest({"$": 1, "aside": 1}) != codec.digest({"$": 1, "aside": 2})


def test_a_cached_property_that_cannot_be_stored_is_computed_again() -> None:
    for cached in (object(), lambda: 1):
        back = codec.decode(codec.encode(with_state(Data(1), {"computed": cached})))
        assert vars(back) == {"x": 1, "y": 1}
        assert back.computed == [1]
    around = Data(1)
    vars(around)["computed"] = Data([around])
    assert "computed" not in vars(codec.decode(codec.encode([around]))[0])


def test_a_time_in_a_zone_outside_the_cache_comes_back_in_such_a_zone() -> None:
    berlin = ZoneInfo.no_cache("Europe/Berlin")
    summer, winter = (datetime(2026, month, 1, 12, tzinfo=berlin) for month in (7, 12))
    one, other = codec.decode(codec.encode([summer, winter]))
    assert [one, other] == [summer, winter]
    assert other - one == winter - summer  # as times in one zone
    assert one.tzinfo is other.tzinfo
    assert one.tzinfo is not ZoneInfo("Europe/Berlin")


def test_zones_that_equal_no_other_are_refused() -> None:
    for value in (ZoneInfo.no_cache("Europe/Berlin"), [ZoneInfo.no_cache("UTC")]):
        with pytest.raises(NotSerialisable, match="which equals no other zone"):
            codec.encode(value)
    paris = ZoneInfo("Europe/Paris")
    assert codec.decode(codec.encode(paris)) is paris
