"""What a LangGraph node is, beyond its edges: where its code stands, its tools, and the channels that it reads and
writes, by the schema of its input and by its syntax."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.langgraph.graph_checks import check_nodes, check_schemas, parallel_successors
from ramify.compiler.frontend.python.code_parts import codes_of, digest_of
from ramify.compiler.frontend.python.file_access import files_of
from ramify.compiler.frontend.python.modules import dependencies
from ramify.compiler.frontend.python.name_resolution import plain_function, step_info
from ramify.compiler.frontend.python.sources import Definition, Function, Sources
from ramify.compiler.plan import Effect
from ramify.compiler.spec import Files, Machine, Spec, StepSpec, ToolSpec

_WORLDS = ("Sandbox", "SyncSandbox")
_WEAKEST_FIRST = (Effect.PURE, Effect.READONLY, Effect.REVERTIBLE, Effect.UNKNOWN, Effect.IRREVERSIBLE)


def tools_of(node: str, runnable: object, sources: Sources) -> tuple[ToolSpec, ...]:
    """The tools of a `ToolNode`, by name; none for another node."""
    found = getattr(runnable, "tools_by_name", None)
    if not isinstance(found, Mapping):
        return ()
    return tuple(_tool(node, str(name), tool, sources) for name, tool in sorted(found.items()))


def strongest(tools: tuple[ToolSpec, ...]) -> ToolSpec:
    """The tool that may do most: it decides what the node may do."""
    return max(tools, key=lambda tool: _WEAKEST_FIRST.index(tool.effect))


def _tool(node: str, name: str, tool: object, sources: Sources) -> ToolSpec:
    code = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    function = plain_function(getattr(code, "__ramify_tool__", code))
    metadata = getattr(tool, "metadata", None)
    hints = metadata if isinstance(metadata, Mapping) else {}
    takes_world = function is not None and any(
        part.strip().rpartition(".")[2] in _WORLDS
        for parameter, hint in inspect.get_annotations(function).items()
        if parameter != "return"
        for part in (hint if isinstance(hint, str) else inspect.formatannotation(hint)).split("|")
    )
    effect, why = _effect(hints, takes_world)
    try:
        code_digest = "" if function is None else digest_of([sources.function(function)], sources, [node])
    except SourceError:  # made in a shell, or by a client: "" says that the code cannot be told apart
        code_digest = ""
    return ToolSpec(name, effect, why, code_digest)


def _effect(hints: Mapping[object, object], takes_world: bool) -> tuple[Effect, str]:
    """MCP's own defaults hold for a tool that gives some hint: one that does not only read may destroy."""
    if hints.get("readOnlyHint") is True:
        return Effect.READONLY, "readOnlyHint"
    if takes_world:
        return Effect.REVERTIBLE, "takes a Sandbox"
    if hints.get("readOnlyHint") is not False and "destructiveHint" not in hints:
        return Effect.UNKNOWN, "no hint"
    again = ", idempotentHint" if hints.get("idempotentHint") is True else ""
    if hints.get("destructiveHint", True) is not False:
        return Effect.IRREVERSIBLE, f"destructiveHint{again}"
    return Effect.IRREVERSIBLE, f"adds to what is outside{again}"


@dataclass(frozen=True, slots=True)
class Access:
    """None: any channel. `always`: written on every way to the end that raises nothing."""

    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None
    always: frozenset[str] = frozenset()


ANY = Access()


def access(definition: Definition) -> Access:
    """Of a function whose first parameter is the state."""
    arguments = [*definition.args.posonlyargs, *definition.args.args]
    if not arguments:
        return Access(frozenset(), *_writes(definition))
    return Access(_reads(definition, arguments[0].arg), *_writes(definition))


def _reads(definition: Definition, state: str) -> frozenset[str] | None:
    body: list[ast.AST] = [definition.body] if isinstance(definition, ast.Lambda) else list(definition.body)
    named: set[str] = set()
    known: set[ast.expr] = set()
    for node in (inner for part in body for inner in ast.walk(part)):
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
                name == state and used not in known and key not in _OF_DICTS
            ):
                named.add(key)
                known.add(used)
            case ast.Name(id=name) if name == state and node not in known:
                return None
    return frozenset(named)


_OF_DICTS = frozenset(dir(dict))


def _writes(definition: Definition) -> tuple[frozenset[str] | None, frozenset[str]]:
    if isinstance(definition, ast.Lambda):
        keys = _keys(definition.body)
        return keys, keys or frozenset()
    own = list(_own(definition.body))
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
    """The channels that a returned value updates."""
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


def _own(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """What a function's own body holds, functions defined in it aside."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)


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
    together = tuple(tuple(ends) for ends in parallel_successors(builder).values())
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
