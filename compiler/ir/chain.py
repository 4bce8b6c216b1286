"""Chains of values through a whole graph, beside its worlds: versions of the channels, and what was done outside.

A chain is begun by ENTER and ended by the last RELEASE; each block takes it as its last parameter and hands it on, so
the order of what takes it is the order of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ramify.compiler.ir.graph import Block, Operation
from ramify.compiler.ir.tidy import rewired
from ramify.compiler.plan import OpKind, ValueId


def threaded(
    blocks: tuple[Block, ...],
    name: str,
    takes: Callable[[Operation], bool],
    before: Callable[[Operation, ValueId], Operation | None] = lambda op, now: None,
) -> Iterator[Block]:
    """The blocks with a chain of values `name` through every operation that `takes` it, and through the ones that
    `before` puts in front of some of them. The new values are to be renumbered."""
    for number, block in enumerate(blocks):
        first = now = ValueId(f"{name}.{number}")
        ops: list[Operation] = []
        for op in block.ops:
            if (put := before(op, now)) is not None:
                ops.append(put)
                now = put.outputs[0]
            if op.kind is OpKind.ENTER or takes(op):
                took = () if op.kind is OpKind.ENTER else (now,)
                now = ValueId(f"{name}.{op.id}")
                op = rewired(op, (*op.inputs, *took), (*op.outputs, now))
            elif op.kind is OpKind.RELEASE and op.fork is None:
                op = rewired(op, (*op.inputs, now), ())
            ops.append(op)
        params = block.params if number == 0 else (*block.params, first)
        exits = tuple([(to, (*worlds, now)) for to, worlds in block.exits])
        yield Block(block.id, params, tuple(ops), exits)
