"""Edits of calls and of the values around them: arguments, wrapping, copies, results."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..source import BUILTINS, parameters
from .base import Change, Edit, View
from .names import self_attributes, view_name
from .values import number_names

_WRAPS = {
    "str": (
        ".lower()",
        ".strip()",
        ".upper()",
        ".rstrip()",
        "[::-1]",
        ".split()",
        "int()",
        ".lstrip()",
        ".casefold()",
        "list()",
    ),
    "list": ("sorted()", "[:]", "len()", "set()", "tuple()", "[::-1]", "list()", "sum()", "max()", "min()"),
    "dict": ("dict()", ".items()", ".values()", "list()", ".copy()", "sorted()", "len()"),
    "set": ("set()", "sorted()", "list()", "len()", "frozenset()"),
    "tuple": ("list()", "sorted()", "tuple()", "[::-1]"),
    "int": ("str()", "abs()", "float()"),
    "float": ("int()", "round()", "abs()", "math.ceil()"),
}
_ANY = (
    "str()",
    "int()",
    "len()",
    "list()",
    "sorted()",
    "abs()",
    "tuple()",
    "set()",
    ".lower()",
    ".strip()",
    "round()",
    "float()",
    "dict()",
    "sum()",
    ".copy()",
    "bool()",
)
_TOLD = {  # what the difference between result and expectation says
    "reversed": ("[::-1]", "reversed()"), "order": ("sorted()", "[::-1]"),
    "case": (".lower()", ".upper()", ".casefold()"),
    "space": (".strip()", ".rstrip()", ".lstrip()"), "sign": ("abs()",), "rounding": ("int()", "round()"),
    "other type": ("list()", "tuple()", "str()", "int()", "set()", "sorted()", "float()", "bool()"),
}  # fmt: skip
_CASTS = frozenset(
    [
        "int",
        "str",
        "float",
        "list",
        "set",
        "tuple",
        "sorted",
        "abs",
        "reversed",
        "round",
        "len",
        "dict",
        "frozenset",
        "bool",
        "sum",
        "iter",
        "max",
        "min",
    ]
)


def arguments(view: View) -> Iterator[Edit]:
    """Swap, drop or add arguments, or take them from the caller's own parameters."""
    code = view.source.code
    own = {f.name: f for f in view.source.functions}
    for made in ast.walk(view.source.tree):
        if isinstance(made, ast.ClassDef):
            own.update((made.name, f) for f in made.body if isinstance(f, ast.FunctionDef) and f.name == "__init__")
    for node in view.nodes(ast.Call):
        for item in node.args:  # `f(*args)` and `f(args)`
            if isinstance(item, ast.Starred):
                yield from view.replace(item, code(item.value), "star", 1.0)
            elif isinstance(item, ast.Name) and code(node.func) not in BUILTINS:
                if view.types(item, item.id) & {"tuple", "list"}:
                    yield from view.replace(item, f"*{item.id}", "star", 1.0)
        for one in range(len(node.args)):
            for two in range(one + 1, len(node.args)):
                yield from view.swap(
                    node.args[one], node.args[two], "swapped arguments", 1.0 if two == one + 1 else 0.4
                )
        for one, first in enumerate(node.keywords):
            for second in node.keywords[one + 1 :]:
                yield from view.swap(first.value, second.value, "swapped arguments", 0.4)
        name = view_name(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if len(node.args) > 1 or name in ("split", "strip", "round", "sorted", "pop", "rstrip", "lstrip"):
            for drop in node.args[1:] if len(node.args) > 1 else node.args:
                rest = [code(a) for a in node.args if a is not drop] + [code(k) for k in node.keywords]
                yield from view.replace(node, f"{code(node.func)}({', '.join(rest)})", "dropped argument", 0.5)
        for keyword in node.keywords:
            rest = [code(a) for a in node.args] + [code(k) for k in node.keywords if k is not keyword]
            yield from view.replace(node, f"{code(node.func)}({', '.join(rest)})", "dropped argument", 0.8)
        yield from _added(view, node, name)
        if definition := own.get(name):
            yield from _passed_on(view, node, definition)


def _added(view: View, node: ast.Call, name: str) -> Iterator[Edit]:
    """Add arguments that well-known functions accept and that are easily forgotten."""
    code = view.source.code
    given = [code(a) for a in node.args] + [code(k) for k in node.keywords]
    keywords = {k.arg for k in node.keywords}
    extra: list[tuple[str, float]] = []
    if name in ("sorted", "sort") and "reverse" not in keywords:
        extra.append(("reverse=True", 2.0))
    if name in ("sorted", "sort", "max", "min") and "key" not in keywords:
        extra += [
            ("key=len", 0.5),
            ("key=lambda item: item[1]", 0.6),
            ("key=lambda item: item[0]", 0.3),
            ("key=str.lower", 0.3),
            ("key=abs", 0.1),
        ]
        extra += [("key=lambda item: (-item[1], item[0])", 0.3)]
        target = code(node.args[0]) if node.args else ""
        function = view.source.function(node)
        if function:
            extra += [
                (f"key={other}.get", 0.3)
                for other in view.source.names_in(function)
                if other != target and "dict" in view.types(node, other)
            ]
    if name in ("max", "min") and len(node.args) == 1 and "default" not in keywords:
        extra += [("default=0", 0.6), ("default=None", 0.4)]
    if name in ("get", "setdefault", "pop") and len(node.args) == 2 and not isinstance(node.args[1], ast.Name):
        for other in ("0", "None", "[]", '""', "{}", 'float("inf")', "1", "-1", "set()"):
            yield from view.replace(node.args[1], other, "default", 1.0)
    if name in ("round",) and len(node.args) == 1:
        extra += [("2", 1.0), ("1", 0.4)]
    if name == "pop" and not node.args:
        extra += [("0", 1.0), ("-1", 0.1)]
    if name == "get" and len(node.args) == 1:
        extra += [("0", 1.0), ("[]", 0.6), ('""', 0.4), ("{}", 0.4), (code(node.args[0]), 0.2), ("set()", 0.2)]
    if name in ("split", "rsplit") and len(node.args) == 1:
        extra += [("1", 1.0)]
    if name in ("split",) and not node.args:
        extra += [('","', 0.3), ('" "', 0.5), ('"\\n"', 0.2)]
    if name == "join" and len(node.args) == 1:
        yield from view.replace(node.args[0], f"map(str, {code(node.args[0])})", "wrapped value", 0.5)
        yield from view.replace(node.args[0], f"sorted({code(node.args[0])})", "wrapped value", 0.3)
        yield from view.replace(node.args[0], f"reversed({code(node.args[0])})", "wrapped value", 0.3)
    if name in ("find", "index", "startswith", "count") and len(node.args) == 1:
        function = view.source.function(node)
        extra += [
            (n, 0.3) for n in (view.source.names_in(function) if function else []) if "int" in view.types(node, n)
        ]
    if name == "sum" and len(node.args) == 1:
        extra += [("[]", 0.1)]
    for text, weight in extra:
        yield from view.replace(node, f"{code(node.func)}({', '.join([*given, text])})", "added argument", weight)


def _passed_on(view: View, node: ast.Call, definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
    """Pass on a parameter that the called function accepts under the same name and does not get."""
    function = view.source.function(node)
    if function is None or any(isinstance(a, ast.Starred) for a in node.args):
        return
    code = view.source.code
    names = [arg.arg for arg in parameters(definition) if arg.arg not in ("self", "cls")]
    given = {k.arg for k in node.keywords} | set(names[: len(node.args)])
    here = set(view.source.names_in(function))
    args = [code(a) for a in node.args] + [code(k) for k in node.keywords]
    for name in names:
        if name not in given:
            mine = [*(n for n in sorted(here) if n not in ("self", "cls")), *self_attributes(view, node)]
            for value in [name] if name in here else mine[:16]:
                text = f"{code(node.func)}({', '.join([*args, f'{name}={value}'])})"
                yield from view.replace(node, text, "added argument", 4.0 if value == name else 0.4)


def wraps(view: View) -> Iterator[Edit]:
    """Put a value through one more call, or one less: `.lower()`, `sorted()`, `abs()`, a copy."""
    code = view.source.code
    for node in view.nodes(ast.expr):
        parent = view.source.parents.get(node)
        if not _wrappable(node, parent):
            continue
        types = _types(view, node)
        options = [w for kind in types for w in _WRAPS.get(kind, ())] if types else list(_ANY)
        outer = view_name(parent.func) if isinstance(parent, ast.Call) else ""
        weight = 1.0 if isinstance(parent, ast.Return | ast.Compare) else 0.6
        yield from _clamped(view, node, parent, weight)
        for place, wrap in enumerate(dict.fromkeys(options)):
            if wrap == f"{outer}()" or (wrap == "math.ceil()" and "math" not in view.source.module_names):
                continue
            text = (
                f"{wrap[:-2]}({code(node)})"
                if wrap.endswith("()") and wrap[0] != "."
                else f"{_tight(node, code(node))}{wrap}"
            )
            told = 6.0 if any(wrap in _TOLD.get(hint, ()) for hint in view.facts.hints) else 1.0
            share = (1.0 if place < 3 else 0.4) * (1.0 if types else 0.5)
            yield from view.replace(node, text, "wrapped value", weight * told * share)
    for call in view.nodes(ast.Call):
        if isinstance(call.func, ast.Name) and call.func.id in _CASTS and len(call.args) == 1 and not call.keywords:
            yield from view.replace(call, code(call.args[0]), "unwrapped value", 1.0)
        elif isinstance(call.func, ast.Attribute) and isinstance(
            view.source.parents.get(call), ast.expr | ast.Return | ast.Assign | ast.For | ast.comprehension
        ):
            yield from view.replace(call, code(call.func.value), "unwrapped value", 0.6)
        elif len(call.args) == 1 and any(
            call is not None and code(call.func).split(".")[-1] == f.name for f in view.source.functions
        ):
            yield from view.replace(call, code(call.args[0]), "unwrapped value", 0.7)
        elif isinstance(call.func, ast.Name) and call.func.id in ("max", "min") and len(call.args) == 2:
            yield from view.replace(call, code(call.args[0]), "unwrapped value", 0.3)
            yield from view.replace(call, code(call.args[1]), "unwrapped value", 0.3)


def _clamped(view: View, node: ast.expr, parent: ast.AST | None, weight: float) -> Iterator[Edit]:
    if not isinstance(parent, ast.Return | ast.Assign | ast.AugAssign) or not isinstance(node, ast.BinOp | ast.Name):
        return
    code = view.source.code(node)
    if isinstance(node, ast.Name) and not view.types(node, code) & {"int", "float"}:
        return
    yield from view.replace(node, f"max(0, {code})", "clamp", weight)
    for other in number_names(view, node):
        if other != code:
            yield from view.replace(node, f"min({code}, {other})", "clamp", 0.3 * weight)
            yield from view.replace(node, f"max({code}, {other})", "clamp", 0.3 * weight)


def _tight(node: ast.expr, text: str) -> str:
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def _wrappable(node: ast.expr, parent: ast.AST | None) -> bool:
    if isinstance(
        node, ast.Constant | ast.Lambda | ast.Starred | ast.Slice | ast.Compare | ast.BoolOp | ast.keyword | ast.Tuple
    ):
        return False
    if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return False
    if isinstance(parent, ast.Call):
        return node is not parent.func
    return isinstance(
        parent,
        ast.Return
        | ast.Assign
        | ast.Compare
        | ast.For
        | ast.comprehension
        | ast.AugAssign
        | ast.Dict
        | ast.Yield
        | ast.Subscript
        | ast.If
        | ast.While
        | ast.Starred
        | ast.ListComp
        | ast.GeneratorExp
        | ast.DictComp
        | ast.SetComp
        | ast.Tuple
        | ast.BinOp,
    ) and not (isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store) and node is parent.value)


def _types(view: View, node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        return sorted(view.types(node, view.source.code(node)))
    if isinstance(node, ast.List | ast.ListComp):
        return ["list"]
    if isinstance(node, ast.Dict | ast.DictComp):
        return ["dict"]
    if isinstance(node, ast.Set | ast.SetComp):
        return ["set"]
    if isinstance(node, ast.JoinedStr):
        return ["str"]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return ["float"]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("lower", "upper", "strip", "join", "replace", "title", "rstrip", "lstrip"):
            return ["str"]
        if node.func.attr in ("split", "splitlines"):
            return ["list"]
    return []


def recursion(view: View) -> Iterator[Edit]:
    """Call the function itself around a value, and return, collect or keep its result."""
    code = view.source.code
    for node in view.nodes(ast.Call):
        function = view.source.function(node)
        if function is None:
            continue
        args = parameters(function)
        me = f"self.{function.name}" if args and args[0].arg == "self" else function.name
        needed = len([a for a in function.args.args if a.arg != "self"]) - len(function.args.defaults)
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in ("append", "add", "extend")
            and needed <= 1
            and node.args
        ):
            value, base = code(node.args[0]), code(node.func.value)
            if code(node.func) != me and not value.startswith(me):
                yield from view.replace(node, f"{base}.extend({me}({value}))", "recursion", 1.0)
                yield from view.replace(node, f"{base}.append({me}({value}))", "recursion", 0.6)
        statement = view.source.parents.get(node)
        if isinstance(statement, ast.Expr) and code(node.func) == me:
            yield from view.replace(node, f"return {code(node)}", "recursion", 3.0)
    for returned in view.nodes(ast.Return):
        function = view.source.function(returned)
        if (
            function
            and returned.value is not None
            and isinstance(returned.value, ast.Name)
            and len(function.args.args) == 1
        ):
            yield from view.replace(returned.value, f"{function.name}({code(returned.value)})", "recursion", 0.2)


def copies(view: View) -> Iterator[Edit]:
    """Insert a copy if two names would share one list or dict."""
    code = view.source.code
    for node in view.nodes(ast.expr):
        parent = view.source.parents.get(node)
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        types = view.types(node, code(node))
        if types and not types & {
            "list",
            "dict",
            "set",
            "defaultdict",
            "deque",
            "Counter",
            "OrderedDict",
            "bytearray",
        }:
            continue
        kept = (
            isinstance(parent, ast.Assign | ast.Return | ast.Dict | ast.List | ast.Tuple | ast.AnnAssign)
            or (isinstance(parent, ast.Call) and node is not parent.func and view_name(parent.func) not in BUILTINS)
            or (isinstance(parent, ast.For) and parent.iter is node)
        )
        if not kept:
            continue
        text = code(node)
        known = bool(types)
        options = {"copy": "{0}.copy()", "list": "list({0})", "deep": "[row[:] for row in {0}]"}
        if types and not types & {"list"}:
            options = {"copy": "{0}.copy()", "deep": '__import__("copy").deepcopy({0})'}
        for style, form in options.items():
            if style == "list" and known:
                continue
            share = (1.0 if style == "copy" else 0.4) * (1.0 if known else 0.3)
            yield from view.replace(
                node, form.format(text), "copy", share * (5.0 if _changes_later(view, node) else 1.0)
            )
    for call in view.nodes(ast.Call):
        shallow = isinstance(call.func, ast.Attribute) and call.func.attr == "copy" and not call.args
        if (
            shallow
            or (view_name(call.func) in ("list", "dict") and len(call.args) == 1)
            or code(call.func) == "copy.copy"
        ):
            inner = (
                code(call.func.value)
                if shallow and isinstance(call.func, ast.Attribute)
                else code(call.args[0])
                if call.args
                else ""
            )
            if inner and inner != "copy":
                yield from view.replace(call, f'__import__("copy").deepcopy({inner})', "copy", 0.7)
    for part in view.nodes(ast.Subscript):
        if (
            isinstance(part.slice, ast.Slice)
            and not part.slice.lower
            and not part.slice.upper
            and not part.slice.step
        ):
            yield from view.replace(part, f"[row[:] for row in {code(part.value)}]", "copy", 1.0)


def _changes_later(view: View, node: ast.expr) -> bool:
    """Return True for a list that is stored here while the function continues to change it."""
    function = view.source.function(node)
    if function is None or not isinstance(view.source.parents.get(node), ast.Call) or not isinstance(node, ast.Name):
        return False
    return any(
        isinstance(n, ast.Attribute)
        and n.attr in ("append", "pop", "add", "remove")
        and view_name(n.value) == node.id
        for n in ast.walk(view.source.function(function) or function)
    )


def lookups(view: View) -> Iterator[Edit]:
    """Exchange `table[key]` and `table.get(key, …)`, or key and value."""
    code = view.source.code
    for node in view.nodes(ast.Subscript):
        if isinstance(node.ctx, ast.Load) and not isinstance(node.slice, ast.Slice):
            types = view.types(node, code(node.value))
            if not types or types & {"dict", "defaultdict", "Counter", "OrderedDict"}:
                for default, weight in (
                    ("0", 1.0),
                    ("None", 0.6),
                    ("[]", 0.5),
                    ('""', 0.3),
                    ("1", 0.1),
                    ("set()", 0.2),
                ):
                    known = 1.0 if types else 0.2
                    yield from view.replace(
                        node, f"{code(node.value)}.get({code(node.slice)}, {default})", "lookup", weight * known
                    )
        if isinstance(node.ctx, ast.Store) and isinstance(view.source.parents.get(node), ast.Assign):
            parent = view.source.parents[node]
            if isinstance(parent, ast.Assign) and not isinstance(node.slice, ast.Slice):
                yield from view.swap(node.slice, parent.value, "lookup", 0.6)
    for table in view.nodes(ast.DictComp):
        yield from view.swap(table.key, table.value, "lookup", 1.0)
    for call in view.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("pop", "get") and call.args:
            yield from view.replace(call, f"{code(call.func.value)}[{code(call.args[0])}]", "lookup", 0.7)
    for pair in view.nodes(ast.expr):
        if not isinstance(pair, ast.Tuple | ast.List):
            continue
        for one, two in zip(pair.elts, pair.elts[1:], strict=False):
            yield from view.swap(one, two, "swapped items", 1.0 if len(pair.elts) == 2 else 0.5)
    for choice in view.nodes(ast.IfExp):
        yield from view.swap(choice.body, choice.orelse, "swapped items", 0.7)
        yield from view.replace(choice, code(choice.body), "dropped condition", 0.3)
        yield from view.replace(choice, code(choice.orelse), "dropped condition", 0.3)
    for comp in view.nodes(ast.comprehension):
        for test in comp.ifs:
            span = view.source.span(test)
            start = view.source.text.rfind("if", 0, span.start)
            old = view.source.text[start : span.end]
            yield view.edit(test, "dropped condition", 0.8, Change(start, span.end, old, ""))


MAKERS = (arguments, wraps, recursion, copies, lookups)
