"""The passes, in order. Each rewrites a System State Graph; the verifier runs before the first and after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ramify.compiler.ir.graph import Graph
from ramify.compiler.ir.verify import verify
from ramify.compiler.passes.effects import effects
from ramify.compiler.passes.fork_points import fork_points
from ramify.compiler.spec import Spec


@dataclass(frozen=True, slots=True)
class Pass:
    name: str
    rewrite: Callable[[Graph, Spec], Graph]


PIPELINE = (
    Pass("effects", effects),  # what each step may do, and why that is known
    Pass("fork_points", fork_points),  # where a snapshot is taken, and what each fork stands on
)


def run_passes(graph: Graph, spec: Spec, pipeline: tuple[Pass, ...] = PIPELINE) -> Graph:
    """Raises VerifyError if the graph, or what a pass makes of it, breaks a rule."""
    done: frozenset[str] = frozenset()
    verify(graph)
    for each in pipeline:
        graph, done = each.rewrite(graph, spec), done | {each.name}
        verify(graph, done)
    return graph
