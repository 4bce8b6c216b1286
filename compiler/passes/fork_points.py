"""Where snapshots are taken: after each step that may change its world, which one that only reads may not, and before
a fork of a world that a graph break may have changed. Each fork says which snapshots it may stand on."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir import facts
from ramify.compiler.ir.graph import Block, Graph, Operation, base_id
from ramify.compiler.ir.tidy import renumber, rewired, swap_values
from ramify.compiler.plan import Effect, OpId, OpKind, ValueId
from ramify.compiler.spec import Spec


def fork_points(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    reading = {step.name for step in graph.steps if step.effect is Effect.READONLY}
    runs = (op for op in graph.ops() if op.runs and op.worlds)
    graph = _seal(graph, {op.id for op in runs if op.step not in reading}, after=True)
    graph = _seal(graph, _forks_of_changed_worlds(graph), after=False)
    graph = replace(graph, blocks=renumber(graph.blocks))
    return _with_bases(graph)


def _forks_of_changed_worlds(graph: Graph) -> set[OpId]:
    """One call site forks sealed worlds on all of its call paths, or needs a SEAL on all of them."""
    changed = facts.unsealed(graph)
    forks = [op for op in graph.ops() if op.kind is OpKind.FORK]
    sites = {base_id(op.id) for op in forks if changed.get(op.inputs[0])}
    return {op.id for op in forks if base_id(op.id) in sites}


def _seal(graph: Graph, around: set[OpId], *, after: bool) -> Graph:
    """A SEAL after, or in front of, each of these operations. The new values are `…!1`, until they are renumbered."""
    numbers = count(1)

    def seal(op: Operation, world: ValueId) -> Operation:
        made = ValueId(f"{world}!{next(numbers)}")
        return Operation(seal_id(op.id), OpKind.SEAL, (world,), (made,), op.site)

    def sealed(block: Block) -> Block:
        ops, now = list[Operation](), dict[ValueId, ValueId]()
        for op in block.ops:
            op = rewired(op, swap_values(op.inputs, now), op.outputs)
            if op.id not in around:
                ops.append(op)
            elif after:
                ops += [op, seal(op, op.outputs[0])]
                now[op.outputs[0]] = ops[-1].outputs[0]
            else:
                first = seal(op, op.inputs[0])
                ops += [first, replace(op, inputs=(first.outputs[0], *op.inputs[1:]))]
        exits = tuple((to, swap_values(worlds, now)) for to, worlds in block.exits)
        return replace(block, ops=tuple(ops), exits=exits)

    return replace(graph, blocks=tuple(map(sealed, graph.blocks)))


def seal_id(op_id: OpId) -> OpId:
    """`run.3` is sealed by `seal.3`; before `fork.2` stands `seal.fork.2`."""
    return OpId(f"seal.{op_id.removeprefix('run.')}")


def _with_bases(graph: Graph) -> Graph:
    bases = facts.bases(graph)

    def based(op: Operation) -> Operation:
        if op.kind is not OpKind.FORK:
            return op
        return replace(op, attrs={**op.attrs, "base": sorted(bases.get(op.inputs[0], ()))})

    return replace(graph, blocks=tuple(replace(b, ops=tuple(map(based, b.ops))) for b in graph.blocks))
