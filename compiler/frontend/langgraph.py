"""Front end for LangGraph: reads the builder, which need not have been compiled.

Exact: nodes, edges, waiting edges, branches with a path map or a `Literal` return type, Commands with one. Not known
ahead: where a branch without a path map goes (a graph break; every node is possible), a `goto` without annotation,
how many Sends there are. Several tasks in one superstep are the plan's one FORK and MERGE, whichever they are.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ramify.compiler.errors import SourceError, WorkflowError
from ramify.compiler.frontend.digest import dependencies, digest
from ramify.compiler.frontend.resolve import plain_function, step_info
from ramify.compiler.frontend.sources import Sources
from ramify.compiler.spec import END, Machine, Node, Run, Spec, StepSpec, Unseen

if TYPE_CHECKING:
    from langgraph.graph import StateGraph

_WORLDS = ("Sandbox", "SyncSandbox")  # annotations of the parameter that takes a node's world


def read_graph(graph: object, *, name: str, ref: str, deadline_s: float | None = None) -> Spec:
    """Raises WorkflowError for what is no graph, or one that LangGraph itself would refuse."""
    builder = _builder(graph, name)
    sources = Sources()
    steps = tuple(_step(node, _action(spec.runnable), sources) for node, spec in builder.nodes.items())
    machine = _machine(builder, name)
    shape = [machine.entry, *((node.run.step, node.targets, node.run.waits_for) for node in machine.nodes)]
    text = json.dumps([shape, [step.code_digest for step in steps]])
    code_digest = hashlib.sha256(text.encode()).hexdigest()
    return Spec(ref, name, "langgraph", code_digest, steps, machine, deadline_s)


def _builder(graph: object, name: str) -> StateGraph[Any, Any, Any, Any]:
    from langgraph.graph import StateGraph
    from langgraph.graph.state import CompiledStateGraph

    builder = graph.builder if isinstance(graph, CompiledStateGraph) else graph
    if not isinstance(builder, StateGraph):
        mend = "give a StateGraph, or what its compile() returned"
        raise WorkflowError(f"{type(graph).__name__} is no LangGraph graph", where=name, mend=mend)
    return builder


def _action(runnable: object) -> object:
    """What the user gave to `add_node`, as far as LangGraph keeps it."""
    action = getattr(runnable, "func", None) or getattr(runnable, "afunc", None) or runnable
    return action if plain_function(action) is not None else inspect.getattr_static(type(action), "__call__", None)


def _step(name: str, action: object, sources: Sources) -> StepSpec:
    info, function = step_info(action), plain_function(action)
    takes_sandbox = info.takes_sandbox if info is not None else function is not None and _takes_sandbox(function)
    try:
        code_digest = "" if function is None else digest(dependencies(sources.function(function), sources))
    except SourceError:  # made in a shell, or by exec: "" says that the code cannot be told apart
        code_digest = ""
    declared, reuse = (None, False) if info is None else (info.effect, info.reuse)
    return StepSpec(name, declared, takes_sandbox, reuse, code_digest)


def _takes_sandbox(function: Callable[..., Any]) -> bool:
    hints = (hint for name, hint in getattr(function, "__annotations__", {}).items() if name != "return")
    names = (hint if isinstance(hint, str) else getattr(hint, "__name__", "") for hint in hints)
    return any(part.strip().rpartition(".")[2] in _WORLDS for name in names for part in name.split("|"))


def _machine(builder: StateGraph[Any, Any, Any, Any], name: str) -> Machine:
    from langgraph.graph import START
    from langgraph.pregel import Pregel

    nodes = []
    for node, spec in builder.nodes.items():
        targets, unseen = _targets(builder, node, name)
        waits_for = {start for starts, end in builder.waiting_edges if end == node for start in starts}
        run = Run(node, None, subgraph=isinstance(spec.runnable, Pregel), waits_for=tuple(sorted(waits_for)))
        nodes.append(Node(run, targets or (END,), unseen))
    entry, _ = _targets(builder, START, name)
    if not entry:
        raise WorkflowError("nothing follows START", where=name, mend="add an edge from START to the first node")
    return Machine(entry, tuple(nodes))


def _targets(builder: StateGraph[Any, Any, Any, Any], node: str, name: str) -> tuple[tuple[str, ...], Unseen | None]:
    """The nodes that may follow, in the order in which the graph has them, then the end."""
    from langgraph.graph import END as GRAPH_END

    found = {end for start, end in builder.edges if start == node}
    found |= {end for starts, end in builder.waiting_edges if node in starts}
    spec, unseen = builder.nodes.get(node), None
    found |= set(spec.ends or ()) if spec is not None else set()
    found |= {spec.error_handler_node} if spec is not None and spec.error_handler_node else set()
    for branch_name, branch in builder.branches.get(node, {}).items():
        if branch.ends is None:
            unseen = Unseen(f"branch {branch_name} has no path map, so any node may follow", f"node {node}")
        found |= {GRAPH_END, *builder.nodes} if branch.ends is None else set(branch.ends.values())
    _refuse_unknown(found - {GRAPH_END, *builder.nodes}, node, name)
    ends = (END,) if GRAPH_END in found else ()
    return (*(each for each in builder.nodes if each in found), *ends), unseen


def _refuse_unknown(unknown: Iterable[str], node: str, name: str) -> None:
    for target in sorted(unknown):
        what = f"{target!r} may follow {node}, and there is no such node"
        raise WorkflowError(what, where=name, mend="add the node, or take it out of the edge or the path map")
