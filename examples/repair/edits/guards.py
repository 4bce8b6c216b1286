"""Missing cases: a guard at the start of a function, or one more condition in a test.

Guards are derived from data: the traced suite shows which simple predicates hold when failing tests call a function,
and never when passing tests do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..source import BUILTINS, Function, first_line, used_names
from .base import Edit, View
from .names import compatible
from .vocabulary import likeness


def mined(view: View, function: Function) -> list[tuple[str, float]]:
    """Return predicates over a function's arguments that failing calls meet, the most significant first."""
    line = first_line(function)
    found: dict[str, float] = {}
    for at, predicate, failing, passing in view.facts.holds:
        if at != line:
            continue
        apart = 1.0 if not passing else 0.3 / (1 + passing)
        simple = (
            1.0
            if predicate.startswith("not ") or " is None" in predicate
            else 0.8
            if "self." not in predicate
            else 0.5
        )
        found[predicate] = apart * simple * (failing / (failing + 1))
    return sorted(found.items(), key=lambda item: -item[1])[:12]


def guards(view: View) -> Iterator[Edit]:
    for function in view.source.functions:
        body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        if not body or not any(view.live(statement) for statement in body):
            continue
        for predicate, weight in mined(view, function):
            for outcome, share in _outcomes(view, function, predicate).items():
                text = f"if {predicate}:\n    {outcome}"
                yield from view.insert(body[0], text, "missing guard", weight * share)
                for later in body[1:3]:
                    yield from view.insert(later, text, "missing guard", 0.1 * weight * share)


def _outcomes(view: View, function: Function, predicate: str) -> dict[str, float]:
    """Return what a guard may do: raise what the tests expect, return what they expect, or what is returned elsewhere."""
    raised = [view.source.code(n) for n in ast.walk(view.source.tree) if isinstance(n, ast.Raise) and n.exc]
    options = {f'raise {error}("{predicate}")': 1.5 for error in view.facts.raises}
    if view.facts.raises:
        return options | {text: 1.0 for text in raised if any(error in text for error in view.facts.raises)}
    params = {arg.arg for arg in function.args.args}
    given = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
    for node in given:
        if node.value is None:
            options["return"] = 0.7
        elif used_names(node.value) <= params | BUILTINS | view.source.module_names:
            options[f"return {view.source.code(node.value)}"] = 0.7
    for literal in view.facts.expected:
        options[f"return {literal}"] = 1.0
    for literal in ("None", "[]", "0", "False", "True", '""', "{}", "1", "set()", "[[]]", '[""]'):
        options.setdefault(f"return {literal}", 0.3)
    for name in sorted(params - {"self", "cls"}):
        options.setdefault(f"return {name}", 0.4)
    if not any(node.value for node in given):
        options["return"] = 1.0
    shapes = view.types(function.body[0], "return")
    if shapes:  # what it returned where it returned: other shapes are unlikely
        options = {
            text: w if shape_of(view, function, text) in (*shapes, "") else 0.15 * w for text, w in options.items()
        }
    for index in (n for n in sorted(params) if predicate.startswith(f"len({n})")):
        options[f"return {index}[0]"] = 0.5
    return options


def shape_of(view: View, function: Function, text: str) -> str:
    """Return the type of what `return …` gives, if it is known; else ""."""
    value = text.removeprefix("return").strip()
    try:
        return type(ast.literal_eval(value or "None")).__name__
    except (ValueError, SyntaxError):
        types = view.types(function.body[0], value)
        return next(iter(types)) if len(types) == 1 else ""


def additions(view: View) -> Iterator[Edit]:
    """Add one condition to a test: from other tests of the file, from predicates, or from what its indices need."""
    code = view.source.code
    for node in view.nodes(ast.stmt):
        if not isinstance(node, ast.If | ast.While):
            continue
        function = view.source.function(node)
        if function is None:
            continue
        test = code(node.test)
        options = _conditions(view, node, function)
        for text, weight in options.items():
            if text == test or not text:
                continue
            left = f"({test})" if isinstance(node.test, ast.BoolOp | ast.IfExp) else test
            right = f"({text})" if " and " in text or " or " in text else text
            yield from view.replace(node.test, f"{left} and {right}", "added condition", weight)
            yield from view.replace(node.test, f"{left} or {right}", "added condition", weight)
            if "[" in test or "." in test:
                yield from view.replace(node.test, f"{right} and {left}", "added condition", weight)
            yield from view.replace(node.test, text, "other condition", 0.4 * weight)


