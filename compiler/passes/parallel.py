"""Steps that only read do not wait for each other, nor anything for them: each runs beside its branch, in a world of
its own on the snapshot where the branch stands when its turn comes, which is thrown away after it.

Those are the steps declared to, and those whose syntax writes to no file, where they may meet others: not awaited at
once, as in `gather`. A world of its own costs a step that runs alone more than it saves.
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
    reading = {step.name for step in graph.steps if step.effect is Effect.READONLY}
    inferred = {step.name for step in spec.steps if step.declared is None and step.files and step.files.writes == ()}
    found: dict[OpId, object] = {}
    for op in graph.ops():
        if op.runs and (op.step in reading or (op.step in inferred and _meets_others(op))):
            found[op.id] = True
    return marked(graph, BESIDE, found)


def _meets_others(op: Operation) -> bool:
    return bool(op.attrs.get("together")) and not op.attrs.get("every")
