"""Steps that only read do not wait for each other, nor anything for them: each runs beside its branch, in a world of
its own on the snapshot where the branch stands when its turn comes, which is thrown away after it."""

from __future__ import annotations

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.graph import Graph
from ramify.compiler.passes.marks import marked
from ramify.compiler.plan import Effect
from ramify.compiler.spec import Spec

BESIDE = "beside"


def parallel(graph: Graph, spec: Spec, estimates: Estimates) -> Graph:
    if graph.frontend != "decorators":
        return graph  # LangGraph decides what runs in one superstep
    reading = {step.name for step in graph.steps if step.effect is Effect.READONLY}
    runs = (op for op in graph.ops() if op.runs and op.step in reading)
    return marked(graph, BESIDE, {op.id: True for op in runs})
