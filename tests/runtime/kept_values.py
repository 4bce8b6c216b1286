"""Values that the codec must restore, and classes for them; another process imports these, too."""

from __future__ import annotations

import collections
import enum
import functools
import ipaddress
import json
import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Generic, List, Literal, NamedTuple, Optional, TypeVar  # noqa: UP035  another type argument
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    PrivateAttr,
    RootModel,
    field_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import PydanticCustomError

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.StrEnum):
    RED = "red"


class Rank(enum.IntEnum):
    TOP = 1


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class ByName(enum.Enum):
    """Neither of these is found again by its value."""

    NOT_A_NUMBER = math.nan
    OBJECT = object()


class Mixed(float, enum.Enum):
    HALF = 0.5


class OwnNew(enum.Enum):
    A = (1, "a")

    def __new__(cls, number: int, text: str) -> OwnNew:
        made = object.__new__(cls)
        made._value_ = text
        return made


class Foo(BaseModel):
    a: int = 1
    b: Any = None


class Bar(Foo):
    c: int = 3


class When(BaseModel):
    at: datetime


class Holder(BaseModel):
    foo: Foo


class Page(BaseModel, Generic[T]):
    items: list[T]
    after: Page[T] | None = None


class Private(BaseModel):
    x: int
    _count: int = PrivateAttr(default=3)
    _seen: list[int] = PrivateAttr(default_factory=list)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int = 0


class Aliased(BaseModel):
    x: int = Field(alias="ex")


class Numbers(RootModel[list[int]]):
    pass


class LeftOut(BaseModel):
    x: int = Field(exclude=True, default=0)


class Link(BaseModel):
    url: HttpUrl
    more: Any = None


class Checked(BaseModel):
    x: int
    y: int = 0

    @field_validator("x")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 0:
            raise ValueError("below {x}")
        return value

    @field_validator("y")
    @classmethod
    def _made_up(cls, value: int) -> int:
        raise PydanticCustomError("made_up", "got {n} {{n}}", {"n": value})


class Pair(NamedTuple):
    left: Any
    right: str = "x"


class Split(collections.namedtuple("Split", "a b")):
    def __new__(cls, text: str) -> Split:
        return super().__new__(cls, *text.split("-"))


@dataclass
class Made:
    x: int
    y: list[int] = field(default_factory=list)
    z: int = field(init=False)
    w: InitVar[int] = 0

    def __post_init__(self, w: int) -> None:
        if w:
            self.z = w


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any


@dataclass
class Box(Generic[T]):
    x: T


@dataclass
class Grown:
    x: int

    def __post_init__(self) -> None:
        self.extra = self.x + 1

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.x


@dataclass
class Bag(dict):  # type: ignore[type-arg]
    n: int = 0


@pydantic_dataclass
class Validated:
    x: int
    y: Any = None


class Text(str):
    pass


class Items(list):  # type: ignore[type-arg]
    pass


class Table(dict):  # type: ignore[type-arg]
    pass


class Number(int):
    pass


class Real(float):
    pass


class Group(set):  # type: ignore[type-arg]
    pass


class Row(tuple):  # type: ignore[type-arg]
    pass


class Data(bytes):
    pass


class Coded(Exception):
    def __init__(self, code: int, *, why: str) -> None:
        self.code, self.why = code, why
        super().__init__(f"{code} {why}")


class OwnNewError(Exception):
    def __new__(cls, a: int, b: int) -> OwnNewError:
        return super().__new__(cls, a)

    def __init__(self, a: int, b: int) -> None:
        self.b = b


class Gone(OSError):
    def __init__(self, number: int) -> None:
        super().__init__(number, "gone", "file")
        self.number = number


def tagged(items: Items) -> Items:
    items.tag = "t"  # type: ignore[attr-defined]
    return items


def raised(make: Callable[[], Any]) -> Exception:
    try:
        make()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it raised nothing")


