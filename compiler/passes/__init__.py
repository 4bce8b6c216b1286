"""The passes, in order. Each rewrites a System State Graph; the verifier runs before the first and after each.

Those that are not `needed` can be turned off: the operations that they place are then neither in the plan nor in the
journal of a run, and the marks that they leave on others are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ramify.compiler.errors import WorkflowError
from ramify.compiler.estimates import UNMEASURED, Estimates
from ramify.compiler.ir.graph import Graph
from ramify.compiler.ir.verify import verify, verify_since
from ramify.compiler.passes.common import common
from ramify.compiler.passes.conflicts import conflicts
from ramify.compiler.passes.effects import effects
from ramify.compiler.passes.lookahead import lookahead
from ramify.compiler.passes.parallel import parallel
from ramify.compiler.passes.snapshots import fork_points, liveness, placement
from ramify.compiler.spec import Spec


@dataclass(frozen=True, slots=True)
class Pass:
    name: str
    rewrite: Callable[[Graph, Spec, Estimates], Graph]
    needed: bool = False


PIPELINE = (
    Pass("effects", effects, needed=True),  # what each step may do, why that is known, and the chain of effects
    Pass("conflicts", conflicts, needed=True),  # what the sides of a merge write
    Pass("fork_points", fork_points, needed=True),  # where a snapshot is taken, and what each fork stands on
    Pass("placement", placement),  # no snapshot where none is needed
    Pass("parallel", parallel),  # steps that only read run beside each other, each in a world of its own
    Pass("common", common),  # steps whose equal state and inputs may recur, across branches or in a loop
    Pass("lookahead", lookahead),  # worlds are forked while the model thinks, its first prompt read while steps run
    Pass("liveness", liveness),  # where each snapshot dies
    Pass(
        "stages", lambda graph, spec, estimates: graph
    ),  # the stages of model calls, and when each is due: in `emit`
)
OPTIONAL = tuple(each.name for each in PIPELINE if not each.needed)


def chosen(names: Iterable[str] | None) -> tuple[Pass, ...]:
    """The needed passes and those of that name; None: all. Raises WorkflowError for a name that is no pass."""
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
    """Raises VerifyError if the graph, or what a pass makes of it, breaks a rule."""
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
