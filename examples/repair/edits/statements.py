"""Edits of whole statements: removed, swapped, moved out of or into a block, or leaving it in another way."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from .base import Change, Edit, View

Compound = ast.If | ast.For | ast.While | ast.With | ast.Try


def removals(view: View) -> Iterator[Edit]:
    for node in view.nodes(ast.stmt):
        simple = isinstance(
            node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return | ast.Continue | ast.Break | ast.Raise
        )
        guard = isinstance(node, ast.If) and not node.orelse and len(node.body) == 1
        if not (simple or guard) or not view.source.alone(node) or _is_docstring(node):
            continue
        if view.source.line(node.lineno).lstrip().startswith("elif"):
            continue
        span = view.source.line_span(node)
        old = view.source.text[span.start : span.end]
        only = len(view.source.block(node)) == 1
        new = f"{view.source.indent(node)}pass\n" if only else ""
        yield view.edit(node, "removed statement", 0.3 if only else 1.0, Change(span.start, span.end, old, new))
        if isinstance(node, ast.If):  # what it guards, always
            yield from _unwrapped(view, node)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.expr):
            code = view.source.code(node.value)
            yield from view.replace(node, "return", "return", 0.1)
            if view.source.function(node) and any(
                isinstance(n, ast.Yield) for n in ast.walk(view.source.function(node) or node)
            ):
                yield from view.replace(node, f"yield {code}", "return", 1.0)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _unwrapped(view: View, node: ast.If) -> Iterator[Edit]:
    span = view.source.line_span(node)
    body = view.source.text[view.source.line_span(node.body[0]).start : view.source.line_span(node.body[-1]).end]
    if view.source.alone(node.body[0]):
        old, indent = view.source.text[span.start : span.end], view.source.indent(node)
        new = _reindent(body, view.source.indent(node.body[0]), indent)
        yield view.edit(node, "dropped condition", 0.4, Change(span.start, span.end, old, new))


def _reindent(text: str, old: str, new: str) -> str:
    return "".join(
        new + line[len(old) :] if line.startswith(old) else line for line in text.splitlines(keepends=True)
    )


def swaps(view: View) -> Iterator[Edit]:
    """Swap neighbouring statements."""
    for block in view.source.blocks():
        for one, two in itertools.pairwise(block):
            if view.live(one) and view.live(two) and not _is_docstring(one) and not _definition(one, two):
                if not (view.source.alone(one) and view.source.alone(two)):
                    continue
                simple = not isinstance(one, Compound) and not isinstance(two, Compound)
                a, b = view.source.line_span(one), view.source.line_span(two)
                first, second = view.source.text[a.start : a.end], view.source.text[b.start : b.end]
                gap = view.source.text[a.end : b.start]
                if not second.endswith("\n"):
                    second += "\n"
                old = view.source.text[a.start : b.end]
                weight = 1.0 if simple else 0.5
                yield view.edit(one, "swapped statements", weight, Change(a.start, b.end, old, second + gap + first))
    for branch in view.nodes(ast.If):
        if branch.orelse and not (len(branch.orelse) == 1 and isinstance(branch.orelse[0], ast.If)):
            yield from _swapped_branches(view, branch)


def _definition(*nodes: ast.stmt) -> bool:
    return any(isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom) for n in nodes)


def _swapped_branches(view: View, node: ast.If) -> Iterator[Edit]:
    a = view.source.line_span(node.body[0]).start, view.source.line_span(node.body[-1]).end
    b = view.source.line_span(node.orelse[0]).start, view.source.line_span(node.orelse[-1]).end
    if view.source.alone(node.body[0]) and view.source.alone(node.orelse[0]) and a[1] <= b[0]:
        one, two = view.source.text[a[0] : a[1]], view.source.text[b[0] : b[1]]
        yield view.edit(node, "swapped statements", 0.4, Change(*a, one, two), Change(*b, two, one))


def moves(view: View) -> Iterator[Edit]:
    """Move the last statement of a block behind it, or what follows a block to its end or start."""
    for block in view.source.blocks():
        for place, outer in enumerate(block):
            if not isinstance(outer, Compound) or not view.source.alone(outer):
                continue
            for body in (outer.body, getattr(outer, "orelse", [])):
                if len(body) > 1 and view.live(body[-1]) and view.source.alone(body[-1]):
                    yield from _moved(
                        view, body[-1], view.source.line_span(outer).end, view.source.indent(outer), 1.0
                    )
                if len(body) > 2 and view.live(body[-2]) and view.source.alone(body[-2]):
                    yield from _moved(
                        view, body[-2], view.source.line_span(outer).end, view.source.indent(outer), 0.2
                    )
                if (
                    len(body) > 1
                    and isinstance(outer, ast.For | ast.While)
                    and view.source.alone(body[0])
                    and view.live(body[0])
                ):
                    yield from _moved(
                        view, body[0], view.source.line_span(outer).start, view.source.indent(outer), 0.5
                    )
            if place + 1 < len(block) and not isinstance(block[place + 1], Compound):
                after = block[place + 1]
                if view.live(after) and view.source.alone(after) and view.source.alone(outer.body[-1]):
                    end = view.source.line_span(outer.body[-1]).end
                    yield from _moved(view, after, end, view.source.indent(outer.body[0]), 0.7)
                    for inner in ast.walk(outer):
                        if isinstance(inner, Compound) and inner is not outer and view.source.alone(inner.body[-1]):
                            deeper = view.source.line_span(inner.body[-1]).end
                            yield from _moved(view, after, deeper, view.source.indent(inner.body[0]), 0.3)
            if place and isinstance(outer, ast.For | ast.While) and isinstance(block[place - 1], ast.Assign):
                before = block[place - 1]
                if view.live(before) and view.source.alone(before) and view.source.alone(outer.body[0]):
                    start = view.source.line_span(outer.body[0]).start
                    yield from _moved(view, before, start, view.source.indent(outer.body[0]), 0.8)
            if place > 1 and isinstance(outer, ast.For | ast.While) and isinstance(block[place - 2], ast.Assign):
                before = block[place - 2]
                if view.live(before) and view.source.alone(before) and view.source.alone(outer.body[0]):
                    start = view.source.line_span(outer.body[0]).start
                    yield from _moved(view, before, start, view.source.indent(outer.body[0]), 0.6)


def _moved(view: View, node: ast.stmt, to: int, indent: str, weight: float) -> Iterator[Edit]:
    span = view.source.line_span(node)
    old = view.source.text[span.start : span.end]
    new = _reindent(old if old.endswith("\n") else f"{old}\n", view.source.indent(node), indent)
    if not view.source.text[:to].endswith("\n"):
        new = "\n" + new
    if isinstance(node, ast.Return):
        weight *= 2
    if to >= span.end or to <= span.start:
        yield view.edit(
            node, "moved statement", weight, Change(span.start, span.end, old, ""), Change(to, to, "", new)
        )


def exits(view: View) -> Iterator[Edit]:
    """Exchange `break` and `continue`, `if` and `while`, `elif` and `if`."""
    text = view.source.text
    for node in view.nodes(ast.stmt):
        if isinstance(node, ast.Return) and view.source.loop(node):
            yield from view.replace(node, "break", "exit", 0.7)
            yield from view.replace(node, "continue", "exit", 0.5)
        if isinstance(node, ast.Break | ast.Continue | ast.Pass):
            for word in ("break", "continue", "pass"):
                yield from view.replace(node, word, "exit", 1.0 if word != "pass" else 0.5)
        elif isinstance(node, ast.If | ast.While):
            start = view.source.span(node).start
            if word := re.match(r"(elif|if|while)\b", text[start:]):
                old = word.group()
                others = {"if": (("while", 0.5), ("elif", 0.7)), "elif": (("if", 1.0),), "while": (("if", 0.5),)}
                for new, weight in others[old]:
                    yield view.edit(node, "branching", weight, Change(start, start + len(old), old, new))
            if isinstance(node, ast.While) and view.source.code(node.test) not in ("True", "1"):
                yield from view.replace(node.test, "True", "branching", 0.1)
            if isinstance(node, ast.If) and node.orelse and not isinstance(node.orelse[0], ast.If):
                yield from _without_else(view, node)


def _without_else(view: View, node: ast.If) -> Iterator[Edit]:
    """Run the else branch always."""
    last = view.source.line_span(node.body[-1]).end
    first = view.source.line_span(node.orelse[0])
    end = view.source.line_span(node.orelse[-1]).end
    if view.source.alone(node.orelse[0]):
        old = view.source.text[last:end]
        body = view.source.text[first.start : end]
        yield view.edit(
            node,
            "branching",
            0.4,
            Change(last, end, old, _reindent(body, view.source.indent(node.orelse[0]), view.source.indent(node))),
        )


def results(view: View) -> Iterator[Edit]:
    """Return another variable or constant, keep a result that was dropped, or use `yield` for `return`."""
    code = view.source.code
    for node in view.nodes(ast.Return):
        function = view.source.function(node)
        if function is None:
            continue
        value = code(node.value) if node.value else ""
        options = {name: 0.5 for name in view.source.names_in(function) if name not in ("self", "cls")}
        others = [code(n.value) for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]
        options |= dict.fromkeys(others, 1.0)
        for literal in (*view.facts.expected, "True", "False", "None", "0", "[]"):
            options.setdefault(literal, 0.3)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):  # it depends
            for name in view.source.names_in(function):
                types = view.types(node, name)
                if types & {"int", "float"}:
                    options |= {f"{name} == 0": 0.5, f"{name} > 0": 0.15}
                elif name not in ("self", "cls"):
                    options |= {f"not {name}": 0.7, f"{name} is None": 0.1} | (
                        {f"bool({name})": 0.2} if types else {}
                    )
        for text, weight in options.items():
            if text != value:
                yield from view.replace(node, f"return {text}", "return", weight * (3.0 if not value else 1.0))
    for statement in view.nodes(ast.Expr):
        call = statement.value
        if isinstance(call, ast.Yield) and call.value is not None:
            yield from view.replace(call, f"yield from {code(call.value)}", "return", 0.7)
        elif isinstance(call, ast.YieldFrom):
            yield from view.replace(call, f"yield {code(call.value)}", "return", 0.7)
        elif isinstance(call, ast.Call):
            yield from view.replace(statement, f"return {code(call)}", "return", 1.0)
            if isinstance(call.func, ast.Attribute):
                base = code(call.func.value)
                yield from view.replace(statement, f"{base} = {code(call)}", "unkept result", 1.0)
            elif call.args and isinstance(call.args[0], ast.Name):
                yield from view.replace(statement, f"{code(call.args[0])} = {code(call)}", "unkept result", 1.0)
        elif isinstance(call, ast.Compare) and len(call.ops) == 1 and isinstance(call.ops[0], ast.Eq):
            yield from view.replace(
                statement, f"{code(call.left)} = {code(call.comparators[0])}", "unkept result", 5.0
            )
    for kept in view.nodes(ast.Assign):
        if (
            isinstance(kept.value, ast.Call)
            and isinstance(kept.value.func, ast.Attribute)
            and kept.value.func.attr in ("sort", "append", "extend", "reverse", "add", "update", "insert", "remove")
        ):
            yield from view.replace(kept, code(kept.value), "unkept result", 5.0)
        elif isinstance(kept.value, ast.Call):
            yield from view.replace(kept, f"return {code(kept.value)}", "return", 0.1)


MAKERS = (removals, swaps, moves, exits, results)
