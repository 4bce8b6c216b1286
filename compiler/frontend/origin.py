"""What a call is in the source, told without its position: what it is given, and what becomes of its result."""

from __future__ import annotations

import ast
from weakref import WeakKeyDictionary

from ramify.compiler.frontend.sources import Definition
from ramify.compiler.frontend.syntax import plain_text

_parents: WeakKeyDictionary[ast.AST, dict[ast.AST, ast.AST]] = WeakKeyDictionary()


def source_of(call: ast.expr, definition: Definition) -> str:
    """Equal for calls that nothing but their places tells apart. By the names as they are written."""
    parents = _parents.get(definition)
    if parents is None:
        parents = {child: node for node in ast.walk(definition) for child in ast.iter_child_nodes(node)}
        _parents[definition] = parents
    found = [plain_text(call)]
    node: ast.AST = call
    while not isinstance(node, ast.stmt) and node is not definition and node in parents:
        child, node = node, parents[node]
        found.append(_role(child, node))
    return "\n".join(filter(None, found))


def _role(child: ast.AST, parent: ast.AST) -> str:
    """What a node does with what stands in it."""
    match parent:
        case ast.Await():
            return ""
        case ast.Dict(keys=keys, values=values):
            named = [key for key, value in zip(keys, values, strict=True) if value is child and key is not None]
            return f"dict {''.join(map(plain_text, named))}"
        case ast.keyword(arg=name):
            return f"keyword {name}"
        case ast.Call(func=func):
            return f"call {plain_text(func)}"
        case ast.NamedExpr(target=target):
            return f"bound {plain_text(target)}"
        case ast.Assign(targets=targets):
            return f"bound {' '.join(map(plain_text, targets))}"
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return f"bound {plain_text(target)}"
        case ast.For(target=target) | ast.AsyncFor(target=target):
            return f"for {plain_text(target)}"
        case ast.withitem(optional_vars=ast.expr() as target):
            return f"with {plain_text(target)}"
        case _:
            field = next(name for name, value in ast.iter_fields(parent) if value is child or _among(child, value))
            return f"{type(parent).__name__}.{field}"


def _among(child: ast.AST, value: object) -> bool:
    return isinstance(value, list) and any(each is child for each in value)
