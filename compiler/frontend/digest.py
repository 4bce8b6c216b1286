"""What a function's result depends on in its code: a digest that a change of layout or comments leaves as it is.

It covers the function and, through every name that it uses, the functions, classes, constants and imports of its own
module. Not covered: the code of other modules, closures, values changed while running, names made by `setattr` or
`exec`; and the digest is of one version of Python's syntax tree.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from ramify.compiler.frontend.sources import Function, Sources


def digest(nodes: Iterable[ast.AST]) -> str:
    """sha256 over syntax trees, whatever their order."""
    texts = sorted(map(dumped, nodes))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def dependencies(function: Function, sources: Sources) -> set[ast.AST]:
    """The function, and the statements of its module that it uses."""
    known = sources.dependencies.get(function.node)
    if known is None:
        known = sources.dependencies[function.node] = _dependencies(function, sources)
    return known


def _dependencies(function: Function, sources: Sources) -> set[ast.AST]:
    table = bindings(function.path, sources)
    found: set[ast.AST] = {function.node}
    todo: list[ast.AST] = [function.node]
    while todo:
        used = (node for name in used_names(todo.pop()) for node in table.get(name, ()))
        fresh = [node for node in used if node not in found]
        found.update(fresh)
        todo += fresh
    return found


_texts: WeakKeyDictionary[ast.AST, str] = WeakKeyDictionary()
_names: WeakKeyDictionary[ast.AST, set[str]] = WeakKeyDictionary()


def dumped(node: ast.AST) -> str:
    """Several functions use one statement: its text is made once."""
    text = _texts.get(node)
    if text is None:
        text = _texts[node] = ast.dump(node)
    return text


def used_names(node: ast.AST) -> set[str]:
    names = _names.get(node)
    if names is None:
        names = _names[node] = _used_names(node)
    return names


def _used_names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def bindings(path: str, sources: Sources) -> dict[str, list[ast.AST]]:
    """The statements at the top of a module that bind each name."""
    table = sources.bindings.get(path)
    if table is None:
        table = sources.bindings[path] = {}
        for statement in sources.tree(path).body:
            for name in bound_names(statement):
                table.setdefault(name, []).append(statement)
    return table


def bound_names(statement: ast.AST) -> set[str]:
    """The names that a statement binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
            inner = (node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt))
            handlers = statement.handlers if isinstance(statement, ast.Try) else []
            inside = [*inner, *(node for handler in handlers for node in handler.body)]
            return set().union(_stored(statement), *map(bound_names, inside))
        case _:
            return _stored(statement)


def _stored(statement: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
