"""What is refused before any pass: workflows that are written in a way that cannot mean what it says.

Each finding names the place in the user's code and the mend. Rules of the graph itself are the verifier's.

Of a LangGraph graph nothing is refused here. Its edges do not say all that may happen: a caller can enter at any node
by `Command(goto=...)`, and a cycle ends by an interrupt, an exception or the recursion limit. A node that seems to be
forgotten is logged as a warning.
"""

from __future__ import annotations

import logging

from ramify.compiler.errors import WorkflowError
from ramify.compiler.ir.graph import Graph
from ramify.compiler.ir.ways import reached
from ramify.compiler.spec import Machine, Spec

log = logging.getLogger("ramify.compiler")


def check(spec: Spec, graph: Graph) -> None:
    """Raises WorkflowError."""
    if isinstance(spec.body, Machine):
        _warn_of_unreached(spec, spec.body)
    else:
        _ends(graph)


def _warn_of_unreached(spec: Spec, machine: Machine) -> None:
    """Where the code of no node can be seen to lead elsewhere than its edges do."""
    if machine.unseen is not None or any(node.open for node in machine.nodes):
        return
    places = {step.name: step.where or f"{spec.name}, node {step.name}" for step in spec.steps}
    onward = {node.run.step: node.targets for node in machine.nodes}
    met = reached(machine.entry, onward)
    for node in onward:
        if node not in met:
            log.warning(
                "%s: no edge leads to node %s: only a caller's Command(goto=%r) can reach it",
                places[node],
                node,
                node,
            )


def _ends(graph: Graph) -> None:
    """Some way leads out of every loop; an exception that a step may raise is not one that the code shows."""
    back: dict[str, list[str]] = {}
    for block in graph.blocks:
        for to, _ in block.exits:
            back.setdefault(to, []).append(block.id)
    ending = reached([block.id for block in graph.blocks if not block.exits], back)
    stuck = [block for block in graph.blocks if block.id not in ending]
    if stuck:
        sites = [op.place for block in stuck for op in block.ops if op.site is not None]
        raise WorkflowError(
            "this is in, or leads to, a cycle with no exit: the worlds that it holds would never end",
            where=sites[0] if sites else graph.name,
            mend="leave the loop by `break`, `return` or `raise`",
        )
