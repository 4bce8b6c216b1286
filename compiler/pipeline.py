"""From a workflow to its plan: front end, lowering, passes, emission."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ramify.compiler.emit import emit
from ramify.compiler.errors import WorkflowError
from ramify.compiler.estimates import UNMEASURED, Estimates
from ramify.compiler.ir.analysis import reached
from ramify.compiler.ir.graph import Graph
from ramify.compiler.ir.lower import lower
from ramify.compiler.ir.text import dot, mermaid, print_graph
from ramify.compiler.passes import chosen, run_passes
from ramify.compiler.plan import Plan
from ramify.compiler.spec import Machine, Spec, spec_text

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


@dataclass(frozen=True, slots=True)
class Compilation:
    spec: Spec
    ssg: Graph
    plan: Plan

    def spec_text(self) -> str:
        return spec_text(self.spec)

    def ir_text(self) -> str:
        return print_graph(self.ssg)

    def dot(self) -> str:
        return dot(self.ssg)

    def mermaid(self) -> str:
        return mermaid(self.ssg)


def compile_workflow(
    function: Callable[..., Any],
    *,
    ref: str,
    deadline_s: float | None = None,
    name: str | None = None,
    passes: Iterable[str] | None = None,
    estimates: Estimates = UNMEASURED,
) -> Compilation:
    """A function under `@workflow`. `ref` is how `ramify run` finds it again; name and deadline default to what the
    decorator says. `passes` names the optional passes to run, by default all; `estimates` is what recorded runs say.
    Raises CompileError."""
    from ramify.compiler.frontend.python.workflow_reader import read_workflow

    spec = read_workflow(function, ref=ref, deadline_s=deadline_s, name=name)
    return compile_spec(spec, passes=passes, estimates=estimates)


def compile_graph(
    graph: object,
    *,
    name: str,
    ref: str,
    deadline_s: float | None = None,
    passes: Iterable[str] | None = None,
    estimates: Estimates = UNMEASURED,
) -> Compilation:
    """A LangGraph `StateGraph`, compiled or not. Raises CompileError."""
    from ramify.compiler.frontend.langgraph.graph_reader import read_graph, with_routes
    from ramify.compiler.frontend.langgraph.nodes import with_state
    from ramify.compiler.frontend.python.sources import Sources

    sources = Sources(version=5)  # rows of nodes are met by digests of that form
    spec = with_routes(read_graph(graph, name=name, ref=ref, deadline_s=deadline_s, sources=sources), graph)
    spec = with_state(spec, graph, estimates.begins_without, sources)
    return compile_spec(spec, passes=passes, estimates=estimates)


def compile_spec(
    spec: Spec, *, passes: Iterable[str] | None = None, estimates: Estimates = UNMEASURED
) -> Compilation:
    """What a front end read."""
    pipeline = chosen(passes)
    estimates = estimates.valid_for_code(spec.code_digest, {step.name: step.code_digest for step in spec.steps})
    ssg = lower(spec)
    check(spec, ssg)
    ssg = run_passes(ssg, spec, pipeline, estimates)
    ran = tuple(each.name for each in pipeline)
    return Compilation(spec, ssg, emit(ssg, spec, estimates, ran))
