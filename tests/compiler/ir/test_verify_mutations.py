"""The verifier finds random damage to a good graph: each kind of damage is refused by its own rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import pytest

from ramify.compiler.errors import VerifyError
from ramify.compiler.ir.graph import EFFECTS, FAMILY, WORLD, Block, Graph, Operation, sort
from ramify.compiler.ir.verify import RULES, verify
from ramify.compiler.passes import PIPELINE
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import Effect, OpId, OpKind, StepPlan, ValueId
from tests.compiler.graph_parser import parse_graph

ALL_PASSES = frozenset(each.name for each in PIPELINE)
Place: TypeAlias = tuple[int, int]  # of a block, and of an operation in it

TEXT = """
from __future__ import annotations
import asyncio
from stand_in import *

@step
async def edit(sandbox: Sandbox, x=None): ...
@step(effect=Effect.PURE)
async def score(x=None): ...
@step(effect=Effect.IRREVERSIBLE)
async def mail(x=None): ...

@workflow
async def flow(x):
    await edit()
    while x:
        ideas = await llm.propose("?", n=3)
        async with fork(ideas) as branches:
            await branches.map(edit)
            async with branches[0].enter():
                async with fork(x) as inner:
                    await inner.map(edit)
                    await inner[0].adopt()
            if x:
                await branches[0].adopt()
            elif await score():
                break
    await mail()
