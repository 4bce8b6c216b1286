"""The pass `common`: marks reusable steps whose state and inputs may occur again.

Only marked steps get a lineage key. The key costs a digest of the state, a look-up, and waiting for an equal step
that is running. The attribute `shared` states where an equal step may have run: on another branch of the fork
("branches"), in an earlier round of the loop ("rounds"), elsewhere in the workflow ("places"), or only in another run
("runs").
"""

from __future__ import annotations

from collections import Counter

from ramify.compiler.estimates import Estimates
from ramify.compiler.ir.analysis import blocks_in_loops
from ramify.compiler.ir.graph import FAMILY, Graph, sort
from ramify.compiler.ir.rewrite import marked
from ramify.compiler.plan import OpId
from ramify.compiler.spec import Spec

SHARED = "shared"


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
