"""Missing statements: an update, a copy with another name, a statement after a loop, a result."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..source import BUILTINS, Function, first_line, parameters, used_names
from .base import Edit, View
from .names import compatible
from .vocabulary import likeness, opposite

Simple = ast.Assign | ast.AugAssign | ast.Expr | ast.Raise
_INVERSE = (("+= ", "-= "), ("-= ", "+= "), (".append(", ".pop("), (".add(", ".discard("), (".add(", ".remove("),
            ("= True", "= False"), ("= False", "= True"))  # fmt: skip
_CONTAINERS = frozenset({"list", "set", "dict", "deque", "defaultdict", "Counter", "OrderedDict"})
_CHANGERS = frozenset(
    [
        "append",
        "add",
        "pop",
        "popleft",
        "appendleft",
        "extend",
        "update",
        "remove",
        "discard",
        "insert",
        "push",
        "clear",
        "setdefault",
    ]
)


def positions(view: View, function: Function) -> Iterator[tuple[ast.stmt, bool, float]]:
    """Return (statement, after it?, how likely something is missing there) for every place in a function."""
    for block in view.source.blocks():
        if (
            not any(up is function for up in view.source.ancestors(block[0]))
            or view.source.function(block[0]) is not function
        ):
            continue
        header = view.source.parents[block[0]]
        for place, node in enumerate(block):
            if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or not view.source.alone(node):
                continue
            near = max(view.live(node), view.live(block[place - 1]) if place else view.live(header))
            if near and not view.source.line(first_line(node)).lstrip().startswith("elif"):
                yield node, False, 0.8 if not place else 0.6
        last = block[-1]
        ends = isinstance(last, ast.Return | ast.Continue | ast.Break | ast.Raise)
        if not ends and view.source.alone(last) and view.live(last):
            yield last, True, 1.0


def repeats(view: View) -> Iterator[Edit]:
    """Repeat a statement of the file elsewhere, perhaps with one name or sign changed."""
    for function in view.source.functions:
        places = list(positions(view, function))
        if not places:
            continue
        scope = {*view.source.names_in(function), *view.source.module_names, "self"}
        for text, weight in ingredients(view, function, scope).items():
            for node, after, near in places:
                if (after is False and view.source.code(node) == text) or (after and view.source.code(node) == text):
                    continue
                yield from view.insert(node, text, "repeated statement", weight * near, after=after)


def mirrors(view: View) -> Iterator[Edit]:
    """Add the other half of a pair: `right` after `left`, or a removal beside other removals."""
    for function in view.source.functions:
        places = list(positions(view, function))
        here = {view.source.code(node) for node, _, _ in places}
        scope = {*view.source.names_in(function), *view.source.module_names, "self"}
        for original in ast.walk(function) if places else ():
            if not isinstance(original, Simple) or original.lineno != original.end_lineno:
                continue
            text = view.source.code(original)
            for mirrored, weight in _varied(view, original, text, scope):
                if mirrored in here or weight < 0.6:
                    continue
                verb = re.search(r"\.\w+\(|[-+]=", mirrored)
                for node, after, _ in places:
                    kin = verb is not None and verb.group() in view.source.code(node) and isinstance(node, Simple)
                    if node is original or (kin and weight < 1):
                        yield from view.insert(node, mirrored, "mirrored statement", weight, after=True)
                        if not after:
                            yield from view.insert(node, mirrored, "mirrored statement", 0.6 * weight)


def ingredients(view: View, function: Function, scope: set[str]) -> dict[str, float]:
    """Return texts of statements with weights: first this function's, then its class's and its file's."""
    found: dict[str, float] = {}
    for other in [function, *(f for f in view.source.functions if f is not function)]:
        near = (
            1.0
            if other is function
            else 0.5
            if view.source.class_of(other) is view.source.class_of(function)
            else 0.2
        )
        for node in ast.walk(other):
            if not isinstance(node, Simple) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            if node.lineno != node.end_lineno:
                continue
            text = view.source.code(node)
            if near < 1 and not used_names(node) <= scope | BUILTINS:
                continue
            found[text] = max(found.get(text, 0), near)
            for varied, weight in _varied(view, node, text, scope):
                found.setdefault(varied, near * weight)
    return found


