"""What an import of a module runs, and which names an expression takes its object from."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ramify.compiler.frontend.python.names import arguments_of, dotted_name, nodes_in

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PASSING = frozenset({"cast", "enumerate", "getattr", "iter", "reversed", "vars", "zip"})
"""Functions that give their first argument back, or a part of it."""


def run_by_import(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the syntax that an import runs: no bodies of functions, and not what runs in a main program only."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and _is_main_guard(node.test):
            todo += node.orelse
            continue
        yield node
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                todo += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            case ast.Lambda():
                todo += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            case _:
                todo += ast.iter_child_nodes(node)


def _is_main_guard(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
        case _:
            return False


def bases_of(node: ast.expr) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield the names that an expression takes its object from, each with the attributes after it, and whether it is
    called: `TABLE` of `TABLE["a"].setdefault(b, [])`."""
    match node:
        case ast.Name() | ast.Attribute() if (dotted := dotted_name(node)) is not None:
            yield dotted[0], tuple(dotted[1:]), False
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            yield from bases_of(inner)
        case ast.Await(value=inner) | ast.NamedExpr(value=inner):
            yield from bases_of(inner)
        case ast.Call(func=func, args=args):
            yield from ((name, chain, True) for name, chain, _ in bases_of(func))
            if isinstance(func, ast.Name | ast.Attribute) and (dotted_name(func) or [""])[-1] in _PASSING:
                for each in args:
                    yield from bases_of(each)
        case ast.IfExp(body=one, orelse=other):
            yield from bases_of(one)
            yield from bases_of(other)
        case ast.BoolOp(values=values):
            for each in values:
                yield from bases_of(each)


def parameters_of(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the parameters of a function and of those defined in it."""
    arguments = (each for each in nodes_in(definition) if isinstance(each, ast.arguments))
    return frozenset(one.arg for each in arguments for one in arguments_of(each))


def assigned_in(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, list[ast.expr]]:
    """Return the local names of a function, each with the expressions that its object is taken from."""
    found: dict[str, list[ast.expr]] = {}
    declared = {name for node in nodes_in(definition) if isinstance(node, ast.Global) for name in node.names}
    for node in nodes_in(definition):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node.id not in declared:
            found.setdefault(node.id, [])
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node is not definition:
            found.setdefault(node.name, [])
    for target, value in _assignments(definition):
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and name.id in found:
                found[name.id].append(value)
    return found


def _assignments(definition: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in nodes_in(definition):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                yield target, value
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                yield target, value
            case ast.comprehension(target=target, iter=value):
                yield target, value
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield target, value


def is_partial(call: ast.Call) -> bool:
    """Return whether a call is `partial(function, …)`."""
    return bool(call.args) and (dotted_name(call.func) or [""])[-1] == "partial"


def constant_text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
