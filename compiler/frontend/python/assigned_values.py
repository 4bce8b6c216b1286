"""What a function assigns to its names, for analyses that do not follow the order of its statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeAlias
from weakref import WeakKeyDictionary

from ramify.compiler.frontend.python.names import arguments_of, names_bound_by, nodes_in
from ramify.compiler.frontend.python.sources import Definition

Assigned: TypeAlias = dict[str, list[ast.expr | None]]
"""The values of each name; None if one is not known. A parameter or a declaration stands as its annotation
(`annotation_in`), a loop's variable as what it is taken from (`item_source`)."""

_MARK, _ITEM = "<annotation>", "<item>"
_FILLS = ("append", "appendleft", "add", "extend", "insert", "put", "put_nowait", "setdefault", "update")
_PICKS = ("pop", "popleft", "popitem", "get", "get_nowait")


_known: WeakKeyDictionary[ast.AST, Assigned] = WeakKeyDictionary()


def assigned_values(definition: Definition) -> Assigned:
    """Return the values of each name of a function. They are kept: a helper is read at each of its calls."""
    known = _known.get(definition)
    if known is None:
        known = _known[definition] = _assigned_values(definition)
    return known


def _assigned_values(definition: Definition) -> Assigned:
    found: Assigned = {}
    for argument in arguments_of(definition.args):
        found[argument.arg] = [None if argument.annotation is None else _marked(_MARK, argument.annotation)]
    for node in nodes_in(definition):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target, given in (pair for each in targets for pair in _pairs(each, value)):
                    for name in _stored(target):
                        found.setdefault(name, []).append(_unpacked(target, given))
            case ast.For(target=target, iter=source) | ast.AsyncFor(target=target, iter=source):
                _add_items(found, target, source)
            case ast.comprehension(target=target, iter=source):
                _add_items(found, target, source)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                known = re.search(r"[sS]et\b", ast.unparse(annotation)) is not None
                found.setdefault(name, []).append(_marked(_MARK, annotation) if known or value is None else value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                found.setdefault(name, []).append(value)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                if not isinstance(op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
                    found.setdefault(name, []).append(value)
    return found


def _unpacked(target: ast.expr, value: ast.expr) -> ast.expr | None:
    """Return what a name of a target is bound to. `first, *rest = names` takes its items one by one."""
    match target:
        case ast.Name():
            return value
        case ast.Tuple([_, _, *_]) | ast.List([_, _, *_]):
            return ast.Call(ast.Name("next", ast.Load()), [value], [])
    return None


def _add_items(found: Assigned, target: ast.expr, source: ast.expr) -> None:
    for name in _stored(target):
        found.setdefault(name, []).append(_marked(_ITEM, source) if isinstance(target, ast.Name) else None)


def _marked(mark: str, value: ast.expr) -> ast.expr:
    return ast.Subscript(ast.Name(mark, ast.Load()), value, ast.Load())


def annotation_in(value: ast.expr) -> ast.expr | None:
    return _unmarked(_MARK, value)


def item_source(value: ast.expr) -> ast.expr | None:
    """Return the expression whose items a value of `assigned_values` is."""
    return _unmarked(_ITEM, value)


def _unmarked(mark: str, value: ast.expr) -> ast.expr | None:
    match value:
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name == mark:
            return inner
    return None


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what `target = value` binds, each with its value: `a, b = 1, 2` binds two names."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for inner, given in zip(target.elts, value.elts, strict=True):
            yield from _pairs(inner, given)
    else:
        yield target, value


def last_argument(annotation: ast.Subscript) -> ast.expr:
    given = annotation.slice
    return given.elts[-1] if isinstance(given, ast.Tuple) else given


def names_in(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in nodes_in(node) if isinstance(inner, ast.Name))


def names_stored_in(node: ast.AST) -> list[str]:
    """Return the names that a piece of code binds, once for each place where it does."""
    found: list[str] = []
    for inner in nodes_in(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            found.append(inner.id)
        else:
            found += names_bound_by(inner)
    return found


def _stored(target: ast.expr) -> Iterator[str]:
    return (
        inner.id for inner in nodes_in(target) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    )


def loops_in(definition: Definition) -> Iterator[tuple[ast.expr, list[ast.stmt]]]:
    """Yield the bodies of the loops of a function, each with what it takes its items from."""
    for node in nodes_in(definition):
        if isinstance(node, ast.For | ast.AsyncFor):
            yield node.iter, node.body
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            for inner in nodes_in(node):
                if isinstance(inner, ast.Call) and (owner := picked_from(inner)) is not None:
                    yield owner, node.body


def picked_from(call: ast.Call) -> ast.expr | None:
    """Return the object from which a call takes one item: `names.pop()`, `next(each)`."""
    match call:
        case ast.Call(ast.Attribute(owner, attr), []) if attr in _PICKS:
            return owner
        case ast.Call(ast.Name(id="next"), [owner, *_]):
            return owner
    return None


def filled_by(node: ast.AST) -> str | None:
    """Return the name of the object into which a call or an assignment puts an item."""
    match node:
        case ast.Call(ast.Attribute(ast.Name(id=name), attr)) if attr in _FILLS:
            return name
        case ast.Call(ast.Attribute(ast.Subscript(ast.Name(id=name), index), attr)) if attr in _FILLS:
            return None if isinstance(index, ast.Constant) else name  # `groups[kind].append(item)` makes a key
        case ast.AugAssign(ast.Name(id=name), ast.Add()):
            return name
        case ast.AugAssign(ast.Subscript(ast.Name(id=name), index)):
            return None if isinstance(index, ast.Constant) else name
        case ast.Assign([ast.Subscript(ast.Name(id=name))]):
            return name
    return None
