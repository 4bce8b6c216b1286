"""What each step may do: declared; else by its signature; else unknown. A pure step lets go of its world; one that
may reach outside takes its place in the chain of effects, an irreversible one behind a BARRIER."""

from __future__ import annotations

from dataclasses import replace

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.graph import EFFECTS, Block, Graph, Operation
from ramify.compiler.ir.rewrite import swap_values, threaded, with_values
from ramify.compiler.plan import Effect, OpId, OpKind, StepPlan, ValueId
from ramify.compiler.spec import Spec, StepSpec

OUTSIDE = frozenset({Effect.IRREVERSIBLE, Effect.UNKNOWN})


def effects(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    steps = tuple(_plan(step) for step in spec.steps)
    pure = {step.name for step in steps if step.effect is Effect.PURE}
    graph = replace(graph, steps=steps, blocks=tuple(_let_go(block, pure) for block in graph.blocks))
    return _chained(graph)


def _plan(step: StepSpec) -> StepPlan:
    if step.declared is not None:
        effect, why = step.declared, _by_tools(step) if step.tools else "declared"
    elif step.takes_sandbox:
        effect, why = Effect.REVERTIBLE, "takes a Sandbox"
    else:
        effect, why = Effect.UNKNOWN, "not declared, takes no Sandbox"
    return StepPlan(step.name, effect, step.reuse, step.code_digest, why, step.in_fork)


def _by_tools(step: StepSpec) -> str:
    return "; ".join(f"tool {tool.name}: {tool.why}" for tool in step.tools)


def _let_go(block: Block, pure: set[str]) -> Block:
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


def reaches_out(graph: Graph, op: Operation) -> bool:
    if op.kind is OpKind.BREAK:
        return True
    step = graph.by_step.get(op.step or "") if op.runs else None
    return step is not None and step.effect in OUTSIDE


def _chained(graph: Graph) -> Graph:
    outward = {op.id for op in graph.ops() if reaches_out(graph, op)}
    if not outward:
        return graph
    fenced = {s.name for s in graph.steps if s.effect is Effect.IRREVERSIBLE}

    def barrier(op: Operation, now: ValueId) -> Operation | None:
        return _barrier(op, now) if op.runs and op.step in fenced else None

    blocks = threaded(graph.blocks, EFFECTS, lambda op: op.id in outward, barrier)
    return replace(graph, blocks=tuple(blocks))  # `fork_points` counts its values


def _barrier(op: Operation, now: ValueId) -> Operation:
    made = ValueId(f"{EFFECTS}.barrier.{op.id}")
    name = OpId(f"barrier.{op.id.removeprefix('run.')}")
    return Operation(name, OpKind.BARRIER, (now,), (made,), op.site)