"""


@pytest.fixture
def good(load: Callable[[Path], ModuleType], tmp_path: Path) -> Graph:
    (tmp_path / "mutated.py").write_text(TEXT)
    graph = compile_workflow(load(tmp_path / "mutated.py").flow, ref="mutated.py:flow").ssg
    verify(graph, ALL_PASSES)
    return graph


def places(graph: Graph, wanted: Callable[[Operation], bool]) -> Iterator[Place]:
    for i, block in enumerate(graph.blocks):
        yield from ((i, j) for j, op in enumerate(block.ops) if wanted(op))


def with_block(graph: Graph, at: int, block: Block) -> Graph:
    return replace(graph, blocks=(*graph.blocks[:at], block, *graph.blocks[at + 1 :]))


def with_op(graph: Graph, place: Place, *ops: Operation) -> Graph:
    block = graph.blocks[place[0]]
    return with_block(graph, place[0], replace(block, ops=(*block.ops[: place[1]], *ops, *block.ops[place[1] + 1 :])))


class Damage:
    """One kind of damage at a random place. Each method's docstring is the rule that must find it."""

    def __init__(self, graph: Graph, draw: random.Random) -> None:
        self.graph, self.draw = graph, draw

    def at(self, wanted: Callable[[Operation], bool]) -> tuple[Place, Operation]:
        place = self.draw.choice(list(places(self.graph, wanted)))
        return place, self.graph.blocks[place[0]].ops[place[1]]

    def block(self, wanted: Callable[[Block], bool]) -> tuple[int, Block]:
        return self.draw.choice([(i, block) for i, block in enumerate(self.graph.blocks) if wanted(block)])

    def same_name(self) -> Graph:
        """names are unique"""
        place, op = self.at(lambda op: op.kind is not OpKind.ENTER)
        other = self.draw.choice([each.id for each in self.graph.ops() if each.id != op.id])
        return with_op(self.graph, place, replace(op, id=other))

    def made_twice(self) -> Graph:
        """a world is made once"""
        place, op = self.at(lambda op: any(sort(value) == WORLD for value in op.outputs))
        made = {value for each in self.graph.ops() for value in each.outputs if sort(value) == WORLD}
        other = self.draw.choice(sorted(made - set(op.outputs)))
        outputs = tuple(other if sort(value) == WORLD else value for value in op.outputs)
        return with_op(self.graph, place, replace(op, outputs=outputs))

    def lost_exit_value(self) -> Graph:
        """exits fit their targets"""
        at, block = self.block(lambda block: any(worlds for _, worlds in block.exits))
        exits = tuple((to, worlds[1:]) for to, worlds in block.exits)
        return with_block(self.graph, at, replace(block, exits=exits))

    def no_signature(self) -> Graph:
        """operations fit their signatures"""
        place, op = self.at(lambda op: op.kind in (OpKind.SEAL, OpKind.FORK, OpKind.MERGE, OpKind.PREFORK))
        return with_op(self.graph, place, replace(op, kind=OpKind.CALL_LLM))

    def nothing_leads_there(self) -> Graph:
        """entered once, every block reachable"""
        alone = replace(self.graph.blocks[-1], id="alone", params=(), ops=(), exits=())
        return replace(self.graph, blocks=(*self.graph.blocks, alone))

    def used_twice(self) -> Graph:
        """a world is used once"""
        place, op = self.at(lambda op: op.kind is OpKind.SEAL)
        value = ValueId(f"{sort(op.inputs[0])}999")
        return with_op(self.graph, place, op, replace(op, id=OpId("seal.again"), outputs=(value,)))

    def never_ended(self) -> Graph:
        """a world is ended on every path"""
        place, _ = self.at(lambda op: op.kind is OpKind.RELEASE)
        return with_op(self.graph, place)

    def another_fork(self) -> Graph:
        """branches belong to their fork"""
        place, op = self.at(lambda op: op.fork is not None)
        forks = [each.id for each in self.graph.ops() if each.kind is OpKind.FORK and each.id != op.fork]
        return with_op(self.graph, place, replace(op, attrs={**op.attrs, "fork": self.draw.choice(forks)}))

    def unknown_step(self) -> Graph:
        """steps are in the table"""
        place, op = self.at(lambda op: op.runs)
        return with_op(self.graph, place, replace(op, step="nobody"))

    def pure_on_a_world(self) -> Graph:
        """a pure step holds no world"""
        place, op = self.at(lambda op: op.step == "edit")
        return with_op(self.graph, place, replace(op, step="score"))

    def mail_in_a_branch(self) -> Graph:
        """no irreversible step in a branch"""
        place, op = self.at(lambda op: op.step == "edit" and sort(op.inputs[0]) == FAMILY)
        return with_op(self.graph, place, replace(op, step="mail"))

    def no_barrier(self) -> Graph:
        """an irreversible step is behind a barrier"""
        place, op = self.at(lambda op: op.kind is OpKind.BARRIER)
        at, next_op = place[1], self.graph.blocks[place[0]].ops[place[1] + 1]
        behind = replace(next_op, inputs=tuple(op.inputs[0] if v[0] == EFFECTS else v for v in next_op.inputs))
        block = self.graph.blocks[place[0]]
        return with_block(self.graph, place[0], replace(block, ops=(*block.ops[:at], behind, *block.ops[at + 2 :])))

    def changed_since_it_was_sealed(self) -> Graph:
        """a forked world is sealed"""
        place, op = self.at(lambda op: op.kind is OpKind.FORK)
        made = ValueId(f"{sort(op.inputs[0])}999")
        run = Operation(OpId("run.more"), OpKind.RUN, op.inputs, (made,), None, "edit")
        return with_op(self.graph, place, run, replace(op, inputs=(made,)))

    def no_base(self) -> Graph:
        """a merge has its base"""
        place, op = self.at(lambda op: op.kind is OpKind.FORK)
        gone = self.draw.choice([{}, {"base": []}, {"base": ["seal.nowhere"]}])
        return with_op(
            self.graph, place, replace(op, attrs={k: v for k, v in op.attrs.items() if k != "base"} | gone)
        )

    def ready_for_another(self) -> Graph:
        """worlds are prepared for forks"""
        place, op = self.at(lambda op: op.kind is OpKind.PREFORK)
        spoilt = self.draw.choice([{"during": "run.nowhere"}, {"forks": []}])
        return with_op(self.graph, place, replace(op, attrs={**op.attrs, **spoilt}))


DAMAGES = [each for name, each in vars(Damage).items() if name not in ("at", "block") and not name.startswith("_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_is_refused_by_its_rule(good: Graph, damage: Callable[[Damage], Graph]) -> None:
    for seed in range(12):
        spoilt = damage(Damage(good, random.Random(seed)))
        with pytest.raises(VerifyError) as error:
            verify(spoilt, ALL_PASSES)
        assert error.value.rule == damage.__doc__
        assert parse_graph(str(spoilt)) == spoilt, "a broken graph can still be printed"


def test_every_rule_has_a_damage() -> None:
    assert sorted({str(each.__doc__) for each in DAMAGES}) == sorted(rule.name for rule in RULES)


def test_a_step_in_a_branch_that_becomes_irreversible_is_refused(good: Graph) -> None:
    """The graph is good here; what is wrong is the effect of a step."""
    steps = tuple(
        StepPlan(s.name, Effect.IRREVERSIBLE if s.name == "edit" else s.effect, s.reuse, s.code_digest)
        for s in good.steps
    )
    with pytest.raises(VerifyError, match="irreversible step edit would run in every branch"):
        verify(replace(good, steps=steps), ALL_PASSES)
