"""Values survive the journal, equal values have equal digests, and what cannot be kept is refused by name."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from ramify.runtime import codec
from ramify.runtime.errors import NotSerialisable


class Colour(enum.StrEnum):
    RED = "red"


class Rank(enum.IntEnum):
    TOP = 1


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    at: tuple[float, ...] = ()
    colour: Colour = Colour.RED


class Pair(NamedTuple):
    left: str
    right: Rank


class Model(BaseModel):
    name: str
    when: datetime


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
    | st.timedeltas(max_value=timedelta(days=3)).map(lambda d: timedelta(seconds=d.seconds))
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
        | st.builds(Pair, st.text(), st.just(Rank.TOP))
    ),
    max_leaves=12,
)


@given(values)
def test_decode_is_the_inverse_of_encode(value: Any) -> None:
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)


@given(st.dictionaries(st.text(), st.integers()))
def test_a_digest_does_not_depend_on_the_order_of_keys(value: dict[str, int]) -> None:
    assert codec.digest(value) == codec.digest(dict(reversed(value.items())))


def test_what_json_would_blur_stays_apart() -> None:
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


def test_names_that_are_not_utf8_survive() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    text = codec.encode({"name": name})
    assert text.isascii()
    assert codec.decode(text) == {"name": name}


def test_pydantic_models_survive() -> None:
    model = Model(name="a", when=datetime(2026, 1, 2, tzinfo=UTC))
    assert codec.decode(codec.encode([model])) == [model]


@pytest.mark.parametrize(
    ("value", "where"),
    [({"a": [1, object()]}, r"value\['a'\]\[1\]"), (Point(1, at=(lambda: 1,)), r"value\.at\[0\]")],  # type: ignore[arg-type]
)
def test_what_cannot_be_kept_is_named(value: Any, where: str) -> None:
    with pytest.raises(NotSerialisable, match=where):
        codec.encode(value)


def test_a_local_class_is_refused() -> None:
    @dataclass
    class Local:
        x: int

    with pytest.raises(NotSerialisable, match="top level"):
        codec.encode(Local(1))


@pytest.mark.parametrize("kind", ["dataclass", "enum", "pydantic", "namedtuple"])
def test_a_stored_value_cannot_name_any_other_class(kind: str) -> None:
    hostile = json.dumps({"$": kind, "t": "subprocess:Popen", "v": {"args": "true"}})
    with pytest.raises(NotSerialisable):
        codec.decode(hostile)


class Blurred(BaseModel):
    x: Any = None
    secret: SecretStr = SecretStr("")
    left_out: int = Field(default=0, exclude=True)


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Name(str):
    """A str that is more than one."""


@dataclass
class Grown:
    x: int

    def __post_init__(self) -> None:
        self.extra = self.x + 1


@dataclass
class Broken(Exception):
    x: int


@pytest.mark.parametrize("value", [Access.READ | Access.WRITE, Access(0), Access.READ])
def test_flags_survive(value: Access) -> None:
    assert codec.decode(codec.encode(value)) is value


@given(st.lists(st.text(), unique=True))
def test_the_order_of_a_dict_survives(keys: list[str]) -> None:
    value = dict.fromkeys(keys, 1)
    assert list(codec.decode(codec.encode(value))) == keys


holds_itself: list[Any] = []
holds_itself.append(holds_itself)


@pytest.mark.parametrize(
    "value",
    [
        Blurred(x=b"a"),
        Blurred(x=(1,)),
        Blurred(x=math.nan),
        Blurred(secret=SecretStr("s")),
        Blurred(left_out=1),
        Name("x"),
        Grown(1),
        type("Bag", (set,), {})(),
        holds_itself,
        10**5000,
        range(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_otherwise_is_refused(value: Any) -> None:
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


def test_what_an_error_says_beside_its_arguments_comes_back() -> None:
    error = caused(ImportError("no", name="thing"), caused(Slotted(7), KeyError("k")))
    back = codec.decode(codec.encode(error))
    assert (back.name, back.path, back.__cause__.code) == ("thing", None, 7)
    assert repr(back.__cause__.__cause__) == "KeyError('k')"
    with pytest.raises(NotSerialisable):
        codec.encode(caused(ValueError("x"), ValueError(range(3))))


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
def test_errors_come_back_as_they_were_raised(error: Exception) -> None:
    error.add_note("by the runtime")
    back = codec.decode(codec.encode(error))
    assert (type(back), str(back), back.args != ()) == (type(error), str(error), error.args != ())
    assert {name: vars(back)[name] for name in vars(back)} == {
        n: v for n, v in vars(error).items() if n != "__notes__"
    }
