"""Front end for LangGraph: reads the builder, which need not have been compiled.

Exact: nodes, edges, waiting edges, branches with a path map or a `Literal` return type, Commands with one. Not known
ahead: where a branch without a path map goes (a graph break; every node is possible), a `goto` without annotation,
how many Sends there are. Several tasks in one superstep are the plan's one FORK and MERGE, whichever they are.
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
from typing import TYPE_CHECKING, Any

from ramify.compiler.errors import SourceError, WorkflowError
from ramify.compiler.frontend.python.code_parts import codes_of, digest_of
from ramify.compiler.frontend.python.name_resolution import plain_function, step_info
from ramify.compiler.frontend.python.sources import Sources, closure_values
from ramify.compiler.spec import END, Machine, Node, Run, Spec, StepSpec, Unseen

if TYPE_CHECKING:
    from langgraph.graph import StateGraph

_WORLDS = ("Sandbox", "SyncSandbox")  # annotations of the parameter that takes a node's world


def read_graph(
    graph: object, *, name: str, ref: str, deadline_s: float | None = None, sources: Sources | None = None
) -> Spec:
    """Raises WorkflowError for what is no graph, or one that LangGraph itself would refuse."""
    sources = sources or Sources(version=5)  # rows of nodes are met by digests of that form
    if (function := _entrypoint(graph)) is not None:
        return _read_entrypoint(function, sources, name, ref, deadline_s)
    builder = _builder(graph, name)
    steps = tuple(_step(node, spec.runnable, sources) for node, spec in builder.nodes.items())
    machine = _machine(builder, name)
    shape = [machine.entry, *((node.run.step, node.targets, node.run.waits_for) for node in machine.nodes)]
    text = json.dumps([shape, [step.code_digest for step in steps], [*_between(builder, sources)]])
    code_digest = hashlib.sha256(text.encode()).hexdigest()
    return Spec(ref, name, "langgraph", code_digest, steps, machine, deadline_s, codes_of(sources).told())


def _entrypoint(graph: object) -> tuple[str, object] | None:
    """The one node of a function under `@entrypoint`."""
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
    machine = Machine((node,), (Node(Run(node, None), (END,), unseen),))
    return Spec(ref, name, "langgraph", step.code_digest, (step,), machine, deadline_s, codes_of(sources).told())


def _builder(graph: object, name: str) -> StateGraph[Any, Any, Any, Any]:
    from langgraph.graph import StateGraph
    from langgraph.graph.state import CompiledStateGraph

    builder = graph.builder if isinstance(graph, CompiledStateGraph) else graph
    if not isinstance(builder, StateGraph):
        mend = "give a StateGraph, what its compile() returned, or a function under @workflow"
        if inspect.isfunction(graph):
            mend += "; one that makes a graph says so by `-> StateGraph`"
        raise WorkflowError(f"{type(graph).__name__} is no LangGraph graph", where=name, mend=mend)
    return builder


def _action(runnable: object) -> object:
    """What the user gave to `add_node`, as far as LangGraph keeps it."""
    action = getattr(runnable, "func", None) or getattr(runnable, "afunc", None) or runnable
    return action if plain_function(action) is not None else inspect.getattr_static(type(action), "__call__", None)


def _step(name: str, runnable: object, sources: Sources) -> StepSpec:
    action = _action(runnable)
    info, function = step_info(action), plain_function(action)
    takes_sandbox = info.takes_sandbox if info is not None else function is not None and _takes_sandbox(function)
    declared, reuse = (None, False) if info is None else (info.effect, info.reuse)
    return StepSpec(name, declared, takes_sandbox, reuse, _digest(functions_of(runnable), sources, [name]))


def _between(builder: StateGraph[Any, Any, Any, Any], sources: Sources) -> Iterator[str]:
    """The digests of what the project runs between nodes: branches, which may affect what they lead to, and reducers,
    which may affect every node."""
    for start, branches in sorted(builder.branches.items()):
        for name, branch in sorted(branches.items()):
            ends = builder.nodes if branch.ends is None else branch.ends.values()
            steps = [end for end in ends if end in builder.nodes]
            yield f"{start} {name} {_digest(filter(_is_the_users, functions_of(branch.path)), sources, steps)}"
    for channel, kept in sorted(builder.channels.items()):
        reducer = plain_function(getattr(kept, "operator", None))
        if reducer is not None and _is_the_users(reducer):
            yield f"{channel} {_digest([reducer], sources, builder.nodes)}"


def _digest(functions: Iterable[Callable[..., Any]], sources: Sources, steps: Iterable[str]) -> str:
    """Of all of these whose source is to be had; "" says that the code cannot be told apart."""
    found = []
    for function in dict.fromkeys(functions):
        with suppress(SourceError):  # made in a shell, or by exec
            found.append(sources.function(function))
    return digest_of(found, sources, list(steps)) if found else ""


def functions_of(runnable: object) -> Iterator[Callable[..., Any]]:
    """The Python functions that a node or a branch is made of: of a sequence its steps', of a graph its nodes' and
    what stands between them, of a partial those that it holds."""
    builder, steps, nodes, bound = (getattr(runnable, name, None) for name in ("builder", "steps", "nodes", "bound"))
    if builder is not None and hasattr(builder, "branches"):
        yield from functions_of(builder)
        for branches in builder.branches.values():
            for branch in branches.values():
                yield from filter(_is_the_users, functions_of(branch.path))
        reducers = (plain_function(getattr(kept, "operator", None)) for kept in builder.channels.values())
        yield from (reducer for reducer in reducers if reducer is not None and _is_the_users(reducer))
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
            yield from _held_by(action)
        if not given:  # a Runnable of the user's own
            methods = (plain_function(getattr(type(runnable), name, None)) for name in ("invoke", "ainvoke"))
            yield from (method for method in methods if method is not None and _is_the_users(method))


def _held_by(action: object) -> Iterator[Callable[..., Any]]:
    if (function := plain_function(action)) is not None:
        yield function
    elif isinstance(action, partial):
        for part in (action.func, *action.args, *action.keywords.values()):
            yield from filter(_is_the_users, _held_by(part))
    elif (called := plain_function(inspect.getattr_static(type(action), "__call__", None))) is not None:
        yield called


def _is_the_users(function: Callable[..., Any]) -> bool:
    return "site-packages" not in PurePath(function.__code__.co_filename).parts


def _takes_sandbox(function: Callable[..., Any]) -> bool:
    hints = (hint for name, hint in inspect.get_annotations(function).items() if name != "return")
    texts = (hint if isinstance(hint, str) else inspect.formatannotation(hint) for hint in hints)
    return any(part.strip().rpartition(".")[2] in _WORLDS for text in texts for part in text.split("|"))


def _machine(builder: StateGraph[Any, Any, Any, Any], name: str) -> Machine:
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
        run = Run(node, None, subgraph=isinstance(spec.runnable, Pregel), waits_for=waits_for)
        nodes.append(Node(run, targets or (END,), _unseen(builder, node)))
    entry = _targets(builder, START, following.get(START, set()), name)
    if not entry:
        raise WorkflowError("nothing follows START", where=name, mend="add an edge from START to the first node")
    return Machine(entry, tuple(nodes), _unseen(builder, START))


def _following(builder: StateGraph[Any, Any, Any, Any]) -> dict[str, set[str]]:
    """What may follow each node, as far as the builder says it."""
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


def _unseen(builder: StateGraph[Any, Any, Any, Any], node: str) -> Unseen | None:
    names = [name for name, branch in builder.branches.get(node, {}).items() if branch.ends is None]
    return Unseen(f"branch {names[0]} has no path map, so any node may follow", f"node {node}") if names else None


def _targets(builder: StateGraph[Any, Any, Any, Any], node: str, following: set[str], name: str) -> tuple[str, ...]:
    """Nodes by name, then the end."""
    from langgraph.graph import END as GRAPH_END

    # not `following - nodes.keys()`: that goes through all nodes, at each node
    for target in sorted(to for to in following if to not in builder.nodes and to != GRAPH_END):
        what = f"{target!r} may follow {node}, and there is no such node"
        raise WorkflowError(what, where=name, mend="add the node, or take it out of the edge or the path map")
    return (*sorted(following - {GRAPH_END}), *((END,) if GRAPH_END in following else ()))


_ROUTING = frozenset({"Command", "Send"})


def with_routes(spec: Spec, graph: Any) -> Spec:
    """`spec` was read from `graph`. A node whose code cannot be had may lead anywhere."""
    if not isinstance(spec.body, Machine):
        return spec
    builder = getattr(graph, "builder", graph)
    if not hasattr(builder, "branches"):  # an entrypoint: nothing follows its one node
        return spec
    nodes = [replace(node, routes=any(map(_routes, _codes(builder, node.run.step)))) for node in spec.body.nodes]
    return replace(spec, body=replace(spec.body, nodes=tuple(nodes)))


def _codes(builder: Any, node: str) -> Iterator[Callable[..., Any] | None]:
    """The functions that decide what follows a node: its own, and its branches'."""
    branches = (branch.path for branch in builder.branches.get(node, {}).values())
    for runnable in (builder.nodes[node].runnable, *branches):
        action = getattr(runnable, "func", None) or getattr(runnable, "afunc", None) or runnable
        yield action if isinstance(action, FunctionType) else None  # a method may call what its object holds


def _routes(function: Callable[..., Any] | None) -> bool:
    """Whether it may name the next node. False only where all that it uses from outside are builtins, plain values
    and modules of the standard library."""
    if function is None or hasattr(function, "__wrapped__"):
        return True
    closed = closure_values(function)
    if closed.keys() != set(function.__code__.co_freevars):  # one is bound later, to nobody knows what
        return True
    outer = {**function.__globals__, **closed}
    names = set(_names(function.__code__))
    return not _ROUTING.isdisjoint(names) or not all(_is_plain(outer[name]) for name in names if name in outer)


def _is_plain(value: object) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in sys.stdlib_module_names
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def _names(code: CodeType) -> Iterator[str]:
    """What it and the comprehensions and functions in it take from outside of it."""
    yield from (*code.co_names, *code.co_freevars)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)
