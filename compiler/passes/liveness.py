"""Where each snapshot dies: from there on nothing that the run may still do needs it.

A resume goes on from the newest snapshot of each branch, and a fork's branches are merged over the one it was taken
from. So a snapshot is needed until its world is recorded anew or ended, and until every fork of it is released. What
makes snapshots says at which operations that may be; the journal says which of them was done. A dead snapshot may
still be looked at and gone back to, until `ramify gc --budget` takes it.

Under the decorators alone: LangGraph's own checkpoints name every state of a thread.
"""

from __future__ import annotations

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.graph import Graph, Operation, base_id
from ramify.compiler.passes.marks import marked
from ramify.compiler.plan import OpId, OpKind, ValueId
from ramify.compiler.spec import Spec

DIES = "dies"
MAKES = frozenset({OpKind.SEAL, OpKind.MERGE})
RECORDS = MAKES | {OpKind.BREAK, OpKind.RELEASE}


def liveness(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    if graph.frontend != "decorators":
        return graph
    ends = _ends(graph)
    found: dict[OpId, set[str]] = {}
    for op in graph.ops():
        if op.kind in MAKES:
            found.setdefault(base_id(op.id), set()).update(ends.get(op.outputs[0], ()))
    return marked(graph, DIES, {op.id: sorted(found[base_id(op.id)]) for op in graph.ops() if op.kind in MAKES})


def _ends(graph: Graph) -> dict[ValueId, frozenset[str]]:
    """For each world, the operations that next record it anew or end it, on each way on from there."""
    leading: dict[str, list[str]] = {}
    for block in graph.blocks:
        for to, _ in block.exits:
            leading.setdefault(to, []).append(block.id)
    found: dict[ValueId, frozenset[str]] = {}
    stale = dict.fromkeys(block.id for block in reversed(graph.blocks))
    while stale:
        block = graph.by_id[next(iter(stale))]
        del stale[block.id]
        before = [found.get(param) for param in block.params]
        for to, worlds in block.exits:
            for param, value in zip(graph.by_id[to].params, worlds, strict=True):
                found[value] = found.get(value, frozenset()) | found.get(param, frozenset())
        for op in reversed(block.ops):
            found.update(_through(op, found))
        if [found.get(param) for param in block.params] != before:
            stale.update(dict.fromkeys(leading.get(block.id, ())))
    return found


def _through(op: Operation, found: dict[ValueId, frozenset[str]]) -> dict[ValueId, frozenset[str]]:
    """What holds of an operation's inputs, from what holds of its outputs."""
    if op.kind is OpKind.MERGE:  # the branches stay as they are: another may be merged, until they are released
        world, family = op.inputs[:2]
        return {world: frozenset({base_id(op.id)}), family: found.get(op.outputs[1], frozenset())}
    if op.kind in RECORDS:
        return {value: frozenset({base_id(op.id)}) for value in op.inputs}
    return {value: found.get(made, frozenset()) for value, made in zip(op.inputs, op.outputs, strict=False)}
