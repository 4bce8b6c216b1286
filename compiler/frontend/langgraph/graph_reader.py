"""Front end for LangGraph: reads a graph's builder, compiled or not, into a Spec. Start at `read_graph`.

Exact are nodes, edges, waiting edges, branches with a path map or a `Literal` return type, and Commands with one. Not
known ahead are the target of a branch without a path map (a graph break: any node may follow), a `goto` without an
annotation, and the number of Sends. Several tasks in one superstep are the plan's one FORK and MERGE, whichever tasks
they are.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from ramify.compiler.errors import SourceError, WorkflowError
from ramify.compiler.frontend.langgraph.graph_checks import check_nodes, check_schemas, parallel_successors
from ramify.compiler.frontend.langgraph.nodes import action_of, node_codes, with_code
from ramify.compiler.frontend.python.code_parts import CodeIndex
from ramify.compiler.frontend.python.name_resolution import plain_function, step_info, takes_world
from ramify.compiler.frontend.python.part_digests import digest_of
from ramify.compiler.frontend.python.sources import Sources, closure_values
from ramify.compiler.spec import END, Machine, MachineNode, Spec, StepCall, StepSpec, Unseen

if TYPE_CHECKING:
    from langgraph.graph import StateGraph

    Builder: TypeAlias = StateGraph[Any, Any, Any, Any]

DIGESTS_OF_FORMAT = 5  # results of nodes are stored under digests of this format, so it stays


def read_graph(
    graph: object,
    *,
    name: str,
    ref: str,
    deadline_s: float | None = None,
    begins_without: Callable[[str], bool] = lambda path: True,
) -> Spec:
    """Read a LangGraph graph.

    Args:
        graph: A `StateGraph`, compiled or not, or a function under `@entrypoint`.
        name: The name of the workflow.
        ref: How `ramify run` finds it: "path/to/file.py:name" or "module:name".
        deadline_s: The deadline in seconds.
        begins_without: Whether runs begin without a file at a path of their workspace.

    Raises:
        WorkflowError: This is no graph, LangGraph itself would refuse it, or its nodes or schemas cannot work.
    """
    sources = Sources(version=DIGESTS_OF_FORMAT)
    if (function := _entrypoint(graph)) is not None:
        return _read_entrypoint(function, sources, name, ref, deadline_s)
    builder = _builder(graph, name)
    steps = tuple(_step(node, spec.runnable, sources) for node, spec in builder.nodes.items())
    machine = _machine(builder, name)
    shape = [machine.entry, *((node.run.step, node.targets, node.run.waits_for) for node in machine.nodes)]
    text = json.dumps([shape, [step.code_digest for step in steps], [*_digests_between_nodes(builder, sources)]])
    code_digest = hashlib.sha256(text.encode()).hexdigest()
    machine = _with_routes(machine, builder)
    codes = node_codes(builder, sources)
    check_schemas(name, builder, stored=bool(getattr(graph, "checkpointer", None)))
    check_nodes(builder, codes, sources, begins_without)
    steps = tuple(with_code(step, builder, codes[step.name], sources) for step in steps)
    if any(step.tools for step in steps):
        text = ",".join([code_digest, *(step.code_digest for step in steps if step.tools)])
        code_digest = hashlib.sha256(text.encode()).hexdigest()
    machine = replace(machine, together=tuple(tuple(ends) for ends in parallel_successors(builder).values()))
    code = sources.analysis(CodeIndex).for_plan()
    return Spec(ref, name, "langgraph", code_digest, steps, machine, deadline_s, code)


# Entrypoints


def _entrypoint(graph: object) -> tuple[str, object] | None:
    """Return the only node of a function under `@entrypoint`, with its name; None for another graph."""
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.pregel import Pregel

    if not isinstance(graph, Pregel) or isinstance(graph, CompiledStateGraph) or len(graph.nodes) != 1:
        return None
    ((node, spec),) = graph.nodes.items()
    return node, spec.bound


def _read_entrypoint(
    found: tuple[str, object], sources: Sources, name: str, ref: str, deadline_s: float | None
) -> Spec:
    node, bound = found
    step = _step(node, bound, sources)
    unseen = Unseen("which tasks an entrypoint calls is known when it runs", f"entrypoint {node}")
    machine = Machine((node,), (MachineNode(StepCall(node, None), (END,), unseen),))
    code = sources.analysis(CodeIndex).for_plan()
    return Spec(ref, name, "langgraph", step.code_digest, (step,), machine, deadline_s, code)


# Nodes


def _builder(graph: object, name: str) -> Builder:
    from langgraph.graph import StateGraph
    from langgraph.graph.state import CompiledStateGraph

    builder = graph.builder if isinstance(graph, CompiledStateGraph) else graph
    if not isinstance(builder, StateGraph):
        mend = "give a StateGraph, what its compile() returned, or a function under @workflow"
        if inspect.isfunction(graph):
            mend += "; annotate a function that makes a graph with `-> StateGraph`"
        raise WorkflowError(f"{type(graph).__name__} is no LangGraph graph", where=name, mend=mend)
    return builder


def _step(name: str, runnable: object, sources: Sources) -> StepSpec:
    action = action_of(runnable)
    if plain_function(action) is None:
        action = inspect.getattr_static(type(action), "__call__", None)
    info, function = step_info(action), plain_function(action)
    has_world = info.takes_sandbox if info is not None else function is not None and takes_world(function)
    declared, reuse = (None, False) if info is None else (info.effect, info.reuse)
    return StepSpec(name, declared, has_world, reuse, _digest(functions_of(runnable), sources, [name]))


def _digests_between_nodes(builder: Builder, sources: Sources) -> Iterator[str]:
    """Yield the digests of the project's code that runs between nodes.

    A branch may affect the nodes that it leads to, and a reducer may affect every node.
    """
    for start, branches in sorted(builder.branches.items()):
        for name, branch in sorted(branches.items()):
            ends = builder.nodes if branch.ends is None else branch.ends.values()
            steps = [end for end in ends if end in builder.nodes]
            yield f"{start} {name} {_digest(filter(_is_user_code, functions_of(branch.path)), sources, steps)}"
    for channel, value in sorted(builder.channels.items()):
        reducer = plain_function(getattr(value, "operator", None))
        if reducer is not None and _is_user_code(reducer):
            yield f"{channel} {_digest([reducer], sources, builder.nodes)}"


def _digest(functions: Iterable[Callable[..., Any]], sources: Sources, steps: Iterable[str]) -> str:
    """Return the digest of the functions with available source; "" if there is none."""
    found = []
    for function in dict.fromkeys(functions):
        with suppress(SourceError):  # made in a shell, or by exec
            found.append(sources.function(function))
    return digest_of(found, sources, list(steps)) if found else ""


def functions_of(runnable: object) -> Iterator[Callable[..., Any]]:
    """Yield the Python functions that a node or a branch is made of.

    For a sequence these are the functions of its steps; for a graph, those of its nodes, branches and reducers; for a
    partial, those that it holds.
    """
    builder, steps, nodes, bound = (getattr(runnable, name, None) for name in ("builder", "steps", "nodes", "bound"))
    if builder is not None and hasattr(builder, "branches"):
        yield from functions_of(builder)
        for branches in builder.branches.values():
            for branch in branches.values():
                yield from filter(_is_user_code, functions_of(branch.path))
        reducers = (plain_function(getattr(value, "operator", None)) for value in builder.channels.values())
        yield from (reducer for reducer in reducers if reducer is not None and _is_user_code(reducer))
    elif isinstance(nodes, dict):
        for node in nodes.values():
            yield from functions_of(getattr(node, "runnable", node))
    elif isinstance(steps, list):
        for step in steps:
            yield from functions_of(step)
    elif bound is not None:
        yield from functions_of(bound)
    else:
        given = [each for name in ("func", "afunc") if (each := getattr(runnable, name, None)) is not None]
        for action in given or [runnable]:
            yield from _functions_in(action)
        if not given:  # a Runnable class of the user
            methods = (plain_function(getattr(type(runnable), name, None)) for name in ("invoke", "ainvoke"))
            yield from (method for method in methods if method is not None and _is_user_code(method))


def _functions_in(action: object) -> Iterator[Callable[..., Any]]:
    if (function := plain_function(action)) is not None:
        yield function
    elif isinstance(action, partial):
        for part in (action.func, *action.args, *action.keywords.values()):
            yield from filter(_is_user_code, _functions_in(part))
    elif (called := plain_function(inspect.getattr_static(type(action), "__call__", None))) is not None:
        yield called


def _is_user_code(function: Callable[..., Any]) -> bool:
    return "site-packages" not in PurePath(function.__code__.co_filename).parts


# Edges


def _machine(builder: Builder, name: str) -> Machine:
    from langgraph.graph import START
    from langgraph.pregel import Pregel

    following = _following(builder)
    waits: dict[str, set[str]] = {}
    for starts, end in builder.waiting_edges:
        waits.setdefault(end, set()).update(starts)
    nodes = []
    for node, spec in builder.nodes.items():
        targets = _targets(builder, node, following.get(node, set()), name)
        waits_for = tuple(sorted(waits.get(node, ())))
        run = StepCall(node, None, subgraph=isinstance(spec.runnable, Pregel), waits_for=waits_for)
        nodes.append(MachineNode(run, targets or (END,), _unseen(builder, node)))
    entry = _targets(builder, START, following.get(START, set()), name)
    if not entry:
        raise WorkflowError("nothing follows START", where=name, mend="add an edge from START to the first node")
    return Machine(entry, tuple(nodes), _unseen(builder, START))


def _following(builder: Builder) -> dict[str, set[str]]:
    """Return the nodes that may follow each node, as far as the builder states them."""
    from langgraph.graph import END as GRAPH_END

    table: dict[str, set[str]] = {}
    for start, end in builder.edges:
        table.setdefault(start, set()).add(end)
    for starts, end in builder.waiting_edges:
        for start in starts:
            table.setdefault(start, set()).add(end)
    for node, spec in builder.nodes.items():
        handler = {spec.error_handler_node} if spec.error_handler_node else set()
        table.setdefault(node, set()).update(spec.ends or (), handler)
    for start, branches in builder.branches.items():
        for branch in branches.values():
            ends = {GRAPH_END, *builder.nodes} if branch.ends is None else branch.ends.values()
            table.setdefault(start, set()).update(ends)
    return table


def _unseen(builder: Builder, node: str) -> Unseen | None:
    names = [name for name, branch in builder.branches.get(node, {}).items() if branch.ends is None]
    return Unseen(f"branch {names[0]} has no path map, so any node may follow", f"node {node}") if names else None


def _targets(builder: Builder, node: str, following: set[str], name: str) -> tuple[str, ...]:
    """Return the nodes that may follow, by name, then the end.

    Raises:
        WorkflowError: One of them is not in the graph.
    """
    from langgraph.graph import END as GRAPH_END

    # not `following - nodes.keys()`: that goes through all nodes, at each node
    for target in sorted(to for to in following if to not in builder.nodes and to != GRAPH_END):
        what = f"{target!r} may follow {node}, and there is no such node"
        raise WorkflowError(what, where=name, mend="add the node, or remove it from the edge or the path map")
    return (*sorted(following - {GRAPH_END}), *((END,) if GRAPH_END in following else ()))


# Nodes that may route to a node that no edge names, by a Command or a Send

_ROUTING = frozenset({"Command", "Send"})


def _with_routes(machine: Machine, builder: Any) -> Machine:
    """Mark the nodes that may route themselves. A node without available code may lead anywhere."""
    nodes = [
        replace(node, routes=any(map(_may_route, _deciding_functions(builder, node.run.step))))
        for node in machine.nodes
    ]
    return replace(machine, nodes=tuple(nodes))


def _deciding_functions(builder: Any, node: str) -> Iterator[Callable[..., Any] | None]:
    """Yield the functions that decide what follows a node: its own, and its branches'."""
    branches = (branch.path for branch in builder.branches.get(node, {}).values())
    for runnable in (builder.nodes[node].runnable, *branches):
        action = action_of(runnable)
        yield action if isinstance(action, FunctionType) else None  # a method may call what its object holds


def _may_route(function: Callable[..., Any] | None) -> bool:
    """Return whether a function may name the next node.

    False only if all that it uses from outside are builtins, plain values and modules of the standard library.
    """
    if function is None or hasattr(function, "__wrapped__"):
        return True
    closed = closure_values(function)
    if closed.keys() != set(function.__code__.co_freevars):  # a variable is bound later, to an unknown value
        return True
    outer = {**function.__globals__, **closed}
    names = set(_outer_names(function.__code__))
    return not _ROUTING.isdisjoint(names) or not all(_is_plain(outer[name]) for name in names if name in outer)


def _is_plain(value: object) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in sys.stdlib_module_names
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def _outer_names(code: CodeType) -> Iterator[str]:
    """Yield the names that a code object, and the functions in it, take from outside."""
    yield from (*code.co_names, *code.co_freevars)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _outer_names(const)
