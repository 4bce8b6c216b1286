"""No snapshot where doing the step again is cheaper.

Under the decorators alone: LangGraph's own checkpoint stands after every superstep, and promises the world of that
moment. A step whose SEAL is left out runs again on a resume, from the snapshot before it, so the next thing to happen
to its world must be another step: a fork, a merge, an end, a fenced step and one that is reused by state each need a
sealed world. A step that may be reused keeps its SEAL: without the state after it nobody can take it over.

A step that changes nothing needs no pass: sealing its world finds the snapshot that it stands on, and keeps none. To
leave out the look would have the step, however long it takes, done again by a resume.
"""

from __future__ import annotations

from dataclasses import replace

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir import facts
from ramify.compiler.ir.graph import Block, Graph, Operation, base_id
from ramify.compiler.ir.tidy import renumber, rewired, swap_values
from ramify.compiler.plan import Effect, OpId, OpKind, StepPlan, ValueId
from ramify.compiler.spec import Spec


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
    again, seal = estimates.again_s(step.name), estimates.seal_s()
    return again is not None and seal is not None and again < seal


def _needless(graph: Graph, light: set[str]) -> set[OpId]:
    """The SEALs that can go: on all call paths, or none, since one call site is one operation of the plan."""
    uses = facts.next_uses(graph)
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
        op = rewired(op, swap_values(op.inputs, now), op.outputs)
        if op.id in gone:
            now[op.outputs[0]] = op.inputs[0]
        else:
            ops.append(op)
    exits = tuple((to, swap_values(worlds, now)) for to, worlds in block.exits)
    return Block(block.id, block.params, tuple(ops), exits)
