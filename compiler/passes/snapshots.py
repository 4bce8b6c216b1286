"""Where snapshots are taken: after each step that may change its world, which one that only reads may not, and before
a fork of a world that a graph break may have changed. Each fork says which snapshots it may stand on."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir import analysis
from ramify.compiler.ir.graph import Block, Graph, Operation, base_id
from ramify.compiler.ir.rewrite import marked, renumber, swap_values, with_values
from ramify.compiler.plan import Effect, OpId, OpKind, StepPlan, ValueId
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
    changed = analysis.unsealed(graph)
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
            op = with_values(op, swap_values(op.inputs, now), op.outputs)
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
    bases = analysis.bases(graph)

    def based(op: Operation) -> Operation:
        if op.kind is not OpKind.FORK:
            return op
        return replace(op, attrs={**op.attrs, "base": sorted(bases.get(op.inputs[0], ()))})

    return replace(graph, blocks=tuple(replace(b, ops=tuple(map(based, b.ops))) for b in graph.blocks))


def placement(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    if graph.frontend != "decorators":
        return graph
    light = {step.name for step in graph.steps if _light(step, estimates)}
    if not light:
        return graph
    needless = _needless(graph, light)
    if not needless:
        return graph
    return replace(graph, blocks=renumber(_without(block, needless) for block in graph.blocks))


def _light(step: StepPlan, estimates: Estimates) -> bool:
    if step.reuse or step.effect is not Effect.REVERTIBLE:
        return False
    again, seal = estimates.rerun_s(step.name), estimates.seal_s()
    return again is not None and seal is not None and again < seal


def _needless(graph: Graph, light: set[str]) -> set[OpId]:
    """The SEALs that can go: on all call paths, or none, since one call site is one operation of the plan."""
    uses = analysis.next_uses(graph)
    made: dict[ValueId, Operation] = {value: op for op in graph.ops() for value in op.outputs}
    needed, needless = set[OpId](), dict[OpId, OpId]()
    for op in graph.ops():
        if op.kind is not OpKind.SEAL:
            continue
        run = made.get(op.inputs[0])
        only_steps = uses.get(op.outputs[0]) == frozenset({OpKind.RUN.value})
        if run is not None and run.runs and run.step in light and only_steps:
            needless[op.id] = base_id(op.id)
        else:
            needed.add(base_id(op.id))
    return {op_id for op_id, base in needless.items() if base not in needed}


def _without(block: Block, gone: set[OpId]) -> Block:
    now: dict[ValueId, ValueId] = {}
    ops = []
    for op in block.ops:
        op = with_values(op, swap_values(op.inputs, now), op.outputs)
        if op.id in gone:
            now[op.outputs[0]] = op.inputs[0]
        else:
            ops.append(op)
    exits = tuple((to, swap_values(worlds, now)) for to, worlds in block.exits)
    return Block(block.id, block.params, tuple(ops), exits)


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
