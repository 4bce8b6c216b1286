"""The passes over steps: what each may do, which run at the same time, and whose results may occur again.

`effects` states what each step may do, and makes the chain of effects on the outside. An effect is declared, or
follows from the signature, or is unknown. A pure step takes no world. A step that may act on the outside takes the
chain of effects, so such steps stay in order. An irreversible step stands behind a BARRIER.

`parallel` marks steps that only read, so that they run at the same time as other steps. Such a step runs in a world
of its own, on the snapshot of its branch at that time. The world is dropped afterwards. It marks steps declared
read-only, and steps whose syntax writes no file, if these may meet others: not awaited at once, as in `gather`. For a
step that runs alone, a world of its own costs more than it saves.

`common` marks reusable steps whose state and inputs may occur again. Only marked steps get a lineage key. The key
costs a digest of the state, a look-up, and waiting for an equal step that is running. The attribute `shared` states
where an equal step may have run: on another branch of the fork ("branches"), in an earlier round of the loop
("rounds"), elsewhere in the workflow ("places"), or only in another run ("runs").
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.analysis import blocks_in_loops
from ramify.compiler.ir.graph import EFFECTS, FAMILY, Block, Graph, Operation, sort
from ramify.compiler.ir.rewrite import marked, swap_values, threaded, with_values
from ramify.compiler.plan import Effect, OpId, OpKind, StepPlan, ValueId
from ramify.compiler.spec import Spec, StepSpec

OUTSIDE = frozenset({Effect.IRREVERSIBLE, Effect.UNKNOWN})

BESIDE = "beside"
"""The attribute that `parallel` sets."""

SHARED = "shared"
"""The attribute that `common` sets."""


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
    return StepPlan(step.name, effect, step.reuse, step.code_digest, why, step.in_fork, step.parameters)


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


def parallel(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    if graph.frontend != "decorators":
        return graph  # LangGraph decides what runs in one superstep
    declared = {step.name for step in graph.steps if step.effect is Effect.READONLY}
    inferred = {step.name for step in spec.steps if step.declared is None and step.files and step.files.writes == ()}
    found: dict[OpId, object] = {}
    for op in graph.ops():
        if op.runs and (op.step in declared or (op.step in inferred and _may_meet_others(op))):
            found[op.id] = True
    return marked(graph, BESIDE, found)


def _may_meet_others(op: Operation) -> bool:
    return bool(op.attrs.get("together")) and not op.attrs.get("every")


def common(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    reused = {step.name for step in graph.steps if step.reuse}
    runs = [(block.id, op) for block in graph.blocks for op in block.ops if op.runs and op.step in reused]
    if not runs:
        return graph
    places = Counter(op.step for _, op in runs)
    loops = blocks_in_loops(graph)
    found: dict[OpId, object] = {}
    for block, op in runs:
        if op.worlds and sort(op.worlds[0]) == FAMILY:
            found[op.id] = "branches"
        elif block in loops:
            found[op.id] = "rounds"
        else:
            found[op.id] = "places" if places[op.step] > 1 else "runs"
    return marked(graph, SHARED, found)
