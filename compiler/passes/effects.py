"""The pass `effects`: what each step may do, and the chain of effects on the outside.

An effect is declared, or follows from the signature, or is unknown. A pure step takes no world. A step that may act
on the outside takes the chain of effects, so such steps stay in order. An irreversible step stands behind a BARRIER.
"""

from __future__ import annotations

from dataclasses import replace

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.graph import EFFECTS, Block, Graph, Operation
from ramify.compiler.ir.rewrite import swap_values, threaded, with_values
from ramify.compiler.plan import Effect, OpId, OpKind, StepPlan, ValueId
from ramify.compiler.spec import Spec, StepSpec

OUTSIDE = frozenset({Effect.IRREVERSIBLE, Effect.UNKNOWN})


def effects(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    steps = tuple(_step_plan(step) for step in spec.steps)
    pure = {step.name for step in steps if step.effect is Effect.PURE}
    graph = replace(graph, steps=steps, blocks=tuple(_without_worlds(block, pure) for block in graph.blocks))
    return _with_effect_chain(graph)


def _step_plan(step: StepSpec) -> StepPlan:
    if step.declared is not None:
        effect, why = step.declared, _tools_text(step) if step.tools else "declared"
    elif step.takes_sandbox:
        effect, why = Effect.REVERTIBLE, "takes a Sandbox"
    else:
        effect, why = Effect.UNKNOWN, "not declared, takes no Sandbox"
    return StepPlan(step.name, effect, step.reuse, step.code_digest, why, step.in_fork)


def _tools_text(step: StepSpec) -> str:
    return "; ".join(f"tool {tool.name}: {tool.why}" for tool in step.tools)


def _without_worlds(block: Block, pure: set[str]) -> Block:
    """Return the block with the worlds of pure steps removed."""
    ops, before = [], dict[ValueId, ValueId]()
    for op in block.ops:
        op = with_values(op, swap_values(op.inputs, before), op.outputs)
        if op.runs and op.step in pure:
            worlds = op.worlds
            before.update(zip(op.outputs, worlds, strict=False))
            op = with_values(op, op.inputs[len(worlds) :], op.outputs[len(worlds) :])
        ops.append(op)
    exits = tuple((to, swap_values(worlds, before)) for to, worlds in block.exits)
    return replace(block, ops=tuple(ops), exits=exits)


def acts_outside(graph: Graph, op: Operation) -> bool:
    """Return whether an operation may have an effect on the outside."""
    if op.kind is OpKind.BREAK:
        return True
    step = graph.by_step.get(op.step or "") if op.runs else None
    return step is not None and step.effect in OUTSIDE


def _with_effect_chain(graph: Graph) -> Graph:
    outside = {op.id for op in graph.ops() if acts_outside(graph, op)}
    if not outside:
        return graph
    irreversible = {s.name for s in graph.steps if s.effect is Effect.IRREVERSIBLE}

    def barrier(op: Operation, now: ValueId) -> Operation | None:
        return _barrier(op, now) if op.runs and op.step in irreversible else None

    blocks = threaded(graph.blocks, EFFECTS, lambda op: op.id in outside, barrier)
    return replace(graph, blocks=tuple(blocks))  # `fork_points` renumbers the values


def _barrier(op: Operation, now: ValueId) -> Operation:
    made = ValueId(f"{EFFECTS}.barrier.{op.id}")
    name = OpId(f"barrier.{op.id.removeprefix('run.')}")
    return Operation(name, OpKind.BARRIER, (now,), (made,), op.site)
