"""Values are decoded to equal values of equal types, equal values have equal digests, and unsupported values are
refused."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from time import gmtime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from ramify.runtime.codec import codec, encoder
from ramify.runtime.errors import NotSerialisable
from tests.runtime import kept_values
from tests.runtime.kept_values import ERRORS, VALUES, Bar, Box, Foo, Frozen, Holder, Page, Pair, Table, Text


class Colour(enum.StrEnum):
    RED = "red"


class Rank(enum.IntEnum):
    TOP = 1


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    at: tuple[float, ...] = ()
    colour: Colour = Colour.RED


class Model(BaseModel):
    name: str
    when: datetime


zones = st.sampled_from(
    [None, UTC, kept_values.BERLIN, timezone(timedelta(hours=-3), "named"), timezone(timedelta(minutes=7))]
)
models = st.builds(Foo, a=st.integers()) | st.builds(Foo) | st.builds(Holder, foo=st.builds(Bar, c=st.integers()))
simple = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.builds(Path, st.text(alphabet="abc/._", min_size=1))
    | st.just(Colour.RED)
    | st.just(Rank.TOP)
    | st.just(Decimal("1.50"))
    | st.builds(UUID, int=st.integers(0, 2**128 - 1))
    | st.timedeltas()
    | st.datetimes(timezones=zones, allow_imaginary=True)
    | st.builds(datetime.replace, st.datetimes(), fold=st.integers(0, 1))
    | st.times(timezones=zones)
    | st.text(alphabet="\ud83d\ude00a")
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.ip_addresses()
    | st.builds(Text, st.text())
    | models
)
hashable = st.text() | st.integers() | st.booleans() | st.tuples(st.text(), st.integers())
values: st.SearchStrategy[Any] = st.recursive(
    simple,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(hashable, inner)
        | st.sets(hashable)
        | st.frozensets(hashable)
        | st.builds(Point, st.integers(), st.lists(st.floats(allow_nan=False)).map(tuple))
        | st.builds(Pair, inner, st.text())
        | st.builds(lambda one: Foo(b=one), inner)
        | st.builds(lambda one: Page[Foo](items=[Foo(b=one)]), inner)
        | st.builds(lambda one: Page[Any](items=one), st.lists(inner))
        | st.builds(Frozen, inner)
        | st.builds(Box[int], inner)
        | st.builds(Table, st.dictionaries(hashable, inner))
    ),
    max_leaves=12,
)


@given(values)
def test_decode_is_the_inverse_of_encode(value: Any) -> None:
    back = codec.decode(codec.encode(value))
    assert back == value
    assert told(back) == told(value)
    assert codec.digest(back) == codec.digest(value)


def told(value: Any) -> Any:
    """Describe a value, including types and NaN, in built-in types."""
    kind: Any = type(value)
    if isinstance(value, enum.Enum | type) or kind.__module__ in ("typing", "pydantic.networks"):
        return kind, value
    if isinstance(value, datetime | time):
        zone = value.tzinfo
        named = getattr(zone, "key", None), value.tzname(), type(zone)
        return kind, value.replace(tzinfo=None, fold=0), value.fold, named
    if isinstance(value, dict):
        return kind, [(told(key), told(one)) for key, one in dict.items(value)], state(value)
    if isinstance(value, list | tuple):
        return kind, [told(one) for one in value], state(value)
    if isinstance(value, float | complex):
        return kind, repr(value)
    if isinstance(value, BaseModel):
        return kind, told(value.__dict__), value.model_fields_set, told(value.__pydantic_extra__), state(value)
    return kind, (state(value) if is_dataclass(kind) else value)


def state(value: Any) -> Any:
    if not hasattr(value, "__dict__") and not is_dataclass(value):
        return None
    private = getattr(value, "__pydantic_private__", None)
    fields = (
        {field.name: getattr(value, field.name, ...) for field in fields_of(value)} if is_dataclass(value) else {}
    )
    return told({**fields, **getattr(value, "__dict__", {}), **(private or {})})


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_types_and_state_of_a_value_are_decoded(value: Any) -> None:
    back = codec.decode(codec.encode(value))
    assert told(back) == told(value)
    assert back == value


def test_unset_fields_stay_unset() -> None:
    back = codec.decode(codec.encode(kept_values.Made(1)))
    assert vars(back) == {"x": 1, "y": []}
    back = codec.decode(codec.encode(kept_values.Made(1, w=2)))
    assert vars(back) == {"x": 1, "y": [], "z": 2}


def test_another_process_decodes_the_values(tmp_path: Path) -> None:
    """There generics are built anew, and enum members are other objects."""
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({name: codec.encode(value) for name, value in VALUES.items()}))
    look = (
        "import json, sys; from ramify.runtime.codec import codec; from tests.runtime.kept_values import VALUES\n"
        "for name, text in json.load(open(sys.argv[1])).items():\n"
        "    assert codec.decode(text) == VALUES[name], name\n"
        "    assert codec.encode(codec.decode(text)) == text, name\n"
    )
    subprocess.run([sys.executable, "-c", look, str(kept)], check=True, timeout=120)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_errors_of_every_kind_are_decoded(error: Exception) -> None:
    back = codec.decode(codec.encode(error))
    assert (type(back), str(back), back.args) == (type(error), str(error), error.args)
    assert told(vars(back)) == told(vars(error))
    assert getattr(back, "errno", None) == getattr(error, "errno", None)


def test_a_class_that_is_not_found_by_its_name_is_refused() -> None:
    """It would be decoded as another class."""

    class Foo(BaseModel):
        pass

    Foo.__qualname__ = "Foo"
    with pytest.raises(NotSerialisable, match="not found under that name"):
        codec.encode(Foo())


def test_new_fields_of_a_class_get_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = codec.encode(Foo(a=2)), codec.encode(kept_values.Made(1, w=2)), codec.encode(Holder(foo=Foo()))
    without_b = json.loads(kept[0])
    del without_b["v"]["b"]
    assert codec.decode(json.dumps(without_b)) == Foo(a=2)
    without_y = json.loads(kept[1])
    del without_y["v"]["y"]
    assert vars(codec.decode(json.dumps(without_y))) == {"x": 1, "y": [], "z": 2}
    empty = json.loads(kept[2])
    del empty["v"]["foo"]
    with pytest.raises(NotSerialisable, match="requires"):
        codec.decode(json.dumps(empty))
    more = json.loads(kept[0])
    more["v"]["gone"] = 1
    with pytest.raises(NotSerialisable, match="no longer a field of the class"):
        codec.decode(json.dumps(more))


@given(st.dictionaries(st.text(), st.integers()))
def test_a_digest_does_not_depend_on_the_order_of_keys(value: dict[str, int]) -> None:
    assert codec.digest(value) == codec.digest(dict(reversed(value.items())))


def test_digests_of_keyword_arguments_are_those_of_earlier_versions_in_any_order() -> None:
    recorded = "dab397405685c56c652bebed907f07b29c20778107ca9fe2e7e0e6a8589bfd0d"
    for more in ({"b": 2, "a": 1}, {"a": 1, "b": 2}):
        assert codec.digest({"kwargs": more, "x": 1}) == recorded
        assert codec.is_same(codec.encode(more), codec.encode({"a": 1, "b": 2}))
    assert not codec.is_same(codec.encode({"a": 1}), codec.encode({"a": 1.0}))


def test_values_that_json_does_not_distinguish_stay_distinct() -> None:
    different: list[Any] = [
        (1,),
        [1],
        {1},
        "1",
        1,
        1.5,
        True,
        b"1",
        Path("1"),
        {"1": 1},
        {1: 1},
        {"$": "tuple", "v": [1]},
    ]
    assert len({codec.digest(v) for v in different}) == len(different)


def test_names_that_are_not_utf8_are_decoded() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    text = codec.encode({"name": name})
    assert text.isascii()
    assert codec.decode(text) == {"name": name}


def test_pydantic_models_are_decoded() -> None:
    model = Model(name="a", when=datetime(2026, 1, 2, tzinfo=UTC))
    assert codec.decode(codec.encode([model])) == [model]


@pytest.mark.parametrize(
    ("value", "where"),
    [({"a": [1, object()]}, r"value\['a'\]\[1\]"), (Point(1, at=(lambda: 1,)), r"value\.at\[0\]")],  # type: ignore[arg-type]
)
def test_an_unsupported_value_is_named(value: Any, where: str) -> None:
    with pytest.raises(NotSerialisable, match=where):
        codec.encode(value)


def test_a_local_class_is_refused() -> None:
    @dataclass
    class Local:
        x: int

    with pytest.raises(NotSerialisable, match="top level"):
        codec.encode(Local(1))


@pytest.mark.parametrize("kind", ["dataclass", "enum", "pydantic", "namedtuple"])
def test_a_stored_value_cannot_name_an_arbitrary_class(kind: str) -> None:
    hostile = json.dumps({"$": kind, "t": "subprocess:Popen", "v": {"args": "true"}})
    with pytest.raises(NotSerialisable):
        codec.decode(hostile)


class Blurred(BaseModel):
    x: Any = None
    secret: SecretStr = SecretStr("")


class OwnZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)


@dataclass
class Moody:
    """A descriptor that returns another value than the one that was set."""

    x: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise RuntimeError("not now")
        return super().__getattribute__(name)


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Broken(Exception):
    x: int


@pytest.mark.parametrize("value", [Access.READ | Access.WRITE, Access(0), Access.READ])
def test_flags_are_decoded(value: Access) -> None:
    assert codec.decode(codec.encode(value)) is value


@given(st.lists(st.text(), unique=True))
def test_the_order_of_a_dict_is_kept(keys: list[str]) -> None:
    value = dict.fromkeys(keys, 1)
    assert list(codec.decode(codec.encode(value))) == keys


holds_itself: list[Any] = []
holds_itself.append(holds_itself)
shared_too_often: list[Any] = [1]
for _ in range(30):
    shared_too_often = [shared_too_often, shared_too_often]


@pytest.mark.parametrize(
    "value",
    [
        Blurred(secret=SecretStr("s")),
        type("Bag", (set,), {})(),
        holds_itself,
        shared_too_often,
        10**5000,
        memoryview(b"x"),
        datetime(2026, 1, 1, tzinfo=OwnZone()),
        defaultdict(lambda: 1),
        gmtime(0),
        Moody(),
        int,
        len,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_would_be_decoded_differently_is_refused(value: Any) -> None:
    with pytest.raises(NotSerialisable):
        codec.encode(value)


class Coded(Exception):
    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"code {code}")


class Slotted(OSError):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_attributes_of_an_error_are_decoded() -> None:
    error = caused(ImportError("no", name="thing"), caused(Slotted(7), KeyError("k")))
    back = codec.decode(codec.encode(error))
    assert (back.name, back.path, back.__cause__.code) == ("thing", None, 7)
    assert repr(back.__cause__.__cause__) == "KeyError('k')"
    with pytest.raises(NotSerialisable):
        codec.encode(caused(ValueError("x"), ValueError(object())))


@pytest.mark.parametrize(
    "error",
    [
        Coded(7),
        Broken(1),
        KeyError("x"),
        OSError(2, "gone", "file"),
        ExceptionGroup("both", [ValueError("a"), Coded(1)]),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_are_decoded_as_they_were_raised(error: Exception) -> None:
    error.add_note("by the runtime")
    back = codec.decode(codec.encode(error))
    assert (type(back), str(back), back.args != ()) == (type(error), str(error), error.args != ())
    assert vars(back) == vars(error)


class Recent(OrderedDict):  # type: ignore[type-arg]
    """As users write a cache of what was used last."""


class Grouped(defaultdict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [{"in": value}], lambda value: Box(value)])
def test_a_subclass_of_ordered_dict_keeps_its_items_and_their_order(wrap: Any) -> None:
    value = Recent(a=1, b=2, c=3)
    value.move_to_end("a")
    again = codec.decode(codec.encode(wrap(value)))
    assert again == wrap(value)
    found = again if isinstance(again, Recent) else again[0]["in"] if isinstance(again, list) else again.x
    assert type(found) is Recent and list(found) == ["b", "c", "a"] and list(found.items()) == list(value.items())
    found.move_to_end("b")
    assert list(found) == ["c", "a", "b"]


def test_a_subclass_of_defaultdict_with_a_factory_is_refused() -> None:
    assert codec.decode(codec.encode(Grouped(None, a=1))) == Grouped(None, a=1)
    with pytest.raises(NotSerialisable):
        codec.encode(Grouped(list, a=[1]))


class Bits(enum.Flag):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize("value", [Bits.ONE, Bits.ONE | Bits.TWO, Bits(0)])
def test_flags_come_back_by_their_bits(value: Bits) -> None:
    text = codec.encode(value)
    assert codec.decode(text) is value
    if value is Bits.ONE | Bits.TWO:
        with pytest.raises(NotSerialisable, match="which now is Bits"):
            codec.decode(text.replace("ONE|TWO", "ONE|FOUR"))


CHANGED: list[Any] = []


@dataclass
class Changing:
    """Reading it changes the containers in `CHANGED`."""

    at: int

    def __getattribute__(self, name: str) -> Any:
        if name == "at":
            for one in CHANGED:
                one.clear()
        return super().__getattribute__(name)


@pytest.mark.parametrize("items", [list(range(100)), ["a"] * 100, {f"{at}": at for at in range(100)}])
def test_code_of_the_values_own_does_not_change_what_was_encoded_before(items: Any) -> None:
    before = codec.encode(items)
    CHANGED[:] = [items]
    assert codec.encode([items, Changing(1)]).startswith(f"[{before},")
    CHANGED.clear()


def test_an_object_may_be_shared_as_often_as_its_containers_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists and dicts are counted, as in earlier versions, not the objects that hold them."""
    monkeypatch.setattr(encoder, "_LOOK_AT", 1000)
    shared = Holding([1])
    assert codec.decode(codec.encode([shared] * 999)) == [shared] * 999
    with pytest.raises(NotSerialisable, match="so many times"):
        codec.encode([shared] * 1001)


@dataclass
class Holding:
    items: list[int]


class Unstorable:
    """Neither it nor a list that holds it can be stored."""


@pytest.mark.parametrize("message", ["der Name fehlt: é", "DEL \x7f"])
def test_an_error_whose_object_is_not_kept_is_stored(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long text in the object decides how the error is written, and the decoded error lacks the object."""
    monkeypatch.setattr(encoder, "PIECE", 1000)
    error = AttributeError(message, name="x", obj=["é" * 2000, Unstorable()])
    again = codec.decode(codec.encode(error, unicode=True))
    assert (again.args, again.name) == ((message,), "x")
