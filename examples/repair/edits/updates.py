"""Missing statements that change something. They are found by what is read repeatedly but never changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..source import Function, parameters, used_names
from .base import Edit, View
from .insertions import positions
from .names import compatible, self_attributes, unread_names, view_name

_CONTAINERS = frozenset({"list", "set", "dict", "deque", "defaultdict", "Counter", "OrderedDict"})
_GROW = frozenset(["append", "add", "appendleft", "extend", "update", "insert", "push", "setdefault"])
_SHRINK = frozenset(["pop", "popleft", "remove", "discard", "clear", "popitem"])
_LINKS = ("next", "left", "right", "parent", "prev", "successor")

MANY = 4


def updates(view: View) -> Iterator[Edit]:
    for function in view.source.functions:
        places = list(positions(view, function))
        if not places:
            continue
        wanted = [*_stale_in_loops(view, function), *_stale_locals(view, function), *_unread(view, function)]
        wanted += [*_stale_attributes(view, function), *_elements(view, function)]
        for kind, text, weight, loop in wanted:
            fitting = []
            for node, after, near in places:
                inside = loop is None or any(up is loop for up in view.source.ancestors(node))
                if inside and view.source.code(node) != text:
                    outer = 1.0 if loop is None or view.source.parents.get(node) is loop else 0.6
                    fitting.append((near * outer, node, after))
            fitting.sort(key=lambda place: -place[0])
            for count, (near, node, after) in enumerate(fitting):  # several places often do the same
                share = near if count < MANY else 0.5 * near
                yield from view.insert(node, text, kind, weight * share, after=after)


Wanted = tuple[str, str, float, ast.stmt | None]  # kind, statement, weight, the loop where it belongs


def _stale_in_loops(view: View, function: Function) -> Iterator[Wanted]:
    """Find what a `while` tests and its body does not change."""
    for loop in ast.walk(function):
        if not isinstance(loop, ast.While):
            continue
        changed = changes(view, loop.body)
        tested = [view.source.code(n) for n in ast.walk(loop.test) if isinstance(n, ast.Name | ast.Attribute)]
        stale = [name for name in dict.fromkeys(tested) if name not in changed and view.types(loop, name)]
        for name in stale:
            if view.types(loop, name) <= {"function", "type"}:
                continue
            weight = 1.0 if len(stale) == len(set(tested)) or len(stale) == 1 else 0.5
            for text in _steps(view, loop, name):
                yield "stale", text, weight, loop
            for other in _values(view, function, name):
                near = 1.0 if other in changed else 0.4
                yield "stale", f"{name} = {other}", 0.7 * weight * near, loop
                if view.types(loop, name) & {"int", "float"}:
                    yield from (("stale", f"{name} {sign}= {other}", 0.4 * weight, loop) for sign in ("-", "//", "+"))
        for name in dict.fromkeys(tested):
            if name in changed and view.types(loop, name) & {"int"}:
                yield from (("missing update", f"{name} {sign}= 1", 0.6, loop) for sign in "+-")


def _steps(view: View, node: ast.AST, name: str) -> Iterator[str]:
    types = view.types(node, name)
    if not types or types & {"int", "float"}:
        yield from (f"{name} += 1", f"{name} -= 1", f"{name} //= 2", f"{name} //= 10")
    if types & {"list", "deque", "set"}:
        yield from (f"{name}.pop()", f"{name}.pop(0)", f"{name}.popleft()")
    if not types - {"NoneType"} or types - {"int", "float", "str", "list", "set", "dict", "NoneType"}:
        read = {n.attr for n in ast.walk(view.source.tree) if isinstance(n, ast.Attribute)}
        yield from (f"{name} = {name}.{link}" for link in _LINKS if link in read)


def _stale_locals(view: View, function: Function) -> Iterator[Wanted]:
    """Find a variable that is set before a loop, read in it and never changed, or a container that never grows."""
    given = {arg.arg for arg in parameters(function)}
    grown, shrunk = _called(function, _GROW), _called(function, _SHRINK)
    stores = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    loops = [n for n in ast.walk(function) if isinstance(n, ast.For | ast.While)]
    for name in view.source.names_in(function):
        types = view.types(function, name)
        if name in ("self", "cls") or (name not in given and name not in stores):
            continue
        if types & _CONTAINERS:
            filled = name in contents(view, function.body)
            tested = 2.0 if _is_tested(function, name) else 1.0
            grows = name not in given or _is_tested(function, name)
            if grows and (not filled or (name in shrunk and name not in grown)):
                yield from (("stale", text, tested * w, None) for text, w in _growth(view, function, name, types))
            if name not in shrunk and types & {"set"} and _is_tested(function, name):
                yield from (("stale", t, 0.5, None) for t in _shrinking(view, function, name, types))
            elif filled and name not in shrunk and (types & {"set", "dict"} or _is_tested(function, name)):
                yield from (("missing update", t, 0.5, None) for t in _shrinking(view, function, name, types))
            continue
        around = [loop for loop in loops if name in used_names(loop) and name not in changes(view, [loop])] or loops
        if not around or stores.count(name) != 1 or name in given or _is_target(function, name):
            continue
        for loop in around[:1]:
            for other in _values(view, function, name):
                yield "stale", f"{name} = {other}", 0.7, loop
                if types & {"int", "float"}:
                    yield "stale", f"{name} += {other}", 0.5, loop
                    yield "stale", f"{name} = max({name}, {other})", 0.2, loop
            if types & {"int", "float"}:
                yield "stale", f"{name} += 1", 1.0, loop
                yield "stale", f"{name} -= 1", 0.3, loop


def _growth(view: View, function: Function, name: str, types: frozenset[str]) -> Iterator[tuple[str, float]]:
    items = [n for n in view.source.names_in(function) if n not in ("self", "cls", name)]
    for item in items:
        near = 0.3 if view.types(function, item) & _CONTAINERS else 1.0
        if types & {"set"}:
            yield f"{name}.add({item})", near
        if types & {"list", "deque"}:
            yield f"{name}.append({item})", near
        if types & {"dict", "defaultdict", "OrderedDict"} and near == 1:
            yield from ((f"{name}[{item}] = {value}", 0.6) for value in items if value != item)


def _shrinking(view: View, function: Function, name: str, types: frozenset[str]) -> Iterator[str]:
    items = [n for n in view.source.names_in(function) if n not in ("self", "cls", name)]
    for item in items:
        if not view.types(function, item) & _CONTAINERS:
            yield f"{name}.discard({item})" if types & {"set"} else f"{name}.remove({item})"
            if types & {"dict", "OrderedDict"}:
                yield f"{name}.pop({item}, None)"
    if types & {"list", "deque"}:
        yield f"{name}.pop()"


def _unread(view: View, function: Function) -> Iterator[Wanted]:
    """Find a parameter or a variable that nothing reads: keep it, pass it on, or call it as its neighbours are called."""
    attributes = self_attributes(view, function.body[0])
    for name in sorted(unread_names(view, function)):
        types = view.types(function, name)
        if function.name == "__init__":
            yield "stale", f"self.{name} = {name}", 3.0, None
        for attribute in attributes:
            there = view.types(function, attribute)
            if attribute == f"self.{name}" or (compatible(types, there) and types & there):
                yield "stale", f"{attribute} = {name}", 3.0 if attribute == f"self.{name}" else 1.0, None
            if there & {"list", "deque"}:
                yield "stale", f"{attribute}.append({name})", 1.0, None
            if there & {"set"}:
                yield "stale", f"{attribute}.add({name})", 1.0, None
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                args = ", ".join(view.source.code(arg) for arg in call.args)
                base = view.source.code(call.func.value)
                if isinstance(view.source.parents.get(call), ast.Expr) and base != name:
                    for other in dict.fromkeys((call.func.attr, *(f.name for f in view.source.functions))):
                        if not other.startswith("__") and view.source.class_of(_named(view, other)) is not None:
                            yield "mirrored call", f"{name}.{other}({args})", 1.0, None
                if types & {"list", "deque"}:
                    yield "mirrored call", f"{name}.append({args})", 0.5, None


def _named(view: View, name: str) -> ast.AST:
    return next((f for f in view.source.functions if f.name == name), view.source.tree)


def _stale_attributes(view: View, function: Function) -> Iterator[Wanted]:
    """Find an attribute that only `__init__` sets, or one that only grows or only shrinks."""
    owner = view.source.class_of(function)
    if owner is None or function.name == "__init__":
        return
    methods = [f for f in owner.body if isinstance(f, Function)]
    later = [f for f in methods if f.name != "__init__"]
    changed = {name for f in later for name in changes(view, f.body)}
    filled = {name for f in later for name in contents(view, f.body)}
    here = changes(view, function.body)
    items = [n for n in view.source.names_in(function) if n not in ("self", "cls")]
    for name in self_attributes(view, function.body[0]):
        types = view.types(function, name)
        stale = name not in (filled if types & _CONTAINERS else changed)
        kind, weight = ("stale", 1.0) if stale else ("missing update", 0.5 if name not in here else 0.2)
        if types & {"int", "float"}:
            yield kind, f"{name} += 1", weight, None
            yield kind, f"{name} -= 1", weight, None
        for item in items:
            there = view.types(function, item)
            plain = not there & _CONTAINERS
            if types & {"int", "float"} and there & {"int", "float"}:
                yield from ((kind, f"{name} {sign}= {item}", 0.5 * weight, None) for sign in "+-")
            if types & there or ("NoneType" in types and there - {"int", "str", "list", "dict"}):
                yield kind, f"{name} = {item}", 0.7 * weight, None
            if types & {"set"} and plain:
                yield from ((kind, f"{name}.{m}({item})", 0.5 * weight, None) for m in ("add", "discard"))
            if types & {"list", "deque"}:
                yield kind, f"{name}.append({item})", (1.0 if plain else 0.3) * weight, None
            if types & {"dict", "OrderedDict", "defaultdict"} and plain:
                yield kind, f"{name}.pop({item}, None)", 0.5 * weight, None
                yield from ((kind, f"{name}[{item}] = {v}", 0.3 * weight, None) for v in items if v != item)
            if "OrderedDict" in types:
                yield kind, f"{name}.move_to_end({item})", 2.0 * weight, None
        if types & {"list", "deque"}:
            yield kind, f"{name}.pop()", 0.3 * weight, None


def _elements(view: View, function: Function) -> Iterator[Wanted]:
    """Find an element that is compared but not counted, or a memo that is read and never filled."""
    items = [n for n in view.source.names_in(function) if n not in ("self", "cls")]
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.slice, ast.Name | ast.Attribute)
        ):
            parent, code = view.source.parents.get(node), view.source.code(node)
            if isinstance(parent, ast.Compare):
                loop = view.source.loop(node)
                stale = loop is not None and view.source.code(node.value) not in changes(view, loop.body)
                kind = "stale" if stale else "missing update"
                yield from ((kind, f"{code} {sign}= 1", 1.0, loop) for sign in "+-")
            if isinstance(parent, ast.Return) and isinstance(node.value, ast.Name):
                yield from (
                    ("missing update", f"{code} = {item}", 0.7, None) for item in items if item != node.value.id
                )


def _values(view: View, function: Function, name: str) -> list[str]:
    """Return other variables that could be assigned to this one."""
    types = view.types(function, name)
    found = []
    for other in view.source.names_in(function):
        there = view.types(function, other)
        alike = (
            types & there
            or (types == {"NoneType"} and there)
            or ("NoneType" in types and there - {"int", "str", "list"})
        )
        if other not in (name, "self", "cls") and alike:
            found.append(other)
    return found


def _called(function: Function, methods: frozenset[str]) -> set[str]:
    return {view_name(n.value) for n in ast.walk(function) if isinstance(n, ast.Attribute) and n.attr in methods}


def _is_tested(function: Function, name: str) -> bool:
    return any(
        isinstance(n, ast.Compare)
        and isinstance(n.ops[0], ast.In | ast.NotIn)
        and view_name(n.comparators[0]) == name
        for n in ast.walk(function)
    )


def _is_target(function: Function, name: str) -> bool:
    loops = [n for n in ast.walk(function) if isinstance(n, ast.For | ast.comprehension)]
    return any(view_name(t) == name for loop in loops for t in ast.walk(loop.target))


def changes(view: View, body: list[ast.stmt]) -> set[str]:
    """Return names and attributes (`self.size`) that statements assign, or whose container they change."""
    stored = {
        view.source.code(node)
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
    }
    return stored | contents(view, body)


def contents(view: View, body: list[ast.stmt]) -> set[str]:
    """Return names and attributes whose container statements change."""
    names: set[str] = set()
    for node in (n for statement in body for n in ast.walk(statement)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(view.source.code(node.value))
        elif isinstance(node, ast.AugAssign):
            names.add(view.source.code(node.target))
        elif isinstance(node, ast.Attribute) and node.attr in _GROW | _SHRINK | {"sort", "reverse"}:
            names.add(view.source.code(node.value))
        elif isinstance(node, ast.Call) and "heap" in view.source.code(node.func):
            names.update(view.source.code(arg) for arg in node.args)
    return names


MAKERS = (updates,)
