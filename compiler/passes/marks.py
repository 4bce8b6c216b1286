"""Putting an attribute on operations: how a pass tells the runtime about one that stands already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ramify.compiler.ir.graph import Block, Graph, Operation
from ramify.compiler.plan import OpId


def marked(graph: Graph, name: str, ops: Mapping[OpId, object]) -> Graph:
    """The graph with the attribute `name` on these, each with its JSON value; itself where there are none."""
    if not ops:
        return graph

    def each(op: Operation) -> Operation:
        return replace(op, attrs={**op.attrs, name: ops[op.id]}) if op.id in ops else op

    def of(block: Block) -> Block:
        return replace(block, ops=tuple(map(each, block.ops)))

    return replace(graph, blocks=tuple(map(of, graph.blocks)))
