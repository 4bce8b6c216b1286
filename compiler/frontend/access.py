"""Which channels of its state a node reads and writes, as far as its own syntax says.

Read: `state["x"]`, `state.x` and `state.get("x")` name a channel; any other use of the state may read every one.
Written: the keys of the dictionaries that it returns, plain or as a Command's `update`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ramify.compiler.frontend.sources import Definition


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
