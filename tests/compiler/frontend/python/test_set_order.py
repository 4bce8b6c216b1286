"""Calls that follow the order of a set of strings, which is another in each process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ramify.compiler.plan import EQUAL, IF_SET, MAYBE_EQUAL, PICKED, UNORDERED

Compile = Callable[..., Any]

HEAD = """
from stand_in import *
import asyncio, enum, itertools
from collections import deque
from dataclasses import dataclass
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

def untyped(): return {each for each in "ab"}

def as_list(names): return list(names)

def shouted(names: set[str]) -> list[str]: return [each.upper() for each in names]

def one_by_one(names):
    for each in names: yield each

def arranged(names: set[str]) -> list[str]:
    found = list(names)
    found.sort(key=str.lower)
    return found

@step
async def listed(names: set[str]) -> list[str]: return list(names)

async def only_ada(who):
    if who != "ada":
        return
    await next_id()

@dataclass
class Message:
    role: str
    text: str

class Rank(enum.Enum):
    HIGH = "high"

@workflow
async def flow(given: set[str], counts: set[int], x):
"""


def flagged(compile_source: Compile, body: str) -> list[Any]:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    plan = compile_source(HEAD + indented + "\n").plan
    return [op.step for op in plan.ops if op.attrs.get(UNORDERED) == EQUAL and IF_SET not in op.attrs]


def marks(compile_source: Compile, snippets: list[str]) -> dict[str, list[tuple[str, list[str]]]]:
    """Return how the calls of `next_id` in each piece of code are marked, and on which recorded values that depends.
    All are compiled as one workflow, each in a function of its own."""
    lines, owner = (HEAD + "    await ring()").splitlines(), dict[int, str]()
    first = len(lines)
    for number, snippet in enumerate(snippets):
        body = [f"async def part{number}(given: set[str], other: frozenset[str], x):"]
        body += [f"    {line}" for line in snippet.splitlines()]
        owner |= {len(lines) + 1 + index: snippet for index in range(len(body))}
        lines += [f"    {line}" for line in body]
        lines.append(f"    await part{number}(given, given, x)")
    plan = compile_source("\n".join(lines) + "\n").plan
    shift = next(op.site.line for op in plan.ops if op.step == "ring") - first
    found: dict[str, list[tuple[str, list[str]]]] = {snippet: [] for snippet in snippets}
    for op in plan.ops:
        if op.step == "next_id" and UNORDERED in op.attrs and op.site is not None:
            found[owner[op.site.line - shift]].append((op.attrs[UNORDERED], op.attrs.get(IF_SET, [])))
    return found


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


def test_what_else_is_in_the_order_of_a_set(compile_source: Compile) -> None:
    bodies = [
        "for n in iter(given): await next_id()",
        "for n in [*given, 'z']: await next_id()",
        "for n in deque(given): await next_id()",
        "for n, m in itertools.product(given, [1]): await next_id()",
        "for n in untyped(): await next_id()",
        "kept = []\nfor n in given: kept.append(n)\nfor n in kept: await next_id()",
        "for n in sorted(given, key=lambda n: (len(n), n[0])): await next_id()",
        "for _ in range(2):\n    n = given.pop()\n    await next_id()",
        "each = iter(given)\nwhile n := next(each, None): await next_id()",
        "for i, n in enumerate(given): await next_id(f'job {i}')",
        "out = []\nfor n in given:\n    out.append(await next_id(len(out)))",
        "for n in given:\n    for m in other: await next_id(n)",
        "for n in given:\n    if n != 'ada': await next_id()",
        "for n in given:\n    if n == 'ada': break\n    await next_id()",
        "for n in given:\n    if n == 'ada' or n == 'bob': await next_id()",
        "for n in given:\n    n = n.upper()\n    if n == 'ADA': await next_id()",
        "for n in given:\n    last = n\n    if n == last: await next_id()",
        "for r in await asyncio.gather(*[x(n) for n in given]): await next_id()",
        "people = list(given)\nfor i in range(len(people)): x[people[i]] = await next_id()",
        "groups = x()\nfor n in given: groups[n[0]].append(n)\nfor k in groups: await next_id()",
        "for n in as_list(given): await next_id()",
        "async def inner():\n    for n in given: await next_id()\nawait inner()",
        "q = asyncio.Queue()\nfor n in given: q.put_nowait(n)\nasync def inner():\n    while q.qsize():\n"
        "        n = await q.get()\n        await next_id()\nawait asyncio.gather(inner(), inner())",
        "for n in shouted(given): await next_id()",
        "for n in one_by_one(given): await next_id()",
    ]
    for body, found in marks(compile_source, bodies).items():
        assert found == [(EQUAL, [])], body


def test_calls_under_a_test_that_one_element_passes(compile_source: Compile) -> None:
    bodies = [
        "for n in given:\n    if n == 'ada': await next_id()",
        "for n in given:\n    if 'ada' == n and x(): await next_id()",
        "for n in given:\n    if n != 'ada': continue\n    await next_id()\n    break",
        "for n in given:\n    if not n == 'ada':\n        x()\n    else:\n        await next_id()",
        "for n in given:\n    if n in ('ada',): await next_id()",
        "for n in given:\n    if n is Rank.HIGH: await next_id()",
        "for n in given:\n    if n == x:\n        for i in range(2): await next_id()",
        "for n in given:\n    match n:\n        case 'ada': await next_id()",
        "return [await next_id() for n in given if n == 'ada']",
        "for n in given: (await next_id()) if n == 'ada' else None",
        "while given:\n    n = given.pop()\n    if n == 'ada': await next_id()",
        "for n in given: await only_ada(n)",
        "while given: await next_id(given.pop())",
        "for r in await asyncio.gather(*[x(n) for n in given]): await next_id(r)",
        "for n in given:\n    for m in other:\n        await next_id(n, m)",
        "for n in given:\n    for i in range(3): await next_id(f'about {n}')",
        "for n in given: await next_id('about ' + n)",
        "for n in given: await next_id([Message('user', f'about {n}')])",
    ]
    for body, found in marks(compile_source, bodies).items():
        assert found == [], body


def test_lists_in_an_order_of_their_own(compile_source: Compile) -> None:
    bodies = [
        "for n in await listed(given): await next_id()",  # the result of a step is recorded
        "for n in arranged(given): await next_id()",
        "people = list(given)\npeople.sort()\nfor n in people: await next_id()",
        "for n in {int(each) for each in given}: await next_id()",
    ]
    for body, found in marks(compile_source, bodies).items():
        assert found == [], body


def test_two_elements_may_have_equal_parts(compile_source: Compile) -> None:
    body = "for part, n in zip([each[0] for each in given], given): await next_id(part)"
    assert list(marks(compile_source, [body]).values()) == [[(MAYBE_EQUAL, [])]]


def test_calls_whose_arguments_depend_on_the_order(compile_source: Compile) -> None:
    picked = ["next(iter(given))", "list(given)", "given.pop()", "','.join(given)", "[*given][0]", "f'{given}'"]
    plain = ["given", "sorted(given)", "','.join(sorted(given))", "max(given)", "len(given)", "{n: 1 for n in given}"]
    for argument, found in marks(compile_source, [f"await next_id({each})" for each in picked]).items():
        assert found == [(PICKED, [])], argument
    for argument, found in marks(compile_source, [f"await next_id({each})" for each in plain]).items():
        assert found == [], argument
    unpacked = "first, *rest = given\nawait next_id(first)"
    assert marks(compile_source, [unpacked]) == {unpacked: [(PICKED, [])]}


def test_one_call_site_on_two_ways(compile_source: Compile) -> None:
    plan = compile_source(HEAD + "    await one(x)\n    for n in given: await one(n)\n").plan
    assert [op.attrs.get(UNORDERED) for op in plan.ops if op.step == "next_id"] == [MAYBE_EQUAL]


def test_values_whose_type_is_known_at_run_time(compile_source: Compile) -> None:
    body = "    for n in list(x): await next_id()\n    for n in await next_id(): await next_id(1)\n"
    plan = compile_source(HEAD + body).plan
    assert [op.attrs[IF_SET] for op in plan.ops if IF_SET in op.attrs] == [["argument x"], ["step next_id"]]


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
