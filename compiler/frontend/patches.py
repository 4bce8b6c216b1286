"""`if patched("name"):` in a syntax tree: which names a file has, and the code as it was without them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

NAME = "patched"


def without_patches(tree: ast.Module, names: frozenset[str]) -> ast.Module:
    """The tree with each `if patched(name)` replaced by its `else`, for these names. Positions stay."""
    changed = _Without(called_as(tree), names).visit(tree)
    assert isinstance(changed, ast.Module)
    return changed


def patches_in(tree: ast.AST, calls: frozenset[str]) -> Iterator[str]:
    """The names of the patches in a piece of syntax."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _patch(node, calls)) is not None:
            yield name


def called_as(tree: ast.Module) -> frozenset[str]:
    """How a module calls `ramify.patched`, by its imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {f"{each.asname or each.name}.{NAME}" for each in node.names if each.name == "ramify"}
        elif isinstance(node, ast.ImportFrom) and node.module == "ramify" and not node.level:
            found |= {each.asname or each.name for each in node.names if each.name == NAME}
    return frozenset(found)


def _patch(node: ast.expr, calls: frozenset[str]) -> str | None:
    match node:
        case ast.Call(func=func, args=[ast.Constant(value=str(name))], keywords=[]):
            return name if _dotted(func) in calls else None
        case _:
            return None


def _dotted(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return f"{name}.{attribute}"
        case _:
            return None


class _Without(ast.NodeTransformer):
    def __init__(self, calls: frozenset[str], names: frozenset[str]) -> None:
        self._calls, self._names = calls, names

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.AST]:
        match node.test:
            case ast.UnaryOp(op=ast.Not(), operand=test) if _patch(test, self._calls) in self._names:
                kept = node.body
            case test if _patch(test, self._calls) in self._names:
                kept = node.orelse
            case _:
                return self.generic_visit(node)
        found: list[ast.AST] = []
        for statement in kept:
            seen = self.visit(statement)
            found += seen if isinstance(seen, list) else [seen]
        return found

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if _patch(node.test, self._calls) in self._names:
            found: ast.AST = self.visit(node.orelse)
            return found
        return self.generic_visit(node)
