"""The passes: each rewrites a System State Graph. `PIPELINE` is the list, in order.

The verifier runs before the first pass and after each one. A pass that is not `needed` can be turned off. The
operations that it places are then neither in the plan nor in the journal of a run, and the attributes that it sets
are absent.

To add a pass, write a function of `(graph, spec, estimates)` that returns a graph, and add a line to `PIPELINE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ramify.compiler.errors import WorkflowError
from ramify.compiler.estimates import UNMEASURED, Estimates
from ramify.compiler.ir.graph import Graph
from ramify.compiler.ir.verify import verify, verify_since
from ramify.compiler.passes.conflicts import conflicts
from ramify.compiler.passes.lookahead import lookahead
from ramify.compiler.passes.snapshots import fork_points, liveness, placement
from ramify.compiler.passes.stages import stages
from ramify.compiler.passes.steps import common, effects, parallel
from ramify.compiler.spec import Spec


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewrite of the graph.

    Attributes:
        name: The name in `ramify compile --without NAME` and in `Plan.passes`.
        rewrite: Returns the graph after the pass; the same object if nothing changes.
        needed: The pass cannot be turned off.
    """

    name: str
    rewrite: Callable[[Graph, Spec, Estimates], Graph]
    needed: bool = False


PIPELINE = (
    # The effect of each step, and the chain of effects on the outside, with barriers.
    Pass("effects", effects, needed=True),
    # The paths that both sides of a merge write.
    Pass("conflicts", conflicts, needed=True),
    # Places snapshots (SEAL): after each step that may change its world, and as the base of each fork. It finds no
    # forks: the front ends make the FORK operations.
    Pass("fork_points", fork_points, needed=True),
    # No snapshot where running the step again is cheaper.
    Pass("placement", placement),
    # Steps that only read run at the same time, each in a world of its own.
    Pass("parallel", parallel),
    # Steps whose state and inputs may occur again, in a branch or in a loop, look for an earlier result.
    Pass("common", common),
    # Worlds are forked while the model thinks, and its first prompt is sent while steps run.
    Pass("lookahead", lookahead),
    # The operations after which each snapshot is no longer needed.
    Pass("liveness", liveness),
    # The stages of model calls, and when each is due.
    Pass("stages", stages),
)
OPTIONAL = tuple(each.name for each in PIPELINE if not each.needed)


def chosen(names: Iterable[str] | None) -> tuple[Pass, ...]:
    """Return the needed passes and those with these names; None: all.

    Raises:
        WorkflowError: There is no pass of that name.
    """
    if names is None:
        return PIPELINE
    wanted = set(names)
    known = {each.name for each in PIPELINE}
    for name in sorted(wanted - known):
        raise WorkflowError("there is no such pass", where=name, mend=f"choose from {', '.join(OPTIONAL)}")
    return tuple(each for each in PIPELINE if each.needed or each.name in wanted)


def run_passes(
    graph: Graph, spec: Spec, pipeline: tuple[Pass, ...] = PIPELINE, estimates: Estimates = UNMEASURED
) -> Graph:
    """Return the graph after all passes of a pipeline.

    Raises:
        VerifyError: The graph, or what a pass makes of it, breaks a rule.
        WorkflowError: A pass refuses the workflow.
    """
    done: frozenset[str] = frozenset()
    verify(graph)
    for each in pipeline:
        made = each.rewrite(graph, spec, estimates)
        done |= {each.name}
        if made is graph:
            verify_since(graph, each.name)
        else:
            graph = made
            verify(graph, done)
    return graph
