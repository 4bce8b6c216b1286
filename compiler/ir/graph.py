"""The System State Graph: blocks of operations on worlds.

The values are states: each version of a world is one value, made once and used once. Blocks pass worlds on by
parameters, as in MLIR, and use no world that they neither made nor received. So each block shows by itself that
worlds are linear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ramify.compiler.plan import STEPS, OpId, OpKind, Site, StepPlan, ValueId

CHANNELS = "c"  # prefix of values that are versions of the channels
EFFECTS = "e"  # prefix of values in the chain of effects
NO_WORLD = (CHANNELS, EFFECTS)
COPY = "~"  # `run.3~2` is the second copy of `run.3`: the same call site on another call path


def base_id(op_id: str) -> OpId:
    """Return the id of an operation without the mark of a copy."""
    return OpId(op_id.partition(COPY)[0])


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `inputs` are the values that it takes, `outputs` those that it makes."""

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
        """The inputs that are worlds or families of branches."""
        return tuple([value for value in self.inputs if value[0] not in NO_WORLD])

    @property
    def fork(self) -> str | None:
        """The FORK that a MERGE or a RELEASE of branches belongs to."""
        fork = self.attrs.get("fork")
        return fork if isinstance(fork, str) else None

    @property
    def place(self) -> str:
        """Where it stands in the user's code, for messages."""
        return f"{self.site} ({self.id})" if self.site else self.id


@dataclass(frozen=True, slots=True)
class Block:
    """A sequence of operations. `exits` name the blocks that may follow, and the values passed to each."""

    id: str
    params: tuple[ValueId, ...] = ()
    ops: tuple[Operation, ...] = ()
    exits: tuple[tuple[str, tuple[ValueId, ...]], ...] = ()


@dataclass(frozen=True)  # no slots: the tables are cached on it
class Graph:
    """A System State Graph. The first block is the entry."""

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
        """Yield all operations in reading order."""
        for block in self.blocks:
            yield from block.ops

    @cached_property
    def by_id(self) -> dict[str, Block]:
        return {block.id: block for block in self.blocks}

    @cached_property
    def by_step(self) -> dict[str, StepPlan]:
        return {step.name: step for step in self.steps}

    @cached_property
    def predecessors(self) -> dict[str, list[str]]:
        """For each block, the blocks that lead to it."""
        table: dict[str, list[str]] = {}
        for block in self.blocks:
            for to, _ in block.exits:
                table.setdefault(to, []).append(block.id)
        return table
