"""What each step may do: declared; else by its signature; else unknown. A pure step lets go of its world."""

from __future__ import annotations

from dataclasses import replace

from ramify.compiler.ir.graph import Block, Graph
from ramify.compiler.ir.tidy import swap_values
from ramify.compiler.plan import Effect, OpKind, StepPlan, ValueId
from ramify.compiler.spec import Spec, StepSpec


def effects(graph: Graph, spec: Spec) -> Graph:
    steps = tuple(_plan(step) for step in spec.steps)
    pure = {step.name for step in steps if step.effect is Effect.PURE}
    return replace(graph, steps=steps, blocks=tuple(_let_go(block, pure) for block in graph.blocks))


def _plan(step: StepSpec) -> StepPlan:
    if step.declared is not None:
        effect, why = step.declared, "declared"
    elif step.takes_sandbox:
        effect, why = Effect.REVERTIBLE, "takes a Sandbox"
    else:
        effect, why = Effect.UNKNOWN, "not declared, takes no Sandbox"
    return StepPlan(step.name, effect, step.reuse, step.code_digest, why)


def _let_go(block: Block, pure: set[str]) -> Block:
    ops, before = [], dict[ValueId, ValueId]()
    for op in block.ops:
        op = replace(op, inputs=swap_values(op.inputs, before))
        if op.kind is OpKind.RUN and op.step in pure:
            before.update(zip(op.outputs, op.inputs, strict=True))
            op = replace(op, inputs=(), outputs=())
        ops.append(op)
    exits = tuple((to, swap_values(worlds, before)) for to, worlds in block.exits)
    return replace(block, ops=tuple(ops), exits=exits)
