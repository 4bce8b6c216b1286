"""Tree of thoughts on the game of 24: combine four numbers, each used once, by + - * / so that the result is 24.

A thought combines two of the numbers on the table. The model ranks the thoughts. The best are tried, each in a world
of its own in which the table is a file, and from each of them the search goes deeper. A world that reaches 24 is
merged into its parent, level by level; the others are released.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from ramify import Sandbox, fork, llm, step, workflow

GOAL = 24
OPTIONS = 20  # thoughts that the model can rank at once


@dataclass(frozen=True)
class Thought:
    """Combine the numbers at two positions of the table."""

    left: int
    right: int
    sign: str


@dataclass(frozen=True)
class Answer:
    solution: str | None
    worlds: int


def value(number: str) -> Fraction:
    return Fraction(number.partition(" ")[0])


def combine(table: list[str], thought: Thought) -> list[str] | None:
    """Return the table after a thought, or None if it is not possible.

    "7/2 ((3 + 4) / 2)" is a number and how it was made.
    """
    first, second = table[thought.left], table[thought.right]
    a, b = value(first), value(second)
    if thought.sign == "/" and b == 0:
        return None
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[thought.sign]
    how = f"({first.partition(' ')[2] or first} {thought.sign} {second.partition(' ')[2] or second})"
    rest = [number for at, number in enumerate(table) if at not in (thought.left, thought.right)]
    return sorted([*rest, f"{result} {how}"])


def thoughts(table: list[str]) -> list[Thought]:
    """Return one thought for each table that a thought can lead to."""
    found: dict[tuple[Fraction, ...], Thought] = {}
    for a, b in combinations(range(len(table)), 2):
        for thought in (Thought(x, y, sign) for sign in "+*-/" for x, y in ((a, b), (b, a))):
            after = combine(table, thought)
            if after is not None:
                found.setdefault(tuple(sorted(map(value, after))), thought)
    return list(found.values())


def hopeful(table: list[str]) -> bool:
    """Return False for two numbers that no operation combines to the goal."""
    if len(table) == 1:
        return value(table[0]) == GOAL
    return len(table) > 2 or any(hopeful(combine(table, thought) or []) for thought in thoughts(table))


@step
async def deal(sandbox: Sandbox, numbers: list[int]) -> None:
    await sandbox.run("cat > table.json", stdin=json.dumps(sorted(map(str, numbers))), check=True)


@step
async def look(sandbox: Sandbox) -> list[str]:
    return json.loads((await sandbox.run("cat table.json", check=True)).stdout)


@step
async def think(sandbox: Sandbox, thought: Thought) -> list[str]:
    """Replace the table in this world by the table after the thought."""
    table = json.loads((await sandbox.run("cat table.json", check=True)).stdout)
    after = combine(table, thought) or []
    await sandbox.run("cat > table.json", stdin=json.dumps(after), check=True)
    return after


async def ranked(table: list[str]) -> list[Thought]:
    """Return the thoughts, the model's favourites first."""
    known = thoughts(table)[:OPTIONS]
    shown = [f"{value(table[t.left])} {t.sign} {value(table[t.right])}" for t in known]
    numbers = ", ".join(str(value(number)) for number in table)
    choice = await llm.choose(f"Make {GOAL} out of {numbers}. Which step comes first?", shown)
    return [known[at] for at in choice.order]


async def search(table: list[str], beam: int) -> tuple[str | None, int]:
    """Return the solution from this world on, if any, and the number of worlds that the search took."""
    if len(table) == 1:
        return (table[0].partition(" ")[2] if value(table[0]) == GOAL else None), 0
    worlds = 0
    async with fork((await ranked(table))[:beam]) as branches:
        outcomes = await branches.map(think)
        worlds += len(outcomes)
        for outcome in outcomes:
            if not hopeful(outcome.value):
                continue
            async with outcome.enter():
                solution, more = await search(outcome.value, beam)
            worlds += more
            if solution is not None:
                await outcome.adopt()
                return solution, worlds
    return None, worlds


@workflow(deadline="5m")
async def solve(numbers: list[int], beam: int = 6) -> Answer:
    """Make 24 of the numbers, trying at most `beam` thoughts from each table."""
    await deal(numbers)
    solution, worlds = await search(await look(), beam)
    return Answer(solution, worlds)
