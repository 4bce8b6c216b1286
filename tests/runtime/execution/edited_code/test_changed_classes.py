"""Runs whose values are of classes that are changed before they are resumed: nothing is repeated or swapped."""

from __future__ import annotations

import pytest

from ramify.runtime.errors import NotSerialisable, RunError
from tests.runtime.execution.edited_code.files import App

IMPORTS = """
import time
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import NamedTuple

import pydantic
"""
FLOW = """
@step
async def load():
    return ORDERS

@step(effect="irreversible")
async def charge(order):
    log(f"charge {order.id}")
    return f"charged {order.id}"

@step
async def tell(order):
    log(f"tell {order.id}")
    return order.id

@workflow
async def flow():
    out = []
    for order in await load():
        out.append(await charge(order))
        out.append(await tell(order))
    await die()
    return out
"""
MAKE = 'ORDERS = [Order(id="a", to="x"), Order(id="b", to="y")]\n'
DATACLASS = "@dataclass\nclass Order:\n    id: str\n    to: str\n"
MODEL = "class Order(pydantic.BaseModel):\n    id: str\n    to: str = ''\n"
NAMED = "class Order(NamedTuple):\n    id: str\n    to: str = ''\n"
WITHIN = "@dataclass\nclass Order:\n    id: str\n    to: object\n"
WITHIN_MAKE = 'ORDERS = [Order(id="a", to=Place()), Order(id="b", to=[Place("z")])]\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DATACLASS + MAKE, DATACLASS + "    unit: str = 'eur'\n" + MAKE),
        (DATACLASS + MAKE, DATACLASS + "    at: float = field(default_factory=time.perf_counter_ns)\n" + MAKE),
        (DATACLASS + MAKE, DATACLASS.replace("Order", "Sale") + "Order = Sale\n" + MAKE),
        (DATACLASS + MAKE, DATACLASS.replace("    id: str\n    to: str\n", "    to: str\n    id: str\n") + MAKE),
        (MODEL + MAKE, MODEL + "    unit: str = 'eur'\n    _seen: int = 0\n" + MAKE),
        (NAMED + MAKE, NAMED + "    unit: str = 'eur'\n" + MAKE),
        (NAMED + MAKE, NAMED.replace("    to", "    unit: str = 'eur'\n    to") + MAKE),
        (NAMED + MAKE, "class Order(NamedTuple):\n    to: str\n    id: str\n" + MAKE),
        (
            "@dataclass\nclass Place:\n    at: str = 'y'\n" + WITHIN + WITHIN_MAKE,
            "@dataclass\nclass Spot:\n    at: str = 'y'\n    more: int = 1\nPlace = Spot\n" + WITHIN + WITHIN_MAKE,
        ),
    ],
)
async def test_a_class_that_gains_a_field_or_another_name_repeats_nothing(app: App, before: str, after: str) -> None:
    await app.begin(IMPORTS + before + FLOW)
    assert await app.resume(IMPORTS + after + FLOW) == ["charged a", "a", "charged b", "b"]
    assert app.log == ["charge a", "tell a", "charge b", "tell b"]


KIND = """
@step
async def load():
    return Kind.BOB

@workflow
async def flow():
    kind = await load()
    await die()
    return await pay(kind.name)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ADA = auto()\n    BOB = auto()", "BOB = auto()\n    ADA = auto()"),
        ("ADA = auto()\n    BOB = auto()\n    CYD = auto()", "BOB = auto()\n    CYD = auto()"),
        ("ADA = auto()\n    BOB = auto()", "ZED = auto()\n    ADA = auto()\n    BOB = auto()"),
        ("ADA = 1\n    BOB = 2", "ADA = 1\n    BOB = 3"),
        ("ADA = 'x'\n    BOB = 'y'", "ADA = 'y'\n    BOB = 'x'"),
    ],
)
async def test_an_enum_whose_members_have_other_values_is_refused(app: App, before: str, after: str) -> None:
    await app.begin(f"{IMPORTS}class Kind(Enum):\n    {before}\n{KIND}")
    with pytest.raises(RunError, match="a stored value is Kind") as refused:
        await app.resume(f"{IMPORTS}class Kind(Enum):\n    {after}\n{KIND}")
    assert isinstance(refused.value, NotSerialisable) or isinstance(refused.value.__cause__, NotSerialisable)
    assert "log" not in [file.name for file in app.folder.iterdir()]


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("ADA = 1\n    BOB = 2", "BOB = 2\n    ADA = 1", "BOB"),
        ("ADA = 1\n    BOB = 2", "ADA = 1\n    ROB = 2\n    BOB = ROB", "ROB"),
        ("ADA = 'ada'\n    BOB = 'bob'", "ADA = 'ada'\n    ROB = 'bob'", "ROB"),
    ],
)
async def test_a_member_is_found_by_its_value_and_its_name(app: App, before: str, after: str, name: str) -> None:
    await app.begin(f"{IMPORTS}class Kind(Enum):\n    {before}\n{KIND}")
    assert await app.resume(f"{IMPORTS}class Kind(Enum):\n    {after}\n{KIND}") == name


WAYS = """
@step
async def load():
    return [Way(src="a", dst="b"), Way(src="b", dst="a")]

@step
async def tell(way):
    return f"{way.src} to {way.dst}"

@step(effect="irreversible")
async def take(way):
    log(f"take {way.src} to {way.dst}")
    return f"took {way.src} to {way.dst}"

@workflow
async def flow():
    out = []
    for way in await load():
        out.append(await tell(way))
        out.append(await take(way))
    await die()
    return out
"""


async def test_named_tuples_that_mirror_each_other_get_their_own_results(app: App) -> None:
    await app.begin(f"{IMPORTS}class Way(NamedTuple):\n    src: str\n    dst: str\n{WAYS}")
    found = await app.resume(f"{IMPORTS}class Way(NamedTuple):\n    dst: str\n    src: str\n{WAYS}")
    assert found == ["a to b", "took a to b", "b to a", "took b to a"]
    assert app.log == ["take a to b", "take b to a"]
