"""Edits of values: numbers, strings, booleans, initial values, bounds, slices, checks for None."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .base import Change, Edit, View
from .names import self_attributes, unread_attributes, unread_names

_COUNTS = frozenset({"len", "int", "max", "min", "abs", "sum"})
_SHAPES = frozenset({"list", "str", "set", "dict", "sorted", "range", "tuple", "bool", "any", "all"})
_EMPTY = {"0", "1", "-1", "None", "[]", "{}", "set()", '""', "True", "False"}


def numbers(view: View) -> Iterator[Edit]:
    others = [
        node.value
        for node in ast.walk(view.source.tree)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    ]
    for node in view.nodes(ast.Constant):
        value = node.value
        if type(value) not in (int, float):
            continue
        assert isinstance(value, int | float)
        options: dict[float, float] = {}
        if isinstance(value, int):
            options = {value + 1: 1.0, value - 1: 1.0 if value > 0 or _argument(view, node, "range") else 0.5}
            options |= {value * int(f[2:]): 1.5 for f in view.facts.factors if f[0] == "*"}
            options |= {value // int(f[2:]): 1.5 for f in view.facts.factors if f[0] == "/" and value}
            if value >= 10:
                options |= {value * 10: 0.3, value // 10: 0.3, value * 2: 0.2, value // 2: 0.3}
            if value == 1:
                options |= {2: 0.5}
        else:
            options = {
                value * 10: 0.3,
                value / 10: 0.3,
                value / 100: 0.2,
                value * 100: 0.2,
                1 - value: 0.3,
                -value: 0.2,
            }
        for other in others:
            if other != value:
                options.setdefault(other, 0.3)
        inside = view.source.parents.get(node)
        negative = isinstance(inside, ast.UnaryOp) and isinstance(inside.op, ast.USub)
        for new, weight in options.items():
            text = repr(round(new, 10) if isinstance(new, float) else new)
            if not (negative and new < 0):
                yield from view.replace(node, text, "constant", weight)
        for name, weight in number_names(view, node).items():
            yield from view.replace(node, name, "constant for variable", weight)


def _argument(view: View, node: ast.AST, function: str) -> bool:
    parent = view.source.parents.get(node)
    return isinstance(parent, ast.Call) and view.source.code(parent.func) == function


def number_names(view: View, node: ast.AST) -> dict[str, float]:
    """Return numeric variables and attributes in scope. Those that nothing reads are the likeliest."""
    function = view.source.function(node)
    if function is None:
        return {}
    names = [*view.source.names_in(function), *self_attributes(view, node)]
    owner = view.source.class_of(node)
    unread = unread_names(view, function) | (unread_attributes(view, owner) if owner else set())
    return {
        name: 4.0 if name in unread else 1.0
        for name in names
        if view.types(node, name) & {"int", "float"} and not view.types(node, name) & {"bool"}
    }


def strings(view: View) -> Iterator[Edit]:
    """Use other strings of the file, another case, a space more or less, or other digits in a format."""
    known: dict[str, None] = {}
    for node in ast.walk(view.source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= 12:
            known[node.value] = None
    for constant in view.nodes(ast.Constant):
        text = constant.value
        parent = view.source.parents.get(constant)
        if not isinstance(text, str) or isinstance(parent, ast.Expr | ast.JoinedStr | ast.FormattedValue):
            continue
        options: dict[str, float] = {}
        for new, weight in (
            (text.upper(), 0.3), (text.lower(), 0.3), (text.strip(), 0.5), ("", 0.4), (f"{text} ", 0.15),
            (f" {text}", 0.05), (text[:-1], 0.15), (text[1:], 0.1), (text + text, 0.1),
        ):  # fmt: skip
            options.setdefault(new, weight)
        for digit in re.finditer(r"\d", text):
            for new_digit in (int(digit.group()) + 1, int(digit.group()) - 1):
                if 0 <= new_digit <= 9:
                    options[text[: digit.start()] + str(new_digit) + text[digit.end() :]] = 0.5
        if re.search(r"[\\\[(+*^$]", text):
            options |= {f"{text}$": 0.3, f"^{text}": 0.2}
            for old, new in (
                ("+", "*"),
                ("*", "+"),
                (r"\w", r"\d"),
                (r"\d", r"\w"),
                (r"\s", r"\s+"),
                ("+", "+?"),
                ("*", "*?"),
                ("a-z", "a-zA-Z"),
            ):
                if old in text:
                    options[text.replace(old, new, 1)] = 0.4
        for literal in view.facts.expected:
            if literal[:1] in "'\"":
                options[ast.literal_eval(literal)] = 0.6
        for other in known:
            options.setdefault(other, 0.3 if (len(other) == 1) == (len(text) == 1) else 0.15)
        for new, weight in options.items():
            if new != text:
                yield from view.replace(constant, repr(new), "string", weight)
    for joined in view.nodes(ast.JoinedStr):
        code = view.source.code(joined)
        start = view.source.span(joined).start
        for spec in re.finditer(r":[^{}'\"]*\d[^{}'\"]*\}", code):
            for digit in re.finditer(r"\d", spec.group()):
                at = start + spec.start() + digit.start()
                for near in (int(digit.group()) + 1, int(digit.group()) - 1):
                    if 0 <= near <= 9:
                        yield view.edit(joined, "string", 0.6, Change(at, at + 1, digit.group(), str(near)))
        for side, other in (("<", ">"), (">", "<"), ("^", "<")):
            for spec in re.finditer(rf":[^{{}}]?({re.escape(side)})\w*\}}", code):
                change = Change(start + spec.start(1), start + spec.end(1), side, other)
                yield view.edit(joined, "string", 0.4, change)


def truths(view: View) -> Iterator[Edit]:
    for node in view.nodes(ast.Constant):
        if isinstance(node.value, bool):
            yield from view.replace(node, str(not node.value), "truth value", 1.0)
        elif node.value is None and not isinstance(view.source.parents.get(node), ast.Compare | ast.FormattedValue):
            for text in ("0", "[]", '""', "False", "{}", "True"):
                yield from view.replace(node, text, "truth value", 0.15)


def starts(view: View) -> Iterator[Edit]:
    """Use another initial value for what a function builds up: `best = numbers[0]` for `best = 0`."""
    for node in view.nodes(ast.Assign):
        code = view.source.code(node.value).replace("'", '"')
        infinite = code in ('float("inf")', '-float("inf")', 'float("-inf")', "math.inf", "-math.inf")
        if not (
            code in _EMPTY
            or infinite
            or isinstance(node.value, ast.Constant | ast.List | ast.Dict | ast.Set | ast.UnaryOp)
        ):
            continue
        function = view.source.function(node)
        number = (
            infinite
            or isinstance(node.value, ast.UnaryOp)
            or (isinstance(node.value, ast.Constant) and isinstance(node.value.value, int | float))
        )
        numeric = {"0": 1, "1": 1, "-1": 0.6, 'float("inf")': 0.8, 'float("-inf")': 0.8, "None": 0.5}
        shaped = {
            "[]": 0.8,
            "{}": 0.3,
            "set()": 0.5,
            '""': 0.4,
            "None": 0.3,
            "[[]]": 0.4,
            "[0]": 0.4,
            "[1]": 0.4,
            "0": 0.2,
        }
        options = dict(numeric if number else shaped)
        for name in view.source.names_in(function) if function else []:
            types = view.types(node, name)
            if name in ("self", "cls") or (isinstance(node.targets[0], ast.Name) and name == node.targets[0].id):
                continue
            if types & {"list", "tuple", "str"}:
                options |= (
                    {f"{name}[0]": 0.8, f"len({name})": 0.4, f"len({name}) - 1": 0.4}
                    if number
                    else {f"list({name})": 0.3, f"[{name}[0]]": 0.3}
                )
            if number and types & {"int", "float"}:
                options[name] = 0.5
            if not number:
                options[f"[{name}]"] = 0.3 if code != "set()" else 0.1
                options[f"{{{name}}}"] = 0.6 if code == "set()" else 0.2
                options["{0}"] = 0.3 if code == "set()" else 0.1
        for text, weight in options.items():
            yield from view.replace(node.value, text, "initial value", weight)


def offsets(view: View) -> Iterator[Edit]:
    """Add or subtract one: bounds, indices, slices, operands of comparisons, results, arguments."""
    done: set[ast.expr] = set()
    for node in view.nodes(ast.AST):
        places: list[tuple[ast.expr | None, float]] = []
        if isinstance(node, ast.Call):
            known = view.source.code(node.func) == "range"
            places = [(arg, 1.0 if known else 0.3) for arg in node.args]
            for arg in node.args if known else ():
                if isinstance(arg, ast.Name):
                    yield from view.replace(arg, f"{arg.id} * {arg.id}", "offset", 0.3)
                    yield from view.replace(arg, f"2 * {arg.id}", "offset", 0.2)
        elif isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice | ast.Tuple):
            places = [(node.slice, 0.8)]
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            places = [(item, 0.8) for item in node.slice.elts]
        elif isinstance(node, ast.Slice):
            places = [(node.lower, 0.8), (node.upper, 1.0)]
        elif isinstance(node, ast.Compare) and isinstance(
            node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq | ast.NotEq
        ):
            places = [(side, 0.4) for side in (node.left, *node.comparators)]
        elif isinstance(node, ast.Return | ast.AugAssign):
            places = [(node.value, 0.6)]
        elif isinstance(node, ast.Assign):
            places = [(node.value, 0.7)]
        elif isinstance(node, ast.BinOp):
            places = [(node.right, 0.2), (node.left, 0.2)]
        for place, weight in places:
            if place is not None and place not in done and _countable(view, place):
                done.add(place)
                yield from _shifted(view, place, weight)


def _countable(view: View, node: ast.expr) -> bool:
    if isinstance(node, ast.Name | ast.Attribute):
        types = view.types(node, view.source.code(node))
        return not types or "int" in types or "float" in types
    if isinstance(node, ast.Call) and _argument(view, node, "range"):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("get", "index", "find", "count", "isqrt", "floor", "ceil", "rfind", "bit_length")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        returned = isinstance(view.source.parents.get(node), ast.Return)
        return node.func.id in _COUNTS or (returned and node.func.id not in _SHAPES)
    return isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod)


def _shifted(view: View, node: ast.expr, weight: float) -> Iterator[Edit]:
    code = view.source.code(node)
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == 1:
        return  # `n - 1`: the number, the sign and the term have edits of their own
    yield from view.replace(node, f"{code} + 1", "off by one", weight)
    yield from view.replace(node, f"{code} - 1", "off by one", weight)
    function = view.source.function(node)
    if function is None or not isinstance(node, ast.Name | ast.Attribute):
        return
    items = [
        view.source.code(n)
        for n in ast.walk(function)
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) and not isinstance(n.slice, ast.Slice)
    ]
    for name, share in {**dict.fromkeys(items, 0.3), **number_names(view, node)}.items():  # by another quantity
        if name != code:
            for sign in "+-":
                yield from view.replace(node, f"{code} {sign} {name}", "offset", weight * share)


def ranges(view: View) -> Iterator[Edit]:
    """Use another start, end or direction of a range, a slice or an enumeration."""
    code = view.source.code
    for node in view.nodes(ast.Call):
        name = code(node.func)
        args = [code(arg) for arg in node.args]
        if name == "range" and args and not node.keywords:
            if len(args) == 1:
                options = {
                    f"1, {args[0]}": 1.0,
                    f"1, {args[0]} + 1": 0.6,
                    f"{args[0]} - 1, -1, -1": 0.6,
                    f"2, {args[0]}": 0.2,
                }
            elif len(args) == 2:
                options = {
                    args[1]: 0.6,
                    f"{args[1]} - 1, {args[0]} - 1, -1": 0.6,
                    f"{args[1]}, {args[0]} - 1, -1": 0.5,
                    f"{args[1]}, {args[0]}, -1": 0.3,
                    f"{args[1]}, {args[0]}": 0.2,
                    f"{args[0]}, {args[1]}, 2": 0.1,
                }
            else:
                options = {
                    f"{args[0]}, {args[1]}": 1.0,
                    f"{args[0]}, {args[1]}, -{args[2]}": 0.5,
                    f"{args[1]}, {args[0]}, {args[2]}": 0.3,
                }
                if args[2] == "-1":
                    options |= {f"{args[1]} + 1, {args[0]} + 1": 0.8, f"{args[1]}, {args[0]}": 0.4}
            for new, weight in options.items():
                yield from view.replace(node, f"range({new})", "range", weight)
        elif name == "enumerate" and len(args) == 1 and not node.keywords:
            yield from view.replace(node, f"enumerate({args[0]}, 1)", "range", 0.5)
        elif name == "enumerate" and args:
            yield from view.replace(node, f"enumerate({args[0]})", "range", 0.8)
    for loop in view.nodes(ast.AST):
        if not isinstance(loop, ast.For | ast.comprehension):
            continue
        iterated = code(loop.iter)
        yield from view.replace(loop.iter, f"reversed({iterated})", "range", 0.4)
        types = view.types(loop, iterated)
        if isinstance(loop.iter, ast.Name | ast.Attribute) and (not types or types & {"list", "str", "tuple"}):
            yield from view.replace(loop.iter, f"{iterated}[1:]", "slice", 0.6)
            yield from view.replace(loop.iter, f"{iterated}[:-1]", "slice", 0.4)
            function = view.source.function(loop)
            for name in view.source.names_in(function) if function else []:
                if name != iterated and view.types(loop, name) == {"int"}:
                    yield from view.replace(loop.iter, f"{iterated}[{name}:]", "slice", 0.4)
                    yield from view.replace(loop.iter, f"{iterated}[:{name}]", "slice", 0.3)


def slices(view: View) -> Iterator[Edit]:
    code = view.source.code
    for node in view.nodes(ast.Subscript):
        base = code(node.value)
        if isinstance(node.slice, ast.Slice):
            lower = code(node.slice.lower) if node.slice.lower else ""
            upper = code(node.slice.upper) if node.slice.upper else ""
            step = code(node.slice.step) if node.slice.step else ""
            options = {
                f"{base}[{lower}:]": 0.5, f"{base}[:{upper}]": 0.5, f"{base}[{upper}:{lower}]": 0.2,
                f"{base}[{upper}:]": 0.4, f"{base}[:{lower}]": 0.4, base: 0.3, f"{base}[::-1]": 0.2,
                f"{base}[1:{upper}]": 0.0 if lower else 0.5, f"{base}[{lower}:-1]": 0.0 if upper else 0.5,
            }  # fmt: skip
            if lower:
                options |= {f"{base}[-{lower}:{upper}]": 0.4}
                options |= {f"{base}[:-{lower}]": 0.5} if not upper else {}
            if upper.startswith("-"):
                options |= {f"{base}[{upper[1:]}:]": 0.5} if not lower else {}
            if upper:
                options |= {
                    f"{base}[{lower}:-{upper}]": 0.3,
                    f"{base}[{lower}:{lower} + {upper}]": 0.4 if lower else 0,
                }
            if step:
                options |= {f"{base}[{lower}:{upper}]": 0.7}
            for text, weight in options.items():
                if weight and text != f"{base}[:]":
                    yield from view.replace(node, text, "slice", weight)
        elif isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            yield from view.replace(node.slice, "-1", "slice", 0.8)
        elif code(node.slice) == "-1":
            yield from view.replace(node.slice, "0", "slice", 0.8)
        elif isinstance(node.slice, ast.Name | ast.BinOp):
            yield from view.replace(
                node, f"{base}[-{code(node.slice)}]" if isinstance(node.slice, ast.Name) else base, "slice", 0.1
            )
            yield from view.replace(node, f"{base}[{code(node.slice)}:]", "slice", 0.05)


def parts(view: View) -> Iterator[Edit]:
    """Use a part of a sequence that is passed on as a whole."""
    for name in view.nodes(ast.Name):
        parent = view.source.parents.get(name)
        if not isinstance(parent, ast.Subscript | ast.Assign | ast.Return) or not isinstance(name.ctx, ast.Load):
            continue
        if view.types(name, name.id) & {"list", "str", "tuple"} and not (
            isinstance(parent, ast.Subscript) and parent.value is name
        ):
            yield from view.replace(name, f"{name.id}[1:]", "slice", 0.2)
            yield from view.replace(name, f"{name.id}[:-1]", "slice", 0.2)
    for node in view.nodes(ast.Call):
        own = any(view.source.code(node.func).split(".")[-1] == f.name for f in view.source.functions)
        for arg in node.args:
            if isinstance(arg, ast.Name) and view.types(arg, arg.id) & {"list", "str", "tuple"}:
                yield from view.replace(arg, f"{arg.id}[1:]", "slice", 0.6 if own else 0.2)
                yield from view.replace(arg, f"{arg.id}[:-1]", "slice", 0.4 if own else 0.15)


def nones(view: View) -> Iterator[Edit]:
    """Exchange truth and presence: `if x` and `if x is not None`; `a or b`."""
    code = view.source.code
    for node in view.nodes(ast.AST):
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            tests = [node.test]
        elif isinstance(node, ast.BoolOp):
            tests = node.values
            if (
                isinstance(node.op, ast.Or)
                and len(tests) == 2
                and not isinstance(view.source.parents.get(node), ast.If | ast.While | ast.BoolOp)
            ):
                one, two = code(tests[0]), code(tests[1])
                yield from view.replace(node, f"{two} if {one} is None else {one}", "None check", 1.0)
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        for test in tests:
            text = code(test)
            if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                yield from view.replace(test, f"{text} is not None", "None check", 0.7)
            elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                yield from view.replace(test, f"{code(test.operand)} is None", "None check", 0.7)
            elif isinstance(test, ast.Compare) and len(test.ops) == 1 and code(test.comparators[0]) == "None":
                bare = code(test.left)
                yield from view.replace(
                    test, bare if isinstance(test.ops[0], ast.IsNot) else f"not {bare}", "None check", 0.7
                )


MAKERS = (numbers, strings, truths, starts, offsets, ranges, slices, parts, nones)
