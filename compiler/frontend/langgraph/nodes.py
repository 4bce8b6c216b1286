"""What a LangGraph node does, beyond its edges: its code, its channels, its files and its tools.

Channels. The schema of a node's input bounds what it can read, and its syntax narrows that: `state["x"]`, `state.x`
and `state.get("x")` name a channel; any other use of the state may read every channel. Written are the keys of the
dictionaries that the node returns, directly or as a Command's `update`.

Tools. A tool's effect follows from a parameter for a world and from MCP's hints, which LangChain's tools carry in
their `metadata` (readOnlyHint, destructiveHint, idempotentHint). A hint is only a claim of the tool's author. If a
tool claims to read only and changes files, nothing seals them, and the run reports that. So a hint may save a
snapshot, but never makes one step run over another.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.python.file_access import files_of
from ramify.compiler.frontend.python.modules import dependencies
from ramify.compiler.frontend.python.name_resolution import plain_function, step_info, takes_world
from ramify.compiler.frontend.python.names import nodes_in
from ramify.compiler.frontend.python.part_digests import digest_of
from ramify.compiler.frontend.python.sources import Definition, Function, Sources, own_nodes
from ramify.compiler.plan import Effect
from ramify.compiler.spec import FileAccess, StepSpec, ToolSpec

ROOT = "__root__"  # the only channel of a state without names


@dataclass(frozen=True, slots=True)
class ChannelAccess:
    """The channels that a node's syntax reads and writes; None: any channel."""

    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None
    always: frozenset[str] = frozenset()  # written whenever the node returns


ANY = ChannelAccess()


@dataclass(frozen=True, slots=True)
class NodeCode:
    """A node's code, as far as its source is available."""

    name: str
    function: Function | None
    access: ChannelAccess
    files: FileAccess | None = None
    code: object = None  # the function itself: several nodes may share it


def action_of(runnable: object) -> object:
    """Return what the user passed to `add_node`, as far as LangGraph keeps it."""
    return getattr(runnable, "func", None) or getattr(runnable, "afunc", None) or runnable


def node_codes(builder: Any, sources: Sources) -> dict[str, NodeCode]:
    """Return the code of each node of a graph."""
    known: dict[Definition, ChannelAccess] = {}
    return {name: _node_code(name, node.runnable, sources, known) for name, node in builder.nodes.items()}


def _node_code(name: str, runnable: object, sources: Sources, known: dict[Definition, ChannelAccess]) -> NodeCode:
    action = action_of(runnable)
    plain = plain_function(action)
    if plain is None:
        return NodeCode(name, None, ANY)
    try:
        function = sources.function(plain)
    except SourceError:  # made in a shell, or by exec
        return NodeCode(name, None, ANY)
    wrapped = action if step_info(action) is None else getattr(action, "__wrapped__", action)
    # not a method, whose first parameter is not the state; not a decorated function, whose result may be changed
    own = isinstance(wrapped, FunctionType) and wrapped is plain
    if own and function.node not in known:
        known[function.node] = channel_access(function.node)
    if own and plain not in sources.files:
        sources.files[plain] = files_of(function, dependencies(function, sources), sources)
    files = sources.files[plain] if own else None
    return NodeCode(name, function, known[function.node] if own else ANY, files, plain)


def with_code(step: StepSpec, builder: Any, code: NodeCode, sources: Sources) -> StepSpec:
    """Return a node's step with the channels, files and tools of its code."""
    where = "" if code.function is None else code.function.where()
    tools = tools_of(step.name, builder.nodes[step.name].runnable, sources)
    reads, writes = _channels(builder, step.name, code.access)
    by = "" if reads is None else "schema" if code.access.reads is None else "syntax"
    step = replace(step, where=where, reads=reads, writes=writes, reads_by=by, tools=tools, files=code.files)
    if not tools:
        return step
    most = strongest(tools)
    # only workflows put barriers before irreversible steps; a LangGraph node runs as written
    effect = Effect.UNKNOWN if most.effect is Effect.IRREVERSIBLE else most.effect
    text = ",".join(tool.code_digest for tool in tools)
    code_digest = hashlib.sha256(f"{step.code_digest}:{text}".encode()).hexdigest()
    return replace(step, declared=effect, code_digest=code_digest, reads=None, writes=None)


# Channels


