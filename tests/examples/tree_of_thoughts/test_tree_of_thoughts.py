"""The tree of thoughts with a scripted model: it finds a solution, and what it finds is one."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.tree_of_thoughts.workflow import GOAL, combine, hopeful, solve, thoughts, value
from ramify import Runtime
from ramify.compiler.plan import OpKind


def evaluate(expression: str) -> Fraction:
    """What a solution is worth, computed apart from the example."""
    words = "".join(
        f"Fraction({word})" if word.isdigit() else word
        for word in expression.replace("(", " ( ").replace(")", " ) ").split()
    )
    return eval(words, {"Fraction": Fraction})  # digits, signs and brackets alone


@pytest.mark.parametrize("sandbox", ["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)])
async def test_it_finds_a_way(home: Path, model: object, sandbox: str) -> None:
    async with Runtime(home=home, sandbox=sandbox, llm=model) as runtime:
        answer = await runtime.run(solve, [1, 2, 3, 4], 4)
        rows = await runtime.journal()
        assert answer.solution is not None
        assert evaluate(answer.solution) == GOAL
        assert answer.worlds == sum(row.kind is OpKind.RUN and row.step == "think" for row in rows)
        table = runtime.snapshots.read(runtime.snapshots.get(rows[-2].snapshot_out or ""), "table.json")
        assert [value(number) for number in json.loads(table)] == [GOAL]


async def test_numbers_that_lead_nowhere(runtime: Runtime) -> None:
    answer = await runtime.run(solve, [1, 2, 5, 11], 5)
    assert answer.solution is None
    assert answer.worlds > 5


@given(st.lists(st.integers(1, 13), min_size=2, max_size=4))
def test_a_thought_uses_two_numbers_and_gives_one(numbers: list[int]) -> None:
    table = sorted(map(str, numbers))
    for thought in thoughts(table):
        after = combine(table, thought)
        assert after is not None and len(after) == len(table) - 1
        made = next(number for number in after if " " in number)
        assert evaluate(made.partition(" ")[2]) == value(made)


def test_a_dead_end_is_seen() -> None:
    assert hopeful(["12", "2"])
    assert not hopeful(["1", "1"])
    assert not hopeful(["23"])
