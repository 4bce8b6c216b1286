"""From a workflow to its plan: front end, lowering, passes, emission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramify.compiler.emit import emit
from ramify.compiler.ir.graph import Graph
from ramify.compiler.ir.lower import lower
from ramify.compiler.ir.text import dot, print_graph
from ramify.compiler.passes import run_passes
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


def compile_workflow(
    function: Callable[..., Any], *, ref: str, deadline_s: float | None = None, name: str | None = None
) -> Compilation:
    """A function under `@workflow`. `ref` is how `ramify run` finds it again; name and deadline default to what the
    decorator says. Raises CompileError."""
    from ramify.compiler.frontend.decorators import read_workflow

    return _compile(read_workflow(function, ref=ref, deadline_s=deadline_s, name=name))


def compile_graph(graph: object, *, name: str, ref: str, deadline_s: float | None = None) -> Compilation:
    """A LangGraph `StateGraph`, compiled or not. Raises CompileError."""
    from ramify.compiler.frontend.langgraph import read_graph

    return _compile(read_graph(graph, name=name, ref=ref, deadline_s=deadline_s))


def _compile(spec: Spec) -> Compilation:
    ssg = run_passes(lower(spec), spec)
    return Compilation(spec, ssg, emit(ssg, spec))