def _channels(builder: Any, name: str, found: ChannelAccess) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the channels that a node reads and writes, each None for any: by its schema, narrowed by its syntax."""
    if ROOT in builder.channels:
        return None, None
    schema = set(builder.schemas.get(builder.nodes[name].input_schema, builder.channels))
    reads = schema if found.reads is None else schema & found.reads
    narrowed = found.reads is not None or schema < set(builder.channels)
    writes = None if found.writes is None else tuple(sorted(found.writes & set(builder.channels)))
    return tuple(sorted(reads)) if narrowed else None, writes


def channel_access(definition: Definition) -> ChannelAccess:
    """Return the channels that a function reads and writes, whose first parameter is the state."""
    arguments = [*definition.args.posonlyargs, *definition.args.args]
    if not arguments:
        return ChannelAccess(frozenset(), *_writes(definition))
    return ChannelAccess(_reads(definition, arguments[0].arg), *_writes(definition))


def _reads(definition: Definition, state: str) -> frozenset[str] | None:
    body: list[ast.AST] = [definition.body] if isinstance(definition, ast.Lambda) else list(definition.body)
    named: set[str] = set()
    known: set[ast.expr] = set()
    for node in (inner for part in body for inner in nodes_in(part)):
        match node:
            case (
                ast.Subscript(value=ast.Name(id=name) as used, slice=ast.Constant(value=str(key)), ctx=ast.Load())
                | ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name) as used, attr="get"),
                    args=[ast.Constant(value=str(key)), *_],
                )
            ) if name == state:
                named.add(key)
                known.add(used)
            case ast.Attribute(value=ast.Name(id=name) as used, attr=key, ctx=ast.Load()) if (
                name == state and used not in known and key not in _DICT_METHODS
            ):
                named.add(key)
                known.add(used)
            case ast.Name(id=name) if name == state and node not in known:
                return None
    return frozenset(named)


_DICT_METHODS = frozenset(dir(dict))


def _writes(definition: Definition) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the channels that a function may write, and those that it always writes."""
    if isinstance(definition, ast.Lambda):
        keys = _keys(definition.body)
        return keys, keys or frozenset()
    own = list(own_nodes(definition))
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own):
        return None, frozenset()
    found = [_keys(node.value) for node in own if isinstance(node, ast.Return)]
    if not isinstance(definition.body[-1], ast.Return | ast.Raise):
        found.append(frozenset())
    if any(keys is None for keys in found):
        return None, frozenset()
    sets = [keys for keys in found if keys is not None]
    return frozenset().union(*sets), frozenset.intersection(*sets) if sets else frozenset()


def _keys(value: ast.expr | None) -> frozenset[str] | None:
    """Return the channels that a returned value updates; None: any."""
    match value:
        case None | ast.Constant(value=None):
            return frozenset()
        case ast.Dict(keys=keys):
            names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            return frozenset(names) if len(names) == len(keys) else None
        case ast.Call(func=ast.Name(id="Command"), args=[], keywords=keywords):
            given = {keyword.arg: keyword.value for keyword in keywords}
            return None if None in given or "graph" in given else _keys(given.get("update"))
        case _:
            return None


# Tools

_WEAKEST_FIRST = (Effect.PURE, Effect.READONLY, Effect.REVERTIBLE, Effect.UNKNOWN, Effect.IRREVERSIBLE)


def tools_of(node: str, runnable: object, sources: Sources) -> tuple[ToolSpec, ...]:
    """Return the tools of a `ToolNode`, by name; none for another node."""
    found = getattr(runnable, "tools_by_name", None)
    if not isinstance(found, Mapping):
        return ()
    return tuple(_tool(node, str(name), tool, sources) for name, tool in sorted(found.items()))


def strongest(tools: tuple[ToolSpec, ...]) -> ToolSpec:
    """Return the tool with the strongest effect, which decides the effect of the node."""
    return max(tools, key=lambda tool: _WEAKEST_FIRST.index(tool.effect))


def _tool(node: str, name: str, tool: object, sources: Sources) -> ToolSpec:
    code = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    function = plain_function(getattr(code, "__ramify_tool__", code))
    metadata = getattr(tool, "metadata", None)
    hints = metadata if isinstance(metadata, Mapping) else {}
    effect, why = _effect(hints, function is not None and takes_world(function))
    try:
        code_digest = "" if function is None else digest_of([sources.function(function)], sources, [node])
    except SourceError:  # made in a shell, or by a client: "" means that changes of the code cannot be detected
        code_digest = ""
    return ToolSpec(name, effect, why, code_digest)


def _effect(hints: Mapping[object, object], has_world: bool) -> tuple[Effect, str]:
    """Return a tool's effect and the reason.

    MCP's defaults hold for a tool with some hint: unless it only reads, it may destroy.
    """
    if hints.get("readOnlyHint") is True:
        return Effect.READONLY, "readOnlyHint"
    if has_world:
        return Effect.REVERTIBLE, "takes a Sandbox"
    if hints.get("readOnlyHint") is not False and "destructiveHint" not in hints:
        return Effect.UNKNOWN, "no hint"
    idempotent = ", idempotentHint" if hints.get("idempotentHint") is True else ""
    if hints.get("destructiveHint", True) is not False:
        return Effect.IRREVERSIBLE, f"destructiveHint{idempotent}"
    return Effect.IRREVERSIBLE, f"adds to what is outside{idempotent}"
