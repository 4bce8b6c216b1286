"""The pass `parallel`: marks steps that only read, so that they run at the same time as other steps.

Such a step runs in a world of its own, on the snapshot of its branch at that time. The world is dropped afterwards.

Marked are steps declared read-only, and steps whose syntax writes no file, if these may meet others: not awaited at
once, as in `gather`. For a step that runs alone, a world of its own costs more than it saves.
"""

from __future__ import annotations

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.graph import Graph, Operation
from ramify.compiler.ir.rewrite import marked
from ramify.compiler.plan import Effect, OpId
from ramify.compiler.spec import Spec

BESIDE = "beside"


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