def _conditions(view: View, node: ast.If | ast.While, function: Function) -> dict[str, float]:
    code = view.source.code
    scope = {*view.source.names_in(function), *view.source.module_names, *BUILTINS, "self"}
    found: dict[str, float] = {}
    for other in ast.walk(view.source.tree):
        if (
            isinstance(other, ast.If | ast.While | ast.IfExp)
            and other is not node
            and used_names(other.test) <= scope
        ):
            same = view.source.function(other) is function
            parts = other.test.values if isinstance(other.test, ast.BoolOp) else [other.test]
            for part in parts:
                found.setdefault(code(part), 0.6 if same else 0.2)
    for predicate, weight in mined(view, function)[:5]:
        found.setdefault(predicate, weight)
        if " in " not in predicate and "==" not in predicate and not predicate.startswith("not "):
            continue
        found.setdefault(predicate[4:] if predicate.startswith("not ") else f"not {predicate}", 0.3 * weight)
    names = [n for n in view.source.names_in(function) if n not in ("self", "cls")]
    for inner in ast.walk(node.test):  # the same comparison of other names
        if isinstance(inner, ast.Compare) and isinstance(inner.left, ast.Name):
            for name in names:
                if (
                    name != inner.left.id
                    and likeness(name, inner.left.id) >= 2
                    and compatible(view.types(node, name), view.types(node, inner.left.id))
                ):
                    text = code(inner)
                    found.setdefault(name + text[len(inner.left.id) :], 0.5)
    for index in ast.walk(node):
        if (
            isinstance(index, ast.Subscript)
            and isinstance(index.slice, ast.Name)
            and isinstance(index.value, ast.Name)
        ):
            found.setdefault(f"{index.slice.id} < len({index.value.id})", 0.5)
            found.setdefault(f"{index.slice.id} >= 0", 0.3)
            found.setdefault(f"{index.slice.id} in {index.value.id}", 0.3)
    for name in names:
        types = view.types(node, name)
        if (
            types & {"list", "deque", "dict", "set"}
            or "NoneType" in types
            or types & {"Node", "TreeNode", "ListNode"}
        ):
            found.setdefault(name, 0.5)
            if "NoneType" in types:
                found.setdefault(f"{name} is not None", 0.4)
        if types & {"set", "dict"}:
            for item in names:
                if item != name and not view.types(node, item) & {"list", "dict", "set"}:
                    found.setdefault(f"{item} not in {name}", 0.5)
    return found


def skips(view: View) -> Iterator[Edit]:
    """Let a loop skip some items: known ones, empty ones, missing ones."""
    for loop in view.nodes(ast.stmt):
        function = view.source.function(loop)
        if not isinstance(loop, ast.For | ast.While) or function is None or not view.source.alone(loop.body[0]):
            continue
        targets = (
            [n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)] if isinstance(loop, ast.For) else []
        )
        firsts = [
            n.id
            for s in loop.body[:2]
            if isinstance(s, ast.Assign)
            for t in s.targets
            for n in ast.walk(t)
            if isinstance(n, ast.Name)
        ]
        place = (
            loop.body[min(len(firsts), len(loop.body) - 1)]
            if isinstance(loop, ast.While) and firsts
            else loop.body[0]
        )
        for item in dict.fromkeys([*targets, *firsts]):
            for name in view.source.names_in(function):
                types = view.types(loop, name)
                if types & {"set", "dict"} and name != item:
                    yield from view.insert(place, f"if {item} in {name}:\n    continue", "missing guard", 0.6)
                    yield from view.insert(place, f"if {item} not in {name}:\n    continue", "missing guard", 0.2)
                elif name != item and types & {"int", "str"} and compatible(types, view.types(loop, item)):
                    yield from view.insert(place, f"if {item} == {name}:\n    continue", "missing guard", 0.1)
            yield from view.insert(place, f"if not {item}:\n    continue", "missing guard", 0.3)
            yield from view.insert(place, f"if {item} is None:\n    continue", "missing guard", 0.15)


def guarded(view: View) -> Iterator[Edit]:
    """Run a statement only in some cases: `if item not in seen:` in front of it."""
    for node in view.nodes(ast.stmt):
        function = view.source.function(node)
        if (
            function is None
            or not isinstance(node, ast.Assign | ast.AugAssign | ast.Expr)
            or not view.source.alone(node)
        ):
            continue
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or node.lineno != node.end_lineno:
            continue
        names = [n for n in view.source.names_in(function) if n in used_names(node) and n not in ("self", "cls")]
        options: dict[str, float] = {}
        for name in names:
            types = view.types(node, name)
            options |= {name: 1.0, f"not {name}": 0.2}
            if "NoneType" in types:
                options[f"{name} is not None"] = 0.7
            if types & {"int", "float"}:
                options[f"{name} > 0"] = 0.3
            for other in view.source.names_in(function):
                there = view.types(node, other)
                if other != name and there & {"set", "dict", "list"} and not types & {"set", "dict", "list"}:
                    options |= {f"{name} not in {other}": 1.0, f"{name} in {other}": 0.4}
                elif other != name and other in names and types & there & {"int", "float"}:
                    options |= {f"{name} {sign} {other}": 0.3 for sign in ("<", ">", "!=")}
        for test, weight in options.items():
            yield from view.replace(node, _under(view, node, test), "guarded statement", weight)


def _under(view: View, node: ast.stmt, test: str) -> str:
    return f"if {test}:\n{view.source.indent(node)}    {view.source.code(node)}"


MAKERS = (guards, additions, skips, guarded)
