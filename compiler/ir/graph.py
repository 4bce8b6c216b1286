"""The System State Graph: blocks of operations on worlds.

States are the values: each version of a world is one, made once and used once. Blocks hand worlds on by parameters,
as in MLIR, and no world is used outside the block that it was made in or handed to; so that a world is linear can be
seen in each block alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ramify.compiler.plan import STEPS, OpId, OpKind, Site, StepPlan, ValueId

CHANNELS = "c"  # how versions of the channels are named
EFFECTS = "e"  # how values of the chain of effects are named
NO_WORLD = (CHANNELS, EFFECTS)
COPY = "~"  # `run.3~2` is the second copy of `run.3`: the same call site over another call path


def base_id(op_id: str) -> OpId:
    return OpId(op_id.partition(COPY)[0])


@dataclass(frozen=True, slots=True)
class Operation:
    id: OpId
    kind: OpKind
    inputs: tuple[ValueId, ...] = ()
    outputs: tuple[ValueId, ...] = ()
    site: Site | None = None
    step: str | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)  # JSON values only

    @property
    def runs(self) -> bool:
        """Whether it runs a step's code."""
        return self.kind in STEPS

    @property
    def worlds(self) -> tuple[ValueId, ...]:
        """Of the inputs, the worlds and families."""
        return tuple([value for value in self.inputs if value[0] not in NO_WORLD])

    @property
    def fork(self) -> str | None:
        """The FORK that a MERGE or a RELEASE of branches belongs to."""
        fork = self.attrs.get("fork")
        return fork if isinstance(fork, str) else None

    @property
    def place(self) -> str:
        return f"{self.site} ({self.id})" if self.site else self.id


@dataclass(frozen=True, slots=True)
class Block:
    id: str
    params: tuple[ValueId, ...] = ()
    ops: tuple[Operation, ...] = ()
    exits: tuple[tuple[str, tuple[ValueId, ...]], ...] = ()


@dataclass(frozen=True)  # no slots: the tables are cached on it
class Graph:
    """The first block is the entry."""

    name: str
    frontend: str
    steps: tuple[StepPlan, ...]
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        from ramify.compiler.ir.text import print_graph

        return print_graph(self)

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self).encode()).hexdigest()

    def ops(self) -> Iterator[Operation]:
        for block in self.blocks:
            yield from block.ops

    @cached_property
    def by_id(self) -> dict[str, Block]:
        return {block.id: block for block in self.blocks}

    @cached_property
    def by_step(self) -> dict[str, StepPlan]:
        return {step.name: step for step in self.steps}


Facts = frozenset[str]
_NOTHING: Facts = frozenset()
Transfer = Callable[[Operation, tuple[Facts, ...]], tuple[Facts, ...]]


def propagate(graph: Graph, transfer: Transfer) -> dict[ValueId, Facts]:
    """What holds of each world on some way to it: `transfer` says what an operation makes of what held before, and a
    block's parameter gathers what its predecessors hand to it. Of channels and effects nothing is asked."""
    facts: dict[ValueId, Facts] = {}
    handed: dict[ValueId, set[str]] = {}  # grows in place: many blocks may lead to one
    stale = {block.id for block in graph.blocks}
    while stale:  # blocks stand in reading order: a sweep, and one more over what a loop leads back to
        for block in graph.blocks:
            if block.id not in stale:
                continue
            stale.discard(block.id)
            facts.update((param, frozenset(handed[param])) for param in block.params if param in handed)
            for op in block.ops:
                given = tuple([facts.get(value, _NOTHING) for value in op.inputs])
                facts.update(zip(op.outputs, transfer(op, given), strict=True))
            for to, worlds in block.exits:
                for param, value in zip(graph.by_id[to].params, worlds, strict=True):
                    if value[0] in NO_WORLD:
                        continue
                    more = facts.get(value, _NOTHING)
                    if more and not more <= handed.setdefault(param, set()):
                        handed[param] |= more
                        stale.add(to)
    return facts
