"""A value whose class has gained a field is looked up as it was written before."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel, PrivateAttr

from ramify.runtime.codec import codec
from ramify.runtime.codec.canonical import sort_encoded
from ramify.runtime.codec.recorded_layouts import RecordedLayouts, is_same_by_names

HERE = __name__


@dataclass
class Order:
    id: str
    unit: str = "eur"


def before(text: str) -> str:
    """The text as it was written when the class had no `unit`."""
    value = json.loads(text)
    del value["v"]["unit"]
    return json.dumps(value, separators=(",", ":"))


def test_the_earlier_text_of_a_value_has_the_fields_of_then() -> None:
    recorded = before(codec.encode(Order("a")))
    layouts = RecordedLayouts.of(['{"t":', "3", recorded])
    now = codec.encode(Order("b"))
    assert list(layouts.earlier(now)) == [before(now)]
    assert list(layouts.earlier(codec.encode([Order("b")]))) == [f"[{before(now)}]"]


def test_a_value_that_the_class_of_then_did_not_have_has_no_earlier_text() -> None:
    layouts = RecordedLayouts.of([before(codec.encode(Order("a")))])
    assert not list(layouts.earlier(codec.encode(Order("a", "usd"))))
    assert not list(layouts.earlier(codec.encode("a")))
    assert not list(RecordedLayouts.of([codec.encode(Order("a"))]).earlier(codec.encode(Order("a"))))


_TICKS = itertools.count()


@dataclass(frozen=True)
class Timed:
    id: str
    amount: int = 1
    at: int = field(default_factory=lambda: next(_TICKS))
    parts: list[int] = field(default_factory=lambda: [next(_TICKS)], hash=False)


def without(value: Any, *names: str) -> Any:
    """An encoded value as it was written when the classes did not have these fields."""
    if isinstance(value, list):
        return [without(one, *names) for one in value]
    if isinstance(value, dict):
        return {key: without(one, *names) for key, one in value.items() if key not in names}
    return value


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one, Order("b")], lambda one: {"a": {1: one}}])
def test_a_gained_default_that_is_different_each_time_is_not_compared(wrap: Any) -> None:
    recorded = without(json.loads(codec.encode([Timed("a"), Order("b")])), "amount", "at", "parts", "unit")
    layouts = RecordedLayouts.of([json.dumps(recorded)])
    assert list(layouts.earlier(codec.encode(wrap(Timed("a")))))
    assert list(layouts.earlier(codec.encode(wrap(Timed("a", at=-1)))))
    assert not list(layouts.earlier(codec.encode(wrap(Timed("a", 1000)))))
    assert not list(layouts.earlier(codec.encode(wrap(Timed("a", True)))))
    assert not list(layouts.earlier(codec.encode([wrap(Timed("a")), Order("b", "usd")])))


def test_items_of_a_set_are_compared_by_what_was_recorded_of_them() -> None:
    now = codec.encode(frozenset({Timed("a", at=2), Timed("b", at=1)}))
    layouts = RecordedLayouts.of([json.dumps(without(json.loads(now), "amount", "at", "parts"))])
    assert list(layouts.earlier(now))
    assert not list(layouts.earlier(codec.encode(frozenset({Timed("a", 5, at=2), Timed("b", at=1)}))))


class Way(NamedTuple):
    dst: str
    src: str


def with_source_first(way: Way) -> str:
    """The text as it was written when the class had the fields `src, dst`."""
    value = json.loads(codec.encode({"way": way}))
    value["way"] |= {"v": [way.src, way.dst], "aside": {"fields": ["src", "dst"]}}
    return json.dumps(value, separators=(",", ":"))


def test_a_named_tuple_with_its_fields_in_another_order_is_another_value() -> None:
    now, then = codec.encode({"way": Way("a", "b")}), with_source_first(Way("a", "b"))
    layouts = RecordedLayouts.of([then])
    assert layouts.is_reordered(now)
    assert list(layouts.earlier(now)) == [then]
    other = with_source_first(Way("b", "a"))
    assert codec.is_same(now, other)
    assert not is_same_by_names(now, other)
    assert is_same_by_names(then, then.replace(",", ", "))
    untold = other.replace(',"aside":{"fields":["src","dst"]}', "")
    assert untold != other
    assert is_same_by_names(now, untold)
    assert not RecordedLayouts.of([then, now]).is_reordered(now)
    assert not RecordedLayouts.of([codec.encode(Order("a"))]).is_reordered(now)


class Account(BaseModel):
    id: str
    _seen: list[int] = PrivateAttr(default_factory=list)
    _at: int = PrivateAttr(default_factory=lambda: next(_TICKS))
    _limit: int = PrivateAttr(default=7)
    _unset: int


def test_private_attributes_that_a_model_gains_get_their_defaults() -> None:
    now = codec.encode(Account(id="a"))
    then = json.dumps(without(json.loads(now), "private", "aside") | {"private": {"_limit": 8}})
    back = codec.decode(then)
    assert (back._seen, type(back._at), back._limit) == ([], int, 8)
    assert not hasattr(back, "_unset")
    assert codec.decode(then)._at != back._at
    recorded = json.dumps(without(json.loads(now), "private", "aside"))
    assert len(list(RecordedLayouts.of([recorded]).earlier(now))) == 1


T = TypeVar("T")


@dataclass(frozen=True)
class Middle:
    id: str


@dataclass(frozen=True)
class Renamed:
    id: str = ""


@dataclass
class Holder(Generic[T]):
    item: T


Alias = Renamed  # as it was called before


@pytest.mark.parametrize(
    "value",
    [
        frozenset({Renamed("x"), Middle("x")}),
        {"a": [{Renamed("x"), Middle("x")}]},
        defaultdict(Renamed, {1: 2}),
        Holder[Renamed](Renamed("x")),
    ],
    ids=["frozenset", "set", "defaultdict", "generic"],
)
def test_a_renamed_class_is_found_in_sets_and_where_another_object_names_it(value: Any) -> None:
    now = codec.encode(value)
    as_called_before = json.loads(now.replace(":Renamed", ":Alias"), object_hook=sort_sets)
    then = json.dumps(as_called_before, separators=(",", ":"))
    assert not codec.is_same(now, then)
    assert list(RecordedLayouts.of([then]).earlier(now)) == [then]


def sort_sets(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"v": sort_encoded(found["v"])} if found.get("$") in ("set", "frozenset") else found


@pytest.mark.parametrize("part", ['"unset":null', '"aside":null', '"aside":{"fields":[[]]}', '"v":' + "[" * 100_000])
@pytest.mark.parametrize("kind", ["dataclass", "namedtuple"])
def test_a_text_that_another_program_has_changed_is_left_out(part: str, kind: str) -> None:
    body = "{}" if kind == "dataclass" else "[]"
    changed = f'{{"$":"{kind}","t":"{HERE}:Order","v":{body},{part}}}'
    recorded = before(codec.encode(Order("a")))
    assert list(RecordedLayouts.of([changed, recorded]).earlier(codec.encode(Order("a")))) == [recorded]
