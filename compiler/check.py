"""What is refused before any pass: workflows that are written in a way that cannot mean what it says.

Each finding names the place in the user's code and the mend. Rules of the graph itself are the verifier's.
"""

from __future__ import annotations

from ramify.compiler.errors import WorkflowError
from ramify.compiler.ir.graph import Graph
from ramify.compiler.ir.ways import reached
from ramify.compiler.spec import END, Machine, Spec


def check(spec: Spec, graph: Graph) -> None:
    """Raises WorkflowError."""
    if isinstance(spec.body, Machine):
        _machine(spec, spec.body)
    else:
        _ends(graph)


def _machine(spec: Spec, machine: Machine) -> None:
    """Every node is reached and leads to the end, as far as the edges say all."""
    if machine.unseen is not None or any(node.open for node in machine.nodes):
        return
    places = {step.name: step.where or f"{spec.name}, node {step.name}" for step in spec.steps}
    onward = {node.run.step: node.targets for node in machine.nodes}
    met = reached(machine.entry, onward)
    for node in onward:
        if node not in met:
            raise WorkflowError(
                f"nothing leads to node {node}",
                where=places[node],
                mend="add an edge to it, annotate what sends to it with `Command[Literal[...]]`, or take it out",
            )
    back: dict[str, list[str]] = {}
    for node, targets in onward.items():
        for target in targets:
            back.setdefault(target, []).append(node)
    ending = reached([END], back)
    for node in onward:
        if node not in ending:
            raise WorkflowError(
                f"node {node} is in a cycle with no exit: no way from it leads to END",
                where=places[node],
                mend="add an edge, or an arm of a branch, that leaves the cycle",
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
