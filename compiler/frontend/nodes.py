"""What a LangGraph node is, beyond its edges: where its code stands, its tools, and the channels that it reads and
writes, by the schema of its input and by its syntax."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.access import ANY, Access, access
from ramify.compiler.frontend.code import codes_of
from ramify.compiler.frontend.digest import dependencies
from ramify.compiler.frontend.files import files_of
from ramify.compiler.frontend.graph_checks import check_nodes, check_schemas, together_of
from ramify.compiler.frontend.resolve import plain_function, step_info
from ramify.compiler.frontend.sources import Definition, Function, Sources
from ramify.compiler.frontend.tools import strongest, tools_of
from ramify.compiler.plan import Effect
from ramify.compiler.spec import Files, Machine, Spec, StepSpec

ROOT = "__root__"  # the one channel of a state that has no names


@dataclass(frozen=True, slots=True)
class NodeCode:
    """A node's function, where its source is to be had."""

    name: str
    function: Function | None
    access: Access
    files: Files | None = None
    code: object = None  # the function itself: several nodes may share it


def with_state(spec: Spec, graph: Any, begins_without: Callable[[str], bool], sources: Sources) -> Spec:
    """`spec` was read from `graph` with these `sources`; `begins_without`: whether its runs begin with nothing at a
    path.

    Raises WorkflowError for nodes and schemas that cannot work.
    """
    builder = getattr(graph, "builder", graph)
    if not isinstance(spec.body, Machine) or not hasattr(builder, "branches"):  # an entrypoint has no channels
        return spec
    seen: dict[Definition, Access] = {}
    codes = {name: _code(name, node.runnable, sources, seen) for name, node in builder.nodes.items()}
    check_schemas(spec.name, builder, kept=bool(getattr(graph, "checkpointer", None)))
    check_nodes(builder, codes, sources, begins_without)
    steps = tuple(_step(step, builder, codes[step.name], sources) for step in spec.steps)
    together = tuple(tuple(ends) for ends in together_of(builder).values())
    code_digest = spec.code_digest
    if any(step.tools for step in steps):
        text = ",".join([code_digest, *(step.code_digest for step in steps if step.tools)])
        code_digest = hashlib.sha256(text.encode()).hexdigest()
    code = codes_of(sources).told()  # with the tools'
    body = replace(spec.body, together=together)
    return replace(spec, code_digest=code_digest, steps=steps, body=body, code=code)


def _code(name: str, runnable: object, sources: Sources, seen: dict[Definition, Access]) -> NodeCode:
    action = getattr(runnable, "func", None) or getattr(runnable, "afunc", None) or runnable
    plain = plain_function(action)
    if plain is None:
        return NodeCode(name, None, ANY)
    try:
        function = sources.function(plain)
    except SourceError:  # made in a shell, or by exec
        return NodeCode(name, None, ANY)
    wrapped = action if step_info(action) is None else getattr(action, "__wrapped__", action)
    # not a method, whose first parameter is no state; not what a decorator wraps, which may change what it returns
    own = isinstance(wrapped, FunctionType) and wrapped is plain
    if own and function.node not in seen:
        seen[function.node] = access(function.node)
    if own and plain not in sources.files:
        sources.files[plain] = files_of(function, dependencies(function, sources), sources)
    files = sources.files[plain] if own else None
    return NodeCode(name, function, seen[function.node] if own else ANY, files, plain)


def _step(step: StepSpec, builder: Any, code: NodeCode, sources: Sources) -> StepSpec:
    where = "" if code.function is None else code.function.where()
    tools = tools_of(step.name, builder.nodes[step.name].runnable, sources)
    reads, writes = _channels(builder, step.name, code.access)
    by = "" if reads is None else "schema" if code.access.reads is None else "syntax"
    step = replace(step, where=where, reads=reads, writes=writes, reads_by=by, tools=tools, files=code.files)
    if not tools:
        return step
    most = strongest(tools)
    # a fence is the workflow's to give: for LangGraph's nodes what is irreversible runs as written
    effect = Effect.UNKNOWN if most.effect is Effect.IRREVERSIBLE else most.effect
    text = ",".join(tool.code_digest for tool in tools)
    code_digest = hashlib.sha256(f"{step.code_digest}:{text}".encode()).hexdigest()
    return replace(step, declared=effect, code_digest=code_digest, reads=None, writes=None)


def _channels(builder: Any, name: str, found: Access) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """The schema of its input bounds what a node can read; its syntax narrows that."""
    if ROOT in builder.channels:
        return None, None
    seen = set(builder.schemas.get(builder.nodes[name].input_schema, builder.channels))
    reads = seen if found.reads is None else seen & found.reads
    narrowed = found.reads is not None or seen < set(builder.channels)
    writes = None if found.writes is None else tuple(sorted(found.writes & set(builder.channels)))
    return tuple(sorted(reads)) if narrowed else None, writes
