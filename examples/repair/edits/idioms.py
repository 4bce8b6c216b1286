"""Known pitfalls of the language: shared defaults, shared rows, late binding, a list changed during iteration."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..source import Function, parameters
from .base import Change, Edit, View
from .names import self_attributes, view_name

_MUTABLE = ast.List | ast.Dict | ast.Set | ast.ListComp


def shared_defaults(view: View) -> Iterator[Edit]:
    """`def f(seen=[])` keeps its list from call to call."""
    for function in view.source.functions:
        defaults = function.args.defaults
        pairs = list(zip(function.args.args[len(function.args.args) - len(defaults) :], defaults, strict=True))
        pairs += [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d]
        for arg, default in pairs:
            made = isinstance(default, ast.Call) and view_name(default.func) in ("list", "dict", "set")
            if not isinstance(default, _MUTABLE) and not made:
                continue
            body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            if not body or not view.source.alone(body[0]):
                continue
            at, span = view.source.line_span(body[0]).start, view.source.span(default)
            indent, old = view.source.indent(body[0]), view.source.code(default)
            guard = f"{indent}if {arg.arg} is None:\n{indent}    {arg.arg} = {old}\n"
            yield view.edit(
                body[0], "shared default", 1.0, Change(span.start, span.end, old, "None"), Change(at, at, "", guard)
            )


def shared_attributes(view: View) -> Iterator[Edit]:
    """`items = []` in a class body is one list for all objects."""
    for owner in ast.walk(view.source.tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        init = next((f for f in owner.body if isinstance(f, Function) and f.name == "__init__"), None)
        for item in owner.body:
            target = (
                item.targets[0]
                if isinstance(item, ast.Assign)
                else item.target
                if isinstance(item, ast.AnnAssign)
                else None
            )
            value = item.value if isinstance(item, ast.Assign | ast.AnnAssign) else None
            if not isinstance(target, ast.Name) or not isinstance(value, _MUTABLE | ast.Call):
                continue
            line = f"self.{target.id} = {view.source.code(value)}"
            if init:
                yield from view.insert(init.body[-1], line, "shared attribute", 1.0, after=True)
                yield from view.insert(init.body[0], line, "shared attribute", 0.9)
            else:
                yield from view.insert(item, f"def __init__(self):\n    {line}", "shared attribute", 1.0, after=True)


def shared_rows(view: View) -> Iterator[Edit]:
    """`[[0] * n] * m` is one row m times; `dict.fromkeys(keys, [])` one list for all keys."""
    code = view.source.code
    for node in view.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List) and len(node.left.elts) == 1:
            inner = node.left.elts[0]
            if isinstance(inner, ast.List | ast.BinOp | ast.ListComp | ast.Dict | ast.Call):
                yield from view.replace(
                    node, f"[{code(inner)} for _ in range({code(node.right)})]", "shared row", 1.0
                )
    for call in view.nodes(ast.Call):
        if (
            code(call.func) == "dict.fromkeys"
            and len(call.args) == 2
            and isinstance(call.args[1], _MUTABLE | ast.Call)
        ):
            yield from view.replace(
                call, f"{{key: {code(call.args[1])} for key in {code(call.args[0])}}}", "shared row", 1.0
            )


def late_binding(view: View) -> Iterator[Edit]:
    """A function made in a loop sees the loop variable's last value."""
    for node in ast.walk(view.source.tree):
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            targets: list[str] = []
            for up in view.source.ancestors(node):
                if isinstance(up, ast.For):
                    targets += [n.id for n in ast.walk(up.target) if isinstance(n, ast.Name)]
                elif isinstance(up, ast.ListComp | ast.DictComp | ast.GeneratorExp):
                    targets += [n.id for g in up.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)]
                elif isinstance(up, Function):
                    break
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            used = {n.id for part in body for n in ast.walk(part) if isinstance(n, ast.Name)}
            for name in targets:
                if name in used and name not in {a.arg for a in parameters(node)}:
                    yield from _bound(view, node, name)


def _bound(view: View, node: ast.Lambda | ast.FunctionDef, name: str) -> Iterator[Edit]:
    span, text = view.source.span(node), view.source.text
    start = (
        text.find(f"def {node.name}(", span.start) + len(f"def {node.name}")
        if isinstance(node, ast.FunctionDef)
        else span.start + 6
    )
    known = parameters(node)
    if known:
        at = max(view.source.span(arg).end for arg in known)
        at = max([at, *(view.source.span(d).end for d in node.args.defaults)])
        new = f", {name}={name}"
    elif isinstance(node, ast.Lambda):
        at, new = start, f" {name}={name}"
    else:
        at, new = start + 1, f"{name}={name}"
    yield view.edit(node, "late binding", 1.0, Change(at, at, "", new))


def walked_copies(view: View) -> Iterator[Edit]:
    """A container that is changed by the loop over it."""
    for loop in view.nodes(ast.For):
        iterated = view.source.code(loop.iter)
        base = iterated.split(".items(")[0].split(".keys(")[0].split(".values(")[0]
        text = "".join(view.source.code(statement) for statement in loop.body)
        if (
            any(f"{base}{change}" in text for change in (".remove(", ".pop(", ".append(", ".add(", ".discard(", "["))
            or f"del {base}" in text
        ):
            weight = 1.0 if f"{base}." in text or "del " in text else 0.1
            yield from view.replace(loop.iter, f"list({iterated})", "walked copy", weight)


def declarations(view: View) -> Iterator[Edit]:
    """A missing `super().__init__`, `nonlocal`, `global` or `self.`."""
    for function in view.source.functions:
        owner = view.source.class_of(function)
        if owner and owner.bases and function.name == "__init__":
            named = {
                name.arg
                for base in ast.walk(view.source.tree)
                if isinstance(base, ast.ClassDef) and base is not owner
                for f in base.body
                if isinstance(f, Function) and f.name == "__init__"
                for name in f.args.args
            }
            shared = [a.arg for a in function.args.args if a.arg in named and a.arg != "self"]
            for args in dict.fromkeys((", ".join(shared), "", ", ".join(a.arg for a in function.args.args[1:]))):
                yield from view.insert(function.body[0], f"super().__init__({args})", "declaration", 1.0)
        stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        outer = view.source.function(function)
        names = set(view.source.names_in(outer)) if outer else set()
        for name in sorted(stored & (names | view.source.module_names)):
            word = "nonlocal" if name in names else "global"
            yield from view.insert(function.body[0], f"{word} {name}", "declaration", 1.0)
    for node in view.nodes(ast.Name):
        owner, function = view.source.class_of(node), view.source.function(node)
        if owner and function and isinstance(node.ctx, ast.Store | ast.Load) and node.id != "self":
            if f"self.{node.id}" in self_attributes(view, node):
                yield from view.replace(node, f"self.{node.id}", "attribute", 3.0)


MAKERS = (shared_defaults, shared_attributes, shared_rows, late_binding, walked_copies, declarations)
