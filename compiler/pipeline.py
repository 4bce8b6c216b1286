"""From a workflow to its plan: front end, lowering, passes, emission. Start at `compile_workflow` or `compile_graph`.

Before the passes, a workflow with an endless loop is refused. A LangGraph graph is not: its edges do not show all
that may happen. A caller can enter at any node by `Command(goto=...)`, and a cycle may end by an interrupt, an
exception or the recursion limit. A node that no edge leads to is logged as a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ramify.compiler.emit import emit
from ramify.compiler.errors import WorkflowError
from ramify.compiler.estimates import UNMEASURED, Estimates
from ramify.compiler.ir.analysis import reachable
from ramify.compiler.ir.graph import Graph, dot, mermaid, print_graph
from ramify.compiler.ir.lower import lower
from ramify.compiler.passes import chosen, run_passes
from ramify.compiler.plan import EQUAL, IF_SET, PICKED, PLAN_VERSION, UNORDERED, OpKind, Plan
from ramify.compiler.spec import Machine, Spec, spec_text

log = logging.getLogger("ramify.compiler")


@dataclass(frozen=True, slots=True)
class Compilation:
    """What the compiler made of a workflow, stage by stage."""

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
    version: int = PLAN_VERSION,
) -> Compilation:
    """Compile a function under `@workflow`.

    Args:
        function: The workflow.
        ref: How `ramify run` finds it: "path/to/file.py:name" or "module:name".
        deadline_s: The deadline in seconds; by default that of the decorator.
        name: The workflow's name; by default that of the decorator.
        passes: The optional passes to run, by name; by default all.
        estimates: What recorded runs show.
        version: Digest the code as plans of this format do.

    Raises:
        CompileError: The workflow cannot be compiled.
    """
    from ramify.compiler.frontend.python.workflow_reader import read_workflow

    spec = read_workflow(function, ref=ref, deadline_s=deadline_s, name=name, version=version)
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
    """Compile a LangGraph `StateGraph`, compiled by LangGraph or not. The arguments are as in `compile_workflow`.

    Raises:
        CompileError: The graph cannot be compiled.
    """
    from ramify.compiler.frontend.langgraph.graph_reader import read_graph

    begins_without = estimates.begins_without
    spec = read_graph(graph, name=name, ref=ref, deadline_s=deadline_s, begins_without=begins_without)
    return compile_spec(spec, passes=passes, estimates=estimates)


def compile_spec(
    spec: Spec, *, passes: Iterable[str] | None = None, estimates: Estimates = UNMEASURED
) -> Compilation:
    """Compile what a front end read. The arguments are as in `compile_workflow`.

    Raises:
        CompileError: The Spec cannot be compiled.
    """
    pipeline = chosen(passes)
    estimates = estimates.valid_for_code(spec.code_digest, {step.name: step.code_digest for step in spec.steps})
    ssg = lower(spec)
    if isinstance(spec.body, Machine):
        _warn_of_unreachable_nodes(spec, spec.body)
    else:
        _refuse_endless_loops(ssg)
    _warn_of_the_order_of_sets(ssg)
    ssg = run_passes(ssg, spec, pipeline, estimates)
    ran = tuple(each.name for each in pipeline)
    return Compilation(spec, ssg, emit(ssg, spec, estimates, ran))


def _warn_of_unreachable_nodes(spec: Spec, machine: Machine) -> None:
    """Log nodes that no edge leads to, unless the code of some node may lead elsewhere than its edges."""
    if machine.unseen is not None or any(node.open for node in machine.nodes):
        return
    places = {step.name: step.where or f"{spec.name}, node {step.name}" for step in spec.steps}
    targets = {node.run.step: node.targets for node in machine.nodes}
    reached = reachable(machine.entry, targets)
    for node in targets:
        if node not in reached:
            log.warning(
                "%s: no edge leads to node %s: only a caller's Command(goto=%r) can reach it",
                places[node],
                node,
                node,
            )


def _warn_of_the_order_of_sets(graph: Graph) -> None:
    for op in graph.ops():
        called = "the model" if op.kind is OpKind.CALL_LLM else f"step {op.step}"
        if op.attrs.get(UNORDERED) == EQUAL and IF_SET not in op.attrs:
            log.warning(
                "%s: %s is called in the order of a set, which is another in each process, and its arguments do "
                "not tell the calls apart: pass the element as an argument, or loop over sorted(...)",
                op.place,
                called,
            )
        elif op.attrs.get(UNORDERED) == PICKED:
            log.warning(
                "%s: an argument of %s depends on the order of a set, which is another in each process, so a resume "
                "may make another call: use sorted(...), min(...) or the like",
                op.place,
                called,
            )


def _refuse_endless_loops(graph: Graph) -> None:
    """Refuse blocks from which no path leads to the end. Exceptions that a step may raise are not in the graph."""
    predecessors: dict[str, list[str]] = {}
    for block in graph.blocks:
        for to, _ in block.exits:
            predecessors.setdefault(to, []).append(block.id)
    ending = reachable([block.id for block in graph.blocks if not block.exits], predecessors)
    stuck = [block for block in graph.blocks if block.id not in ending]
    if stuck:
        sites = [op.place for block in stuck for op in block.ops if op.site is not None]
        raise WorkflowError(
            "this is in, or leads to, a loop without an exit: the worlds in it would never end",
            where=sites[0] if sites else graph.name,
            mend="leave the loop by `break`, `return` or `raise`",
        )
