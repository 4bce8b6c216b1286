"""Edits of operators: comparisons, arithmetic, boolean logic, signs."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from .base import Change, Edit, View

_COMPARE = re.compile(r"<=|>=|==|!=|<|>|not\s+in\b|in\b|is\s+not\b|is\b")
COMPARISONS: dict[str, dict[str, float]] = {
    "<": {"<=": 1, ">": 0.6, ">=": 0.4, "!=": 0.15, "==": 0.15},
    "<=": {"<": 1, ">=": 0.6, ">": 0.4, "==": 0.15, "!=": 0.1},
    ">": {">=": 1, "<": 0.6, "<=": 0.4, "!=": 0.15, "==": 0.15},
    ">=": {">": 1, "<=": 0.6, "<": 0.4, "==": 0.15, "!=": 0.1},
    "==": {"!=": 0.8, "<=": 0.5, ">=": 0.5, "<": 0.3, ">": 0.3, "in": 0.15, "is": 0.05},
    "!=": {"==": 1, "<": 0.4, ">": 0.4, "<=": 0.2, ">=": 0.2, "not in": 0.1},
    "in": {"not in": 1, "==": 0.2},
    "not in": {"in": 1},
    "is": {"is not": 1, "==": 0.5},
    "is not": {"is": 1, "!=": 0.5},
}
ARITHMETIC: dict[type[ast.operator], tuple[str, dict[str, float]]] = {
    ast.Add: ("+", {"-": 1, "*": 0.5, "|": 0.05}),
    ast.Sub: ("-", {"+": 1, "%": 0.1, "*": 0.1}),
    ast.Mult: ("*", {"+": 0.6, "//": 0.3, "/": 0.4, "**": 0.3, "-": 0.15}),
    ast.Div: ("/", {"//": 1, "*": 0.6, "%": 0.15}),
    ast.FloorDiv: ("//", {"/": 1, "%": 0.7, "*": 0.3, ">>": 0.05}),
    ast.Mod: ("%", {"//": 0.8, "/": 0.1, "*": 0.1}),
    ast.Pow: ("**", {"*": 1}),
    ast.BitAnd: ("&", {"|": 1, "^": 0.5, "-": 0.3}),
    ast.BitOr: ("|", {"&": 1, "^": 0.5, "-": 0.3}),
    ast.BitXor: ("^", {"&": 1, "|": 0.7, "**": 0.3}),
    ast.LShift: ("<<", {">>": 1}),
    ast.RShift: (">>", {"<<": 1}),
}


def comparisons(view: View) -> Iterator[Edit]:
    text = view.source.text
    for node in view.nodes(ast.Compare):
        operands = [node.left, *node.comparators]
        for left, right in itertools.pairwise(operands):
            start, end = view.source.span(left).end, view.source.span(right).start
            found = _COMPARE.search(text, start, end)
            if not found:
                continue
            old = " ".join(found.group().split())
            for new, weight in COMPARISONS[old].items():
                change = Change(found.start(), found.end(), found.group(), new)
                yield view.edit(node, "comparison", weight, change)
            if old in ("in", "not in"):
                yield from view.swap(left, right, "swapped operands", 0.5)


def arithmetic(view: View) -> Iterator[Edit]:
    for node in view.nodes(ast.BinOp):
        symbol, others = ARITHMETIC.get(type(node.op), ("", {}))
        if not symbol or (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
            continue
        for new, weight in others.items():
            if change := view.between(node.left, node.right, symbol, new):
                yield view.edit(node, "arithmetic", weight, change)
        if not isinstance(node.op, ast.Add | ast.Mult) or (isinstance(node.op, ast.Add) and not _numeric(view, node)):
            yield from view.swap(node.left, node.right, "swapped operands")
        if isinstance(node.left, ast.BinOp) and type(node.left.op) is type(node.op):
            yield from view.swap(node.left.right, node.right, "swapped operands", 0.7)
        constant = isinstance(node.right, ast.Constant)
        yield from view.replace(node, view.source.code(node.left), "dropped term", 1.0 if constant else 0.6)
        constant = isinstance(node.left, ast.Constant)
        yield from view.replace(node, view.source.code(node.right), "dropped term", 1.0 if constant else 0.4)
        yield from _regrouped(view, node)
        if isinstance(node.op, ast.FloorDiv):
            left, right = view.source.code(node.left), view.source.code(node.right)
            yield from view.replace(node, f"({left} + {right} - 1) // {right}", "rounding", 1.0)


def _numeric(view: View, node: ast.BinOp) -> bool:
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)]
    types = frozenset().union(*(view.types(name, view.source.code(name)) for name in names))
    return not types & {"str", "list", "tuple"}


def factors(view: View) -> Iterator[Edit]:
    """Add a factor or term that would turn the observed results into the expected ones."""
    for node in view.nodes(ast.stmt):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Return | ast.Assign | ast.AugAssign) and isinstance(value, ast.expr):
            yield from _times(view, value, 1.0)
    for call in view.nodes(ast.Call):
        for arg in call.args:
            if isinstance(arg, ast.BinOp):
                yield from _times(view, arg, 0.7)
    for name in view.nodes(ast.Name):  # what is left of a whole
        parent = view.source.parents.get(name)
        if isinstance(parent, ast.BinOp) and view.types(name, name.id) & {"int", "float"}:
            if name.id.startswith(("percent", "pct")) and not isinstance(parent.op, ast.Div):
                yield from view.replace(name, f"({name.id} / 100)", "factor", 1.0)
            yield from view.replace(name, f"1 - {name.id}", "factor", 0.3)
            yield from view.replace(name, f"1 + {name.id}", "factor", 0.3)
            if isinstance(parent.op, ast.Div) and isinstance(parent.right, ast.Constant) and parent.left is name:
                yield from view.replace(name, f"{parent.right.value} - {name.id}", "factor", 0.5)
                yield from view.replace(name, f"{parent.right.value} + {name.id}", "factor", 0.5)


def _times(view: View, value: ast.expr, weight: float) -> Iterator[Edit]:
    code = view.source.code(value)
    atom = isinstance(value, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
    for factor in view.facts.factors:
        body = code if atom or factor[0] in "+-" else f"({code})"
        yield from view.replace(value, f"{body} {factor}", "factor", weight)


def _regrouped(view: View, node: ast.BinOp) -> Iterator[Edit]:
    """Regroup three operands: `a + b * c` as `(a + b) * c`, and the reverse."""
    code, text = view.source.code, view.source.text
    for inner, left in ((node.left, True), (node.right, False)):
        if not isinstance(inner, ast.BinOp) or type(inner.op) is type(node.op) is ast.Add:
            continue
        outer_op = ARITHMETIC.get(type(node.op), ("",))[0]
        inner_op = ARITHMETIC.get(type(inner.op), ("",))[0]
        if not outer_op or not inner_op:
            continue
        a, b = code(inner.left), code(inner.right)
        c = code(node.right if left else node.left)
        new = f"{a} {inner_op} ({b} {outer_op} {c})" if left else f"({c} {outer_op} {a}) {inner_op} {b}"
        span = view.source.span(node)
        if new != text[span.start : span.end]:
            yield from view.replace(node, new, "grouping", 1.0)


def assignments(view: View) -> Iterator[Edit]:
    """`+=` against `-=` and `=`."""
    for node in view.nodes(ast.AugAssign):
        symbol, others = ARITHMETIC.get(type(node.op), ("", {}))
        for new, weight in (others | {"": 0.7}).items() if symbol else ():
            if change := view.between(node.target, node.value, f"{symbol}=", f"{new}="):
                yield view.edit(node, "augmented assignment", weight, change)
    for plain in view.nodes(ast.Assign):
        target = plain.targets[0]
        if (
            len(plain.targets) > 1
            or isinstance(target, ast.Tuple)
            or (isinstance(target, ast.Name) and isinstance(plain.value, ast.Constant | ast.List))
        ):
            continue
        inside = 1.0 if view.source.loop(plain) or not isinstance(target, ast.Name) else 0.3
        for new, weight in (("+=", 1.0), ("-=", 0.3), ("|=", 0.1), ("*=", 0.1)):
            if change := view.between(target, plain.value, "=", new):
                yield view.edit(plain, "augmented assignment", weight * inside, change)


def booleans(view: View) -> Iterator[Edit]:
    code = view.source.code
    for node in view.nodes(ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        gaps = [view.between(a, b, old, new) for a, b in zip(node.values, node.values[1:], strict=False)]
        changes = [gap for gap in gaps if gap]
        yield view.edit(node, "and/or", 1.0, *changes)
        if len(changes) > 1:
            for change in changes:
                yield view.edit(node, "and/or", 0.5, change)
        for drop in node.values:
            rest = f" {old} ".join(code(value) for value in node.values if value is not drop)
            yield from view.replace(node, rest, "dropped condition", 1.0)
        first = node.values[0]
        if isinstance(first, ast.UnaryOp) and isinstance(first.op, ast.Not):
            rest = f" {old} ".join([code(first.operand), *(code(value) for value in node.values[1:])])
            yield from view.replace(node, f"not ({rest})", "negation", 0.4)
        for inner in node.values:
            if isinstance(inner, ast.BoolOp):  # `a or b and c`: the other grouping
                yield from _regrouped_logic(view, node, inner, old, new)
        if len(node.values) == 2:
            yield from view.swap(node.values[0], node.values[1], "swapped conditions", 0.6)


def _regrouped_logic(view: View, node: ast.BoolOp, inner: ast.BoolOp, old: str, new: str) -> Iterator[Edit]:
    code = view.source.code
    place = node.values.index(inner)
    before = [code(value) for value in node.values[:place]]
    after = [code(value) for value in node.values[place + 1 :]]
    values = [code(value) for value in inner.values]
    if before:
        head = f" {old} ".join([*before, values[0]])
        whole = f" {new} ".join([f"({head})", *values[1:]])
        yield from view.replace(
            node, f" {old} ".join([whole, *after]) if not after else f"({whole}) {old} {after[0]}", "grouping", 1.0
        )
    if after:
        tail = f" {old} ".join([values[-1], *after])
        yield from view.replace(
            node, f" {old} ".join([*before, f" {new} ".join([*values[:-1], f"({tail})"])]), "grouping", 1.0
        )


def conditions(view: View) -> Iterator[ast.expr]:
    """Yield the expressions whose truth decides something."""
    for node in view.nodes(ast.AST):
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.BoolOp):
            yield from node.values


def negations(view: View) -> Iterator[Edit]:
    code = view.source.code
    seen: set[ast.expr] = set()
    for test in conditions(view):
        if test in seen or view.live(test) == 0:
            continue
        seen.add(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield from view.replace(test, code(test.operand), "negation", 1.0)
        elif not isinstance(test, ast.Compare) or len(test.ops) > 1:
            inner = code(test)
            text = f"not {inner}" if not isinstance(test, ast.BoolOp | ast.IfExp) else f"not ({inner})"
            yield from view.replace(test, text, "negation", 1.0)
    for node in view.nodes(ast.Return):
        value = node.value
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not):
            yield from view.replace(value, code(value.operand), "negation", 0.7)
        elif isinstance(value, ast.Name | ast.Call | ast.Attribute | ast.BoolOp) and "negated" in view.facts.hints:
            yield from view.replace(value, f"not ({code(value)})", "negation", 0.7)


def signs(view: View) -> Iterator[Edit]:
    """Add or remove a minus: `inf` for `-inf`, keys of heaps and sorts."""
    code = view.source.code
    for node in view.nodes(ast.AST):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield from view.replace(node, code(node.operand), "sign", 1.0)
        elif isinstance(node, ast.Call) and code(node).replace("'", '"') == 'float("inf")':
            yield from view.replace(node, f"-{code(node)}", "sign", 1.0)
        elif isinstance(node, ast.Lambda) and isinstance(
            node.body, ast.Subscript | ast.Attribute | ast.Call | ast.Name
        ):
            yield from view.replace(node.body, f"-{code(node.body)}", "sign", 1.0)
        elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            for item in node.elts:
                if isinstance(item, ast.Name | ast.Subscript | ast.Attribute | ast.Call):
                    yield from view.replace(item, f"-{code(item)}", "sign", 0.4)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name.startswith("heap"):
                yield from (
                    edit
                    for item in node.args[1:]
                    if not isinstance(item, ast.UnaryOp | ast.Tuple)
                    for edit in view.replace(item, f"-{code(item)}", "sign", 0.5)
                )
            elif name in {f.name for f in view.source.functions}:
                for item in node.args:
                    if isinstance(item, ast.Name) and view.types(item, item.id) & {"int", "float"}:
                        yield from view.replace(item, f"-{item.id}", "sign", 0.3)
        elif isinstance(node, ast.Return) and node.value is not None and "sign" in view.facts.hints:
            yield from view.replace(node.value, f"-({code(node.value)})", "sign", 0.7)


MAKERS = (comparisons, arithmetic, factors, assignments, booleans, negations, signs)
