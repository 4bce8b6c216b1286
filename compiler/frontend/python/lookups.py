"""Names of a module that code looks up as it runs, as in `globals()[name]` and `eval`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ramify.compiler.frontend.python.import_time import constant_text
from ramify.compiler.frontend.python.names import dotted_name, nodes_in


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is known of a name that is looked up: how it begins and ends. `exact`: it is all of the name."""

    first: str = ""
    last: str = ""
    exact: bool = False

    def may_mean(self, name: str) -> bool:
        if self.exact:
            return name == self.first
        return name.startswith(self.first) and name.endswith(self.last)


def lookups_in(node: ast.AST) -> Iterator[Lookup]:
    """Yield the names of its own module that a piece of syntax looks up."""
    in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    narrowed = set[int]()
    for inner in nodes_in(node):
        match inner:
            case ast.Subscript(value=names, slice=name) if _is_namespace(names, in_function):
                narrowed.add(id(names))
                if isinstance(inner.ctx, ast.Load):
                    yield _known_of(name)
            case ast.Call(func=ast.Attribute(value=names, attr="get" | "pop"), args=[name, *_]) if _is_namespace(
                names, in_function
            ):
                narrowed.add(id(names))
                yield _known_of(name)
            case ast.Call(func=ast.Attribute(value=names, attr="update" | "setdefault")):
                narrowed.add(id(names))
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[module, name, *_]) if _is_own(module):
                narrowed.add(id(module))
                yield _known_of(name)
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[module, *_]):
                narrowed.add(id(module))
            case ast.Call(func=ast.Name(id="eval" | "exec")):
                yield Lookup()
            case ast.expr() if id(inner) not in narrowed and (_is_namespace(inner, in_function) or _is_own(inner)):
                yield Lookup()


def _is_namespace(node: ast.expr, in_function: bool) -> bool:
    """Return whether an expression gives the names of its module."""
    match node:
        case ast.Call(func=ast.Name(id="globals"), args=[]):
            return True
        case ast.Call(func=ast.Name(id="vars" | "locals"), args=[]):
            return not in_function
        case ast.Call(func=ast.Name(id="vars"), args=[module]) | ast.Attribute(value=module, attr="__dict__"):
            return _is_own(module)
        case _:
            return False


def _is_own(node: ast.expr) -> bool:
    """Return whether an expression gives its own module."""
    match node:
        case ast.Subscript(value=modules, slice=ast.Name(id="__name__")):
            return (dotted_name(modules) or [""])[-1] == "modules"
        case ast.Call(func=func, args=[ast.Name(id="__name__")]):
            return isinstance(func, ast.Name | ast.Attribute) and (dotted_name(func) or [""])[-1] == "import_module"
        case _:
            return False


def _known_of(name: ast.expr) -> Lookup:
    """Return what an expression shows of its text."""
    text = constant_text(name)
    if text is not None:
        return Lookup(text, exact=True)
    match name:
        case ast.JoinedStr(values=[first, *_, last]):
            return Lookup(constant_text(first) or "", constant_text(last) or "")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return Lookup(_known_of(left).first, "" if constant_text(right) is None else constant_text(right) or "")
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return Lookup(text.partition("%")[0])
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return Lookup(text.partition("{")[0])
        case _:
            return Lookup()