VALUES: dict[str, Any] = {
    "zone": datetime(2026, 7, 1, tzinfo=BERLIN),
    "zone, folded": datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    "fold": datetime(2026, 1, 1, fold=1),
    "named offset": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2), "CEST")),
    "odd offset": datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=3, microseconds=1))),
    "utc": datetime(2026, 1, 1, tzinfo=UTC),
    "pydantic's zone": [one := When.model_validate_json('{"at": "2026-01-01T00:00:00+01:00"}'), one.at],
    "time": time(2, 30, tzinfo=BERLIN, fold=1),
    "date": date(2026, 1, 1),
    "zones": [BERLIN, UTC, timezone(timedelta(hours=1), "x")],
    "durations": [timedelta.max, timedelta.min, timedelta(days=300_000, microseconds=1), timedelta(0)],
    "no field was set": Foo(),
    "one field was set": Foo(a=2),
    "enum in Any": Foo(b=Colour.RED),
    "bytes in Any": Foo(b=b"x"),
    "not a number": Foo(b=[-0.0, math.inf]),
    "tuple in Any": Foo(b=(1, {2}, frozenset({3}))),
    "subclass in a field": Holder(foo=Bar(c=4)),
    "generic": Page[Foo](items=[Foo(a=3)], after=Page[Foo](items=[])),
    "generic of many kinds": [
        Page[int](items=[1]),
        Page[list[int]](items=[[1]]),
        Page[List[int]](items=[[1]]),  # noqa: UP006
        Page[Optional[int]](items=[None]),  # noqa: UP045
        Page[int | str](items=["x"]),
        Page[Literal["a", 1]](items=["a"]),
        Page[dict[str, Any]](items=[{}]),
        Page[tuple[int, ...]](items=[(1,)]),
        Page[Page[Foo]](items=[Page[Foo](items=[])]),
        Page(items=[1]),
    ],
    "private": Private(x=1),
    "extra": Open(x=1, q=2, r=b"x"),
    "extra that looks like a tag": Open(**{"$": "tuple", "v": [1]}),
    "alias": Aliased(ex=1),
    "root": Numbers([1]),
    "excluded": LeftOut(x=4),
    "address": Link(url="http://x.y/", more=Colour.RED),
    "constructed": Foo.model_construct(a="no int"),
    "enums": [Colour.RED, Rank.TOP, Access.READ | Access.WRITE, Access(0), *ByName, Mixed.HALF, OwnNew.A],
    "enum keys": {Colour.RED: 1, Rank.TOP: 2},
    "named tuples": [Pair(1), Split("a-b"), Pair(Pair(1))],
    "dataclasses": [Made(1, w=3), Frozen(Frozen((1,))), Grown(1), Bag(n=3), Validated(1, Holder(foo=Foo(a=2)))],
    "generic dataclasses": [Box(1), Box[int](1), Box[Page[Foo]](Page[Foo](items=[]))],
    "of built-in types": [Text("x"), tagged(Items([1])), Table(a=1), Number(3), Real(-0.0), Group({1}), Data(b"1")],
    "a tuple's subclass": Row("x"),
    "a text's subclass as a key": {Text("k"): 1},
    "collections": [
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, {1: [2]}),
        collections.Counter("aab"),
        collections.deque([1, 2], maxlen=3),
    ],
    "half characters": ["\ud83d\ude00", "\ud83d", "\U0001f600", {"\ud83d\ude00": 1}],
    "numbers": [-0.0, math.inf, 10**300, Decimal("1.50"), Decimal("-0"), Fraction(1, 3), complex(math.inf, -0.0)],
    "ranges": [range(1, 10, 2), range(0), slice(1, None), ...],
    "bytes": [b"\xff", bytearray(b"x")],
    "paths": [Path("a"), PureWindowsPath("c:\\a"), PurePosixPath("a"), Path("caf\udce9")],
    "addresses": [
        ipaddress.ip_address("::1%eth0"),
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_interface("10.0.0.1/8"),
    ],
    "patterns": [re.compile("a+", re.IGNORECASE), re.compile(b"a")],
    "ids": UUID(int=7),
    "keys": {1: 2, (1, 2): 3, None: 4, b"x": 5, frozenset({1}): 6},
    "order": {"b": 1, "a": 2},
    "tags": {"$": "tuple", "v": [1]},
}

ERRORS: dict[str, Exception] = {
    "validation": raised(lambda: Foo(a="x")),
    "validator": raised(lambda: Checked(x=-1)),
    "made up": raised(lambda: Checked(x=1, y=2)),
    "keyword": Coded(7, why="x"),
    "own new": OwnNewError(1, 2),
    "os": Gone(3),
    "file": FileNotFoundError(2, "no", "f"),
    "json": raised(lambda: json.loads("{")),
    "attribute": raised(lambda: object().nothing),  # type: ignore[attr-defined]
    "process": subprocess.CalledProcessError(1, ["x"], output=b"o"),
    "unicode": UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    "syntax": SyntaxError("m", ("f", 1, 2, "t")),
    "stop": StopIteration(4),
}
