"""Statements that are missing: a forgotten update, a copy with another name, what follows a loop, a result."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..source import Function, first_line, parameters, used_names
from .base import Edit, View
from .names import compatible, unread_names
from .vocabulary import likeness, opposite

Simple = ast.Assign | ast.AugAssign | ast.Expr | ast.Raise
_INVERSE = (("+= ", "-= "), ("-= ", "+= "), (".append(", ".pop("), (".add(", ".discard("), (".add(", ".remove("),
            ("= True", "= False"), ("= False", "= True"))  # fmt: skip
_CONTAINERS = frozenset({"list", "set", "dict", "deque", "defaultdict", "Counter", "OrderedDict"})
_CHANGERS = frozenset(
    ["append", "add", "pop", "popleft", "appendleft", "extend", "update", "remove", "discard", "insert", "push", "clear", "setdefault"]
)


def positions(view: View, function: Function) -> Iterator[tuple[ast.stmt, bool, float]]:
    """(statement, after it?, how likely something is missing there) for every place in a function."""
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
                yield node, False, near * (0.8 if not place else 0.6)
        last = block[-1]
        ends = isinstance(last, ast.Return | ast.Continue | ast.Break | ast.Raise)
        if not ends and view.source.alone(last) and view.live(last):
            yield last, True, view.live(last)


def updates(view: View) -> Iterator[Edit]:
    """What a loop or a function reads again and again but never changes."""
    for function in view.source.functions:
        places = list(positions(view, function))
        if not places:
            continue
        for text, weight, loop in _forgotten(view, function):
            for node, after, near in places:
                inside = loop is None or any(up is loop for up in view.source.ancestors(node))
                if inside:
                    yield from view.insert(node, text, "missing update", weight * near, after=after)


def _forgotten(view: View, function: Function) -> Iterator[tuple[str, float, ast.stmt | None]]:
    changed = changed_names(function.body)
    names = view.source.names_in(function)
    items = [name for name in names if name not in ("self", "cls")]
    for loop in ast.walk(function):
        if isinstance(loop, ast.While):
            here = changed_names(loop.body)
            read = [n for n in sorted(used_names(loop.test)) if n in names]
            still = not any(n in here for n in read)
            for name in read:
                if name not in here:
                    yield from ((text, 3.0 if still else 1.0, loop) for text in _steps(view, loop, name))
            for name in sorted(n for n in used_names(loop) if n in names and n not in here and n not in read):
                if name in changed_names(function.body) and "int" in view.types(loop, name):
                    yield from ((text, 1.0, loop) for text in _steps(view, loop, name))
            for name in sorted(here):
                if name in names and "int" in view.types(loop, name):
                    yield from ((text, 0.3, loop) for text in (f"{name} += 1", f"{name} -= 1"))
    for name in names:
        types = view.types(function, name)
        tested = any(
            isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.In | ast.NotIn) and _is(n.comparators[0], name)
            for n in ast.walk(function)
        )
        weight = 2.0 if tested else 1.0
        if types & _CONTAINERS and name not in changed:
            for item in items:
                if item != name:
                    if types & {"set"}:
                        yield f"{name}.add({item})", weight, None
                    if types & {"list", "deque"}:
                        yield f"{name}.append({item})", weight, None
                    if types & {"dict", "defaultdict"}:
                        yield from (
                            (f"{name}[{item}] = {value}", weight * 0.5, None)
                            for value in [*items, "result"]
                            if value not in (name, item)
                        )
        elif (
            types & {"int", "float"}
            and len(assigned(function, name)) == 1
            and name not in [a.arg for a in parameters(function)]
        ):
            yield f"{name} += 1", 0.7, None
            yield f"{name} -= 1", 0.2, None
            for item in items:
                if item != name and view.types(function, item) & {"int", "float"}:
                    yield f"{name} += {item}", 0.4, None
                    yield f"{name} = {item}", 0.4, None
                    yield f"{name} = max({name}, {item})", 0.2, None
        elif len(assigned(function, name)) == 1 and name not in [a.arg for a in parameters(function)]:
            for item in items:
                if (
                    item != name
                    and types
                    and compatible(types - {"NoneType"}, view.types(function, item))
                    and types & view.types(function, item)
                ):
                    yield f"{name} = {item}", 0.5, None
    if function.name == "__init__":
        for name in unread_names(view, function):
            yield f"self.{name} = {name}", 5.0, None
    for returned in ast.walk(function):  # a memo that is read and never filled
        if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Subscript):
            table = view.source.code(returned.value.value)
            key = view.source.code(returned.value.slice)
            if isinstance(returned.value.value, ast.Name | ast.Attribute):
                yield from ((f"{table}[{key}] = {item}", 0.5, None) for item in items if item != table)
    owner = view.source.class_of(function)
    if owner:
        yield from _attribute_updates(view, function, items)


def _attribute_updates(view: View, function: Function, items: list[str]) -> Iterator[tuple[str, float, None]]:
    known = sorted({n for (_, n) in view.facts.types if n.startswith("self.")})
    for name in known:
        types = view.types(function, name)
        if types & {"int"}:
            yield f"{name} += 1", 0.6, None
            yield f"{name} -= 1", 0.6, None
        for item in items:
            there = view.types(function, item)
            if types & {"set"}:
                yield f"{name}.add({item})", 0.4, None
            if types & {"list", "deque"}:
                yield f"{name}.append({item})", 0.4, None
            if types & {"dict", "OrderedDict", "defaultdict"}:
                yield f"{name}.pop({item}, None)", 0.3, None
            if types & {"OrderedDict"}:
                yield f"{name}.move_to_end({item})", 1.5, None
            if types & {"int", "float"} and there & {"int", "float"}:
                yield f"{name} += {item}", 0.4, None
                yield f"{name} -= {item}", 0.4, None
            if (
                (types & there
                and compatible(types, there))
                or ("NoneType" in types
                and there - {"int", "str", "list", "dict"})
            ):
                yield f"{name} = {item}", 0.4, None


def _steps(view: View, node: ast.AST, name: str) -> Iterator[str]:
    types = view.types(node, name)
    if not types or types & {"int", "float"}:
        yield from (f"{name} += 1", f"{name} -= 1", f"{name} //= 2", f"{name} //= 10")
    if types & {"list", "deque", "set"}:
        yield from (f"{name}.pop()", f"{name}.pop(0)", f"{name}.popleft()")
    if not types or types - {"int", "float", "str", "list", "set", "dict"}:
        attributes = {
            n.attr for n in ast.walk(view.source.tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
        }
        linked = [a for a in ("next", "left", "right", "parent", "prev", "successor") if a in attributes]
        yield from (f"{name} = {name}.{attribute}" for attribute in linked)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def assigned(function: Function, name: str) -> list[ast.Name]:
    return [
        n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]


def changed_names(body: list[ast.stmt]) -> set[str]:
    """Names that statements assign, or whose container they change."""
    names: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                parent_is_first = False
                names.add(node.id) if not parent_is_first else None
            elif (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
            ):
                names.add(node.value.id)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
            ):
                if node.func.attr in _CHANGERS:
                    names.add(node.func.value.id)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                if "heap" in (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id):
                    names.update(arg.id for arg in node.args if isinstance(arg, ast.Name))
    return names


def repeats(view: View) -> Iterator[Edit]:
    """A statement of the file once more, elsewhere, perhaps with one name or sign turned."""
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


def ingredients(view: View, function: Function, scope: set[str]) -> dict[str, float]:
    """Statement texts with weights: this function's own first, then its class's and its file's."""
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
            if near < 1 and not used_names(node) <= scope | set(dir(__builtins__)):
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
    """What a loop does to each group, once more for the last group behind the loop."""
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


def returns(view: View) -> Iterator[Edit]:
    """A result that a function forgets, an early way out of a branch or a loop."""
    for function in view.source.functions:
        if not (view.live(function) or any(view.live(node) for node in function.body)):
            continue
        names = [name for name in view.source.names_in(function) if name not in ("self", "cls")]
        given = [view.source.code(n.value) for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]
        options = (
            dict.fromkeys(given, 1.0) | dict.fromkeys(names, 1.0) | {"True": 0.5, "False": 0.5, "self": 0.2}
        )
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


MAKERS = (updates, repeats, afterwards, returns)