def _varied(view: View, node: ast.stmt, text: str, scope: set[str]) -> Iterator[tuple[str, float]]:
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text))
    known = scope | {n.attr for n in ast.walk(view.source.tree) if isinstance(n, ast.Attribute)}
    turned = text
    for word in words:
        partners = [other for other in sorted(known) if opposite(word, other)]
        for other in partners:
            yield re.sub(rf"\b{word}\b", other, text), 1.0
        if partners:
            turned = re.sub(rf"\b{word}\b", partners[0], turned)
    if turned != text:
        yield turned, 1.0
    for old, new in _INVERSE:
        if old in text:
            yield (
                text.replace(old, new, 1)
                if not new.startswith(".pop")
                else re.sub(r"\.append\(.*\)$", ".pop()", text),
                0.7,
            )
    for name in sorted(used_names(node) & scope):
        for other in sorted(scope):
            if other != name and other not in words and likeness(name, other) >= 2 and not opposite(name, other):
                if compatible(view.types(node, name), view.types(node, other)):
                    yield re.sub(rf"\b{name}\b", other, text), 0.3


def afterwards(view: View) -> Iterator[Edit]:
    """Do what a loop does to each group once more for the last group, after the loop."""
    for loop in view.nodes(ast.stmt):
        if not isinstance(loop, ast.For | ast.While) or not view.source.alone(loop):
            continue
        for node in ast.walk(loop):
            if isinstance(node, Simple) and node.lineno == node.end_lineno and not isinstance(node, ast.Raise):
                text = view.source.code(node)
                yield from view.insert(loop, text, "after the loop", 1.0, after=True)
                for name in sorted(used_names(node)):
                    if view.types(node, name) & {"list", "str", "dict", "int"} and f"{name}." not in text:
                        yield from view.insert(loop, f"if {name}:\n    {text}", "after the loop", 1.0, after=True)


def normalised(view: View) -> Iterator[Edit]:
    """Normalise a parameter first: `text = text.lower()`, `items = list(items)`."""
    forms = {
        "str": ("{0}.lower()", "{0}.strip()", "{0}.upper()"), "list": ("list({0})", "sorted({0})", "{0}[:]"),
        "int": ("abs({0})",), "float": ("abs({0})",), "dict": ("dict({0})",), "set": ("set({0})",), "tuple": ("list({0})", "sorted({0})"),
    }  # fmt: skip
    for function in view.source.functions:
        body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        if not body or not any(view.live(statement) for statement in body):
            continue
        for arg in parameters(function):
            for kind in sorted(view.types(function, arg.arg)):
                for form in forms.get(kind, ()):
                    text = f"{arg.arg} = {form.format(arg.arg)}"
                    for place in body:
                        yield from view.insert(place, text, "normalised", 1.0 if place is body[0] else 0.3)


def returns(view: View) -> Iterator[Edit]:
    """Add a forgotten result, or an early exit from a branch or a loop."""
    for function in view.source.functions:
        if not (view.live(function) or any(view.live(node) for node in function.body)):
            continue
        names = [name for name in view.source.names_in(function) if name not in ("self", "cls")]
        given = [view.source.code(n.value) for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]
        options = dict.fromkeys(given, 1.0) | dict.fromkeys(names, 1.0) | {"True": 0.5, "False": 0.5, "self": 0.2}
        last = function.body[-1]
        if not isinstance(last, ast.Return | ast.Raise) and view.source.alone(last):
            boost = 4.0 if "none" in view.facts.hints else 1.0
            for text, weight in options.items():
                yield from view.insert(last, f"return {text}", "missing return", weight * boost, after=True)
        for node, after, near in positions(view, function):
            if not after or not isinstance(
                view.source.parents[node], ast.If | ast.For | ast.While | ast.Try | ast.ExceptHandler | ast.With
            ):
                continue
            if view.source.loop(node):
                yield from view.insert(node, "continue", "missing exit", 0.8 * near, after=True)
                yield from view.insert(node, "break", "missing exit", 1.0 * near, after=True)
            for text in ("", *dict.fromkeys(given), "True", "False"):
                yield from view.insert(node, f"return {text}".strip(), "missing exit", 0.5 * near, after=True)


MAKERS = (mirrors, repeats, normalised, afterwards, returns)
