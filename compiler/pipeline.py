"""From a workflow to its plan: front end, lowering, passes, emission."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ramify.compiler.check import check
from ramify.compiler.emit import emit
from ramify.compiler.estimates import UNMEASURED, Estimates
from ramify.compiler.ir.draw import dot, mermaid
from ramify.compiler.ir.graph import Graph
from ramify.compiler.ir.lower import lower
from ramify.compiler.ir.text import print_graph
from ramify.compiler.passes import chosen, run_passes
from ramify.compiler.plan import Plan
from ramify.compiler.spec import Spec, spec_text


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
    from ramify.compiler.frontend.decorators import read_workflow

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
    from ramify.compiler.frontend.langgraph import read_graph
    from ramify.compiler.frontend.nodes import with_state
    from ramify.compiler.frontend.routing import with_routes
    from ramify.compiler.frontend.sources import Sources

    sources = Sources(version=5)  # rows of nodes are met by digests of that form
    spec = with_routes(read_graph(graph, name=name, ref=ref, deadline_s=deadline_s, sources=sources), graph)
    spec = with_state(spec, graph, estimates.begins_without, sources)
    return compile_spec(spec, passes=passes, estimates=estimates)


def compile_spec(
    spec: Spec, *, passes: Iterable[str] | None = None, estimates: Estimates = UNMEASURED
) -> Compilation:
    """What a front end read."""
    pipeline = chosen(passes)
    estimates = estimates.of_code(spec.code_digest, {step.name: step.code_digest for step in spec.steps})
    ssg = lower(spec)
    check(spec, ssg)
    ssg = run_passes(ssg, spec, pipeline, estimates)
    ran = tuple(each.name for each in pipeline)
    return Compilation(spec, ssg, emit(ssg, spec, estimates, ran))
