"""Edits of names: one variable, attribute, function or method for another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..source import BUILTINS, Function, parameters, used_names
from .base import Edit, View
from .vocabulary import ERRORS, FUNCTIONS, METHODS, likeness

_NUMBERS = frozenset({"int", "float", "bool"})
_BUILT_IN = frozenset(
    {"int", "float", "bool", "str", "list", "dict", "set", "tuple", "NoneType", "function", "deque"}
)


def variables(view: View) -> Iterator[Edit]:
    """Use another variable of the same type. A variable that is never read is the likeliest."""
    for node in view.nodes(ast.Name):
        function = view.source.function(node)
        parent = view.source.parents.get(node)
        if function is None or (isinstance(parent, ast.Call) and parent.func is node) or node.id in BUILTINS:
            continue
        if isinstance(node.ctx, ast.Load) and view.types(node, node.id) - _BUILT_IN:
            for attribute in stored_attributes(view.source.tree):
                yield from view.replace(node, f"{node.id}.{attribute}", "attribute", 0.5)
        for name, weight in alternatives(view, node, node.id, function):
            stored = isinstance(node.ctx, ast.Store)
            yield from view.replace(node, name, "variable", weight * (0.25 if stored else 1.0))


def alternatives(view: View, node: ast.AST, old: str, function: Function) -> Iterator[tuple[str, float]]:
    owner = view.source.class_of(node)
    unread = unread_names(view, function) | (unread_attributes(view, owner) if owner else set())
    line = getattr(node, "lineno", 0)
    looped = view.source.loop(node) is not None
    parent = view.source.parents.get(node)
    sized = isinstance(parent, ast.Call) and view_name(parent.func) in ("len", "bool", "print", "str")
    types = view.types(node, old) if not sized else frozenset()
    for name in [*view.source.names_in(function), *_comprehension_names(view, node), *self_attributes(view, node)]:
        if name == old or name in ("self", "cls"):
            continue
        if not compatible(types, view.types(node, name)):
            continue
        if not looped and not name.startswith("self.") and _bound_later(function, name, line):
            continue
        yield name, likeness(old, name) * (6.0 if name in unread else 1.0)
    for name in view.source.module_names:
        if name.isupper() and name != old and compatible(types, view.types(view.source.tree, name)):
            yield name, 0.7 * likeness(old, name)


def renamings(view: View) -> Iterator[Edit]:
    """Use one name or attribute for another, everywhere in a statement."""
    for node in view.nodes(ast.stmt):
        end, function = node.end_lineno or node.lineno, view.source.function(node)
        if isinstance(node, Function | ast.ClassDef) or end - node.lineno > 4 or function is None:
            continue
        words = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        words += [n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)]
        known = dict.fromkeys([*view.source.names_in(function), *stored_attributes(view.source.tree)])
        for old in dict.fromkeys(word for word in words if words.count(word) > 1 and word in known):
            for new in known:
                if new == old or "self" in (old, new) or not compatible(view.types(node, old), view.types(node, new)):
                    continue
                if end == node.lineno or likeness(old, new) >= 3:
                    renamed = re.sub(rf"\b{old}\b", new, view.source.code(node))
                    yield from view.replace(node, renamed, "renaming", likeness(old, new))


def unread_values(view: View) -> Iterator[Edit]:
    """Use a name that nothing reads for a whole expression, or a variable for a length."""
    for node in view.nodes(ast.expr):
        parent, function = view.source.parents.get(node), view.source.function(node)
        if (
            function is None
            or isinstance(node, ast.Name | ast.Tuple)
            or isinstance(getattr(node, "ctx", None), ast.Store)
        ):
            continue
        if isinstance(parent, ast.Assign | ast.Return | ast.Call | ast.AugAssign) and node is not getattr(
            parent, "func", None
        ):
            for name in sorted(unread_names(view, function)):
                yield from view.replace(node, name, "unread name", 1.0)
        if isinstance(node, ast.Call) and view_name(node.func) == "len":
            for name in view.source.names_in(function):
                if view.types(node, name) == {"int"}:
                    yield from view.replace(node, name, "variable", 0.7)


def compatible(one: frozenset[str], two: frozenset[str]) -> bool:
    if not one or not two or one & two:
        return True
    return bool(one & _NUMBERS and two & _NUMBERS)


def unread_attributes(view: View, owner: ast.ClassDef) -> set[str]:
    """Return the attributes that the file sets and never reads, as `self.name`."""
    read = {
        n.attr for n in ast.walk(view.source.tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
    }
    return {f"self.{name}" for name in stored_attributes(owner) if name not in read}


def unread_names(view: View, function: Function) -> set[str]:
    """Return parameters and locals that a function never reads, but perhaps fills: something should have read them."""
    read = {
        n.id
        for n in ast.walk(function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and not _only_filled(view, n)
    }
    return {name for name in view.source.names_in(function) if name not in read and name not in ("self", "cls", "_")}


def _only_filled(view: View, node: ast.Name) -> bool:
    """`found` in the statement `found.append(…)`."""
    method = view.source.parents.get(node)
    call = view.source.parents.get(method) if isinstance(method, ast.Attribute) else None
    return (
        isinstance(method, ast.Attribute)
        and method.attr in ("append", "add", "extend", "update", "insert")
        and isinstance(call, ast.Call)
        and isinstance(view.source.parents.get(call), ast.Expr)
    )


def _bound_later(function: Function, name: str, line: int) -> bool:
    if any(arg.arg == name for arg in parameters(function)):
        return False
    lines = [
        n.lineno
        for n in ast.walk(function)
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]
    return bool(lines) and min(lines) > line


def _comprehension_names(view: View, node: ast.AST) -> list[str]:
    names: list[str] = []
    for up in view.source.ancestors(node):
        if isinstance(up, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            names += [n.id for part in up.generators for n in ast.walk(part.target) if isinstance(n, ast.Name)]
        elif isinstance(up, ast.Lambda):
            names += [arg.arg for arg in up.args.args]
    return names


def self_attributes(view: View, node: ast.AST) -> list[str]:
    """Return `self.name` for each attribute of the class, if `self` is available."""
    function, owner = view.source.function(node), view.source.class_of(node)
    if owner is None or function is None or not any(arg.arg == "self" for arg in parameters(function)):
        return []
    return [f"self.{name}" for name in stored_attributes(owner)]


def stored_attributes(tree: ast.AST) -> list[str]:
    names = {
        node.attr: None
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(tree):  # dataclass fields
        if isinstance(node, ast.ClassDef):
            names |= {
                item.target.id: None
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            slots = [
                item.value
                for item in node.body
                if isinstance(item, ast.Assign) and view_name(item.targets[0]) == "__slots__"
            ]
            names |= {
                c.value: None
                for value in slots
                for c in ast.walk(value)
                if isinstance(c, ast.Constant) and isinstance(c.value, str)
            }
    return list(names)


def view_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def attributes(view: View) -> Iterator[Edit]:
    """Use another attribute of the same kind of object, a bare name for `self.name`, or the reverse."""
    known = stored_attributes(view.source.tree)
    properties = [f.name for f in view.source.functions if any(view_name(d) == "property" for d in f.decorator_list)]
    for node in view.nodes(ast.Attribute):
        parent = view.source.parents.get(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            continue
        base, function = view.source.code(node.value), view.source.function(node)
        if node.attr in known or node.attr in properties:
            types = view.types(node, f"self.{node.attr}")
            for name in [*known, *properties]:
                other = view.types(node, f"self.{name}")
                if name != node.attr and compatible(types, other):
                    yield from view.replace(node, f"{base}.{name}", "attribute", likeness(node.attr, name))
        if function and isinstance(node.ctx, ast.Load):
            here = view.types(node, view.source.code(node))
            for name in view.source.names_in(function):
                if name != "self" and (name == base or compatible(here, view.types(node, name))):
                    weight = 3.0 if name == node.attr else 0.4 * likeness(node.attr, name)
                    yield from view.replace(node, name, "attribute", weight)
                    if (
                        name not in BUILTINS
                        and name != base
                        and not view.types(node, name) & {"int", "str", "float", "list", "dict"}
                    ):
                        yield from view.replace(node.value, name, "variable", 0.3)


def functions(view: View) -> Iterator[Edit]:
    """Use a function or class of the same family, or one of this file with as many parameters."""
    own = {f.name: f for f in view.source.functions if isinstance(view.source.parents[f], ast.Module)}
    imported = view.source.module_names - own.keys()
    for node in view.nodes(ast.Call):
        name = view_name(node.func)
        if not name:
            continue
        for place, other in enumerate(FUNCTIONS.get(name, ())):
            if other in BUILTINS or other in view.source.module_names:
                yield from view.replace(node.func, other, "function", 1.0 if place < 2 else 0.4)
        for other, definition in own.items():
            if name in own and other != name and len(definition.args.args) == len(own[name].args.args):
                yield from view.replace(node.func, other, "function", 0.3 * likeness(name, other))
        for other in imported:
            if other[:1].islower() and name not in own and other not in FUNCTIONS.get(name, ()) and other not in own:
                yield from view.replace(node.func, other, "function", 0.1)
    for module in view.nodes(ast.Attribute):
        if view_name(module.value) in ("math", "heapq", "itertools", "bisect", "statistics"):
            for other in FUNCTIONS.get(module.attr, ()):
                if other not in BUILTINS or other in ("round",):
                    yield from view.replace(module, f"{view_name(module.value)}.{other}", "function", 0.8)
    for raised in view.nodes(ast.Raise):
        called = raised.exc.func if isinstance(raised.exc, ast.Call) else raised.exc
        if isinstance(called, ast.Name):
            own_errors = [c.name for c in ast.walk(view.source.tree) if isinstance(c, ast.ClassDef) and _is_error(c)]
            for other in [*view.facts.raises, *own_errors, *ERRORS[:4]]:
                weight = 2.0 if other in view.facts.raises else 0.3
                yield from view.replace(called, other, "exception", weight)
    for handler in ast.walk(view.source.tree):
        if isinstance(handler, ast.ExceptHandler) and isinstance(handler.type, ast.Name | ast.Tuple):
            statement = view.source.parents[handler]
            if any(view.live(inner) for inner in ast.walk(statement) if isinstance(inner, ast.stmt)):
                for other in [*view.facts.raises, *ERRORS[:7], "Exception"]:
                    yield from view.replace(
                        handler.type, other, "exception", 2.0 if other in view.facts.raises else 0.4
                    )
                    code = view.source.code(handler.type)
                    if isinstance(handler.type, ast.Name) and other != code:
                        yield from view.replace(handler.type, f"({code}, {other})", "exception", 0.5)


def _is_error(node: ast.ClassDef) -> bool:
    return any(view_name(base).endswith(("Error", "Exception")) for base in node.bases)


def methods(view: View) -> Iterator[Edit]:
    owners: dict[str, ast.ClassDef | None] = {f.name: view.source.class_of(f) for f in view.source.functions}
    arity = {f.name: len(f.args.args) for f in view.source.functions}
    for node in view.nodes(ast.Call):
        if not isinstance(node.func, ast.Attribute):
            continue
        base, name = view.source.code(node.func.value), node.func.attr
        own = base == "self" or (name in owners and owners[name] is not None)
        for place, other in enumerate(METHODS.get(name, ()) if not own or name in METHODS else ()):
            yield from view.replace(node.func, f"{base}.{other}", "method", 1.0 if place < 2 else 0.4)
        for other, owner in owners.items():
            if (
                own
                and owner is not None
                and other != name
                and arity[other] == arity.get(name)
                and not other.startswith("__")
            ):
                yield from view.replace(node.func, f"{base}.{other}", "method", 0.3 * likeness(name, other))
        function = view.source.function(node)
        if function and isinstance(node.func.value, ast.Attribute) and base in used_names(function):
            continue


MAKERS = (variables, renamings, unread_values, attributes, functions, methods)
