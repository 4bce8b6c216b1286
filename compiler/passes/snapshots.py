"""Three passes about snapshots: where one is taken, where none is worth its cost, and where each is no longer needed.

`fork_points` places a SEAL after each step that may change its world, and in front of a fork of a world that a graph
break may have changed. It states on each FORK which snapshots may be its base.

`placement` removes a SEAL if running the step again is cheaper. It does so only for workflows under the decorators:
LangGraph keeps a checkpoint after every superstep, and promises the world of that moment. A step without its SEAL
runs again on a resume, from the snapshot before it, so the next operation on its world must be another step. A fork,
a merge, an end, a step behind a barrier and a step reused by state each need a sealed world. A step that may be
reused keeps its SEAL, since another run can only take over its result with the state after it. Steps that change
nothing need no such pass: sealing finds the snapshot under the world unchanged, and keeps none.

`liveness` states on each operation that makes a snapshot the operations after which the run no longer needs it
(attribute `dies`). A resume continues from the newest snapshot of each branch, and branches are merged over the
snapshot that was forked. So a snapshot is needed until its world is recorded anew or ended, and until every fork of
it is released. The journal shows which of the operations was done. A snapshot that is no longer needed can still be
looked at and restored, until `ramify gc --budget` removes it. For LangGraph nothing is stated, since LangGraph's
checkpoints name every state of a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.analysis import Facts, bases, next_uses, propagate_back, unsealed
from ramify.compiler.ir.graph import Block, Graph, Operation, base_id
from ramify.compiler.ir.rewrite import marked, renumber, swap_values, with_values
from ramify.compiler.plan import Effect, OpId, OpKind, StepPlan, ValueId
from ramify.compiler.spec import Spec

# fork_points


def fork_points(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    reading = {step.name for step in graph.steps if step.effect is Effect.READONLY}
    runs = (op for op in graph.ops() if op.runs and op.worlds)
    graph = _seal(graph, {op.id for op in runs if op.step not in reading}, after=True)
    graph = _seal(graph, _forks_of_changed_worlds(graph), after=False)
    graph = replace(graph, blocks=renumber(graph.blocks))
    return _with_bases(graph)


def _forks_of_changed_worlds(graph: Graph) -> set[OpId]:
    """Return the FORKs that need a SEAL. If one copy of a call site needs it, all copies get it."""
    changed = unsealed(graph)
    forks = [op for op in graph.ops() if op.kind is OpKind.FORK]
    sites = {base_id(op.id) for op in forks if changed.get(op.inputs[0])}
    return {op.id for op in forks if base_id(op.id) in sites}


def _seal(graph: Graph, around: set[OpId], *, after: bool) -> Graph:
    """Insert a SEAL after, or in front of, each of these operations, with provisional values (`…!1`)."""
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
    """Return the id of a SEAL: `run.3` is sealed by `seal.3`, and `seal.fork.2` stands before `fork.2`."""
    return OpId(f"seal.{op_id.removeprefix('run.')}")


def _with_bases(graph: Graph) -> Graph:
    recorded = bases(graph)

    def with_base(op: Operation) -> Operation:
        if op.kind is not OpKind.FORK:
            return op
        return replace(op, attrs={**op.attrs, "base": sorted(recorded.get(op.inputs[0], ()))})

    return replace(graph, blocks=tuple(replace(b, ops=tuple(map(with_base, b.ops))) for b in graph.blocks))


# placement


def placement(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    if graph.frontend != "decorators":
        return graph
    cheap = {step.name for step in graph.steps if _is_cheap(step, estimates)}
    if not cheap:
        return graph
    needless = _needless_seals(graph, cheap)
    if not needless:
        return graph
    return replace(graph, blocks=renumber(_without_seals(block, needless) for block in graph.blocks))


def _is_cheap(step: StepPlan, estimates: Estimates) -> bool:
    if step.reuse or step.effect is not Effect.REVERTIBLE:
        return False
    rerun, seal = estimates.rerun_s(step.name), estimates.seal_s()
    return rerun is not None and seal is not None and rerun < seal


def _needless_seals(graph: Graph, cheap: set[str]) -> set[OpId]:
    """Return the SEALs that can be removed: all copies of a call site or none, since they are one plan operation."""
    uses = next_uses(graph)
    made: dict[ValueId, Operation] = {value: op for op in graph.ops() for value in op.outputs}
    needed, needless = set[OpId](), dict[OpId, OpId]()
    for op in graph.ops():
        if op.kind is not OpKind.SEAL:
            continue
        run = made.get(op.inputs[0])
        only_steps = uses.get(op.outputs[0]) == frozenset({OpKind.RUN.value})
        if run is not None and run.runs and run.step in cheap and only_steps:
            needless[op.id] = base_id(op.id)
        else:
            needed.add(base_id(op.id))
    return {op_id for op_id, base in needless.items() if base not in needed}


def _without_seals(block: Block, gone: set[OpId]) -> Block:
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


# liveness

DIES = "dies"
MAKES = frozenset({OpKind.SEAL, OpKind.MERGE})
RECORDS = MAKES | {OpKind.BREAK, OpKind.RELEASE}


def liveness(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    if graph.frontend != "decorators":
        return graph
    ends = propagate_back(graph, _ends_before)
    found: dict[OpId, set[str]] = {}
    for op in graph.ops():
        if op.kind in MAKES:
            found.setdefault(base_id(op.id), set()).update(ends.get(op.outputs[0], ()))
    return marked(graph, DIES, {op.id: sorted(found[base_id(op.id)]) for op in graph.ops() if op.kind in MAKES})


def _ends_before(op: Operation, after: Mapping[ValueId, Facts]) -> Mapping[ValueId, Facts]:
    """Return, for an operation's inputs, the operations that next record the world anew or end it."""
    if op.kind is OpKind.MERGE:  # the branches do not change: another may be merged, until they are released
        world, family = op.inputs[:2]
        return {world: frozenset({base_id(op.id)}), family: after.get(op.outputs[1], frozenset())}
    if op.kind in RECORDS:
        return {value: frozenset({base_id(op.id)}) for value in op.inputs}
    return {value: after.get(made, frozenset()) for value, made in zip(op.inputs, op.outputs, strict=False)}
