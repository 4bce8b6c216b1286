"""Which names a piece of syntax uses, and in what order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

Place = tuple[int, int]  # line and column
_EVER: Place = (1 << 31, 0)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Use:
    """A dotted name, at the place of its statement. What stands in an inner function may happen any time from where
    that is defined on."""

    name: str
    chain: tuple[str, ...]  # the attributes after it
    first: Place
    last: Place
    loops: frozenset[Place]  # around it, by where they begin
    module: str | None = None  # it is imported from there, at this place ("": it is a module itself)


_known: WeakKeyDictionary[ast.AST, tuple[Use, ...]] = WeakKeyDictionary()


def uses_of(node: ast.AST) -> tuple[Use, ...]:
    known = _known.get(node)
    if known is None:
        known = _known[node] = tuple(dict.fromkeys(_uses(node)))
    return known


def _uses(root: ast.AST) -> Iterator[Use]:
    todo: list[tuple[ast.AST, Place, Place | None, frozenset[Place]]] = [(root, (0, 0), None, frozenset())]
    while todo:
        node, stands, inside, loops = todo.pop()
        place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        stands = place if isinstance(node, ast.stmt) else stands
        first, last = (stands, stands) if inside is None else (inside, _EVER)
        if isinstance(node, ast.Name | ast.Attribute) and (dotted := _dotted(node)) is not None:
            yield Use(dotted[0], tuple(dotted[1:]), first, last, loops)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom) and node is not root:
            base = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            yield from (Use(alias.name, (), first, last, loops, base) for alias in node.names)
        if isinstance(node, _LOOPS):
            loops |= {place}
        if isinstance(node, _FUNCTIONS) and node is not root and inside is None:
            inside = stands
        todo += ((child, stands, inside, loops) for child in ast.iter_child_nodes(node))


def _dotted(node: ast.expr) -> list[str] | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None
