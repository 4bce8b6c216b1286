"""Calls that follow the order of a set of strings, which is another in each process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ramify.compiler.plan import EQUAL, MAYBE_EQUAL, UNORDERED

Compile = Callable[..., Any]

HEAD = """
from stand_in import *
import asyncio
NAMES, NUMBERS = {"ada", "bob"}, {1, 2}
KEYS, GROUPS = {"x": 1}, [frozenset({"a", "b"}), frozenset("c")]

class Team:
    names: set[str]
    listed: list[str]

@step
async def next_id(*given): ...

@step
async def ring() -> None: ...

@step
async def names() -> set[str]: ...

def known() -> "frozenset[str] | None": ...

async def one(who):
    return await next_id()

async def told(who):
    return await next_id(who)

@workflow
async def flow(given: set[str], counts: set[int], x):
"""


def flagged(compile_source: Compile, body: str) -> list[Any]:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    plan = compile_source(HEAD + indented + "\n").plan
    return [op.step for op in plan.ops if op.attrs.get(UNORDERED) == EQUAL]


@pytest.mark.parametrize(
    "body",
    [
        "for n in {'a', 'b'}: await next_id()",
        "for n in NAMES: await next_id(5)",
        "for n in given: await next_id(x)",
        "for n in await names(): await next_id()",
        "for n in known(): await next_id()",
        "for n in set(x): await next_id()",
        "for n in list(set(x)): await next_id()",
        "for i, n in enumerate(set(x)): await next_id(i)",
        "for n, i in zip(given, range(9)): await next_id(i)",
        "all = given | {'z'}\nfor n in all: await next_id()",
        "for n in given - {'z'}: await next_id()",
        "return [await next_id() for n in given]",
        "return {n: await next_id() for n in given}",
        "return await asyncio.gather(*[next_id() for n in given])",
        "for n, v in dict.fromkeys(given).items(): await next_id()",
        "for n in given:\n    await one(n)",
        "while given:\n    n = given.pop()\n    await next_id()",
        "found: set[str] = x()\nfor n in found: await next_id()",
        "for n in [each.upper() for each in given]: await next_id()",
        "for n in given:\n    for m in range(2): await next_id(m)",
        "for n in KEYS.keys() & {'x'}: await next_id()",
        "todo, out = set(x), {}\nwhile todo:\n    n = todo.pop()\n    await next_id()",
        "seen = set()\nseen.add(x)\nfor n in seen: await next_id()",
        "for n in x.names: await next_id()",
        "for n in sorted(given, key=len): await next_id()",
        "for group in GROUPS:\n    for n in group: await next_id()",
        "groups: dict[str, set[str]] = x\nfor group in groups.values():\n    for n in group: await next_id()",
    ],
)
def test_equal_calls_in_the_order_of_a_set(
    body: str, compile_source: Compile, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ramify.compiler"):
        assert flagged(compile_source, body) == ["next_id"]
    assert "step next_id is called in the order of a set" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        "for n in sorted(given): await next_id()",
        "for n in NUMBERS: await next_id()",
        "for n in counts: await next_id()",
        "for n in {1, 2}: await next_id()",
        "for n in set(range(3)): await next_id()",
        "for n in given: await next_id(n)",
        "for i, n in enumerate(given): await next_id(i, n)",
        "for n in given: await next_id(n.upper())",
        "for n in given:\n    who = n.upper()\n    await next_id(who=who)",
        "for n in given:\n    await told(n)",
        "for n in given: await ring()",
        "for n in sorted(given, key=str.lower): await next_id()",
        "for n in x: await next_id()",
        "for n in x.listed: await next_id()",
        "for key in KEYS.keys(): await next_id()",
        "for group in [x]:\n    for n in group: await next_id()",
        "given = sorted(given)\nfor n in given: await next_id()",
        "for n in given: x.append(n)\nawait next_id()",
        "while given:\n    n = given.pop()\n    await next_id(n)",
        "async def inner(n):\n    return await next_id(n)\nawait asyncio.gather(*[inner(n) for n in given])",
    ],
)
def test_calls_that_are_told_apart_or_in_a_fixed_order(body: str, compile_source: Compile) -> None:
    assert flagged(compile_source, body) == []


@pytest.mark.parametrize("argument", ["x.current", "x[0]", "x()"])
def test_arguments_that_may_differ(argument: str, compile_source: Compile) -> None:
    plan = compile_source(HEAD + f"    for n in given:\n        x.take(n)\n        await next_id({argument})\n").plan
    assert [op.attrs[UNORDERED] for op in plan.ops if UNORDERED in op.attrs] == [MAYBE_EQUAL]


@pytest.mark.parametrize(
    "body",
    [
        "mail = {}\nmail['to'] = n\nawait next_id(mail)",
        "mail = x()\nmail.to = n\nawait next_id(mail)",
        "mail = x()\nmail['to'].append(n)\nawait next_id(mail)",
        "mail = x()\nx.fill(mail, n)\nawait next_id(mail)",
        "to, mail = [], {}\nto.append(n)\nmail.update(to=to)\nawait next_id(mail)",
        "mail = {}\nmail['to'] = n\nawait told(mail)",
    ],
)
def test_an_element_may_be_put_into_an_argument(body: str, compile_source: Compile) -> None:
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    plan = compile_source(f"{HEAD}    for n in given:\n{indented}").plan
    assert [op.attrs[UNORDERED] for op in plan.ops if UNORDERED in op.attrs] == [MAYBE_EQUAL]


@pytest.mark.parametrize("body", ["out[n] = await next_id(x)", "out.append((n, await next_id(x)))"])
def test_a_result_beside_an_element_is_not_put_into_an_argument(body: str, compile_source: Compile) -> None:
    assert flagged(compile_source, f"out = x()\nfor n in given: {body}") == ["next_id"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations were evaluated with the definition")
def test_annotations_need_not_be_defined(compile_source: Compile) -> None:
    source = HEAD.replace("def known()", "def other() -> OnlyForTypeCheckers: ...\n\ndef known()")
    plan = compile_source(source + "    for n in other(): await next_id()\n").plan
    assert not any(UNORDERED in op.attrs for op in plan.ops)
