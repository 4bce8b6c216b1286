"""Which calls follow the order of a set, and are not told apart by their arguments.

The order of a set of strings is another in each process, because Python salts their hashes. If a loop over one makes
equal calls, a resume could give the result of one call to another element of the set.

Sets are found by their syntax, by annotations (also of the function that returns them), and by the values of globals.
Sets of integers have the same order in each process. A name counts as a set if everything that its function assigns
to it does. A call is told apart if one of its arguments is made from the element of the set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ramify.compiler.frontend.python.name_resolution import UNRESOLVED, Scope, annotations_of, plain_function
from ramify.compiler.frontend.python.names import arguments_of, nodes_in
from ramify.compiler.frontend.python.sources import Definition
from ramify.compiler.plan import EQUAL, MAYBE_EQUAL

_PLAIN = (ast.Constant, ast.Name, ast.BinOp, ast.operator, ast.Tuple, ast.List, ast.expr_context)
"""Arguments of these kinds are equal in each turn of a loop, or count its turns."""
_KEEP_ORDER = ("list", "tuple", "iter", "reversed", "enumerate", "zip", "map", "filter", "dict")
_SETS = re.compile(
    r"^(?:[\w.]+\.)?(?:set|frozenset|Set|FrozenSet|AbstractSet|MutableSet)(?:\[\s*(?P<item>.*?)\s*\])?$", re.DOTALL
)
_SET_METHODS = ("union", "intersection", "difference", "symmetric_difference", "copy")
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
_VIEWS = ("items", "keys", "values")


class SetOrder:
    """The loops over sets around the code that is read, in one function.

    Args:
        scope: The names of the function.
        inside: The function is called inside a loop over a set.
        elements: Names of its parameters that are made from an element of that set.
        filled: Names of its parameters that may hold such an element.
    """

    def __init__(
        self, scope: Scope, *, inside: bool = False, elements: Iterable[str] = (), filled: Iterable[str] = ()
    ) -> None:
        self.scope, self.inside = scope, inside
        self.elements, self.filled = set(elements), set(filled)
        self._assigned: dict[str, list[ast.expr | None]] | None = None
        self._judged: dict[str, bool] = {}

    def called(self, scope: Scope, arguments: Iterable[tuple[str, ast.expr]], *, nested: bool) -> SetOrder:
        """Return the same for a function that is called here, with these arguments by the names of its parameters.
        `nested`: it is defined inside this function."""
        given, holders = list(arguments), self._holders()
        elements = {name for name, value in given if self.is_element(value)}
        filled = {name for name, value in given if not holders.isdisjoint(_names(value))}
        if nested:
            elements |= {name for name in self._derived() if name not in scope.local}
            filled |= {name for name in holders if name not in scope.local}
        return SetOrder(scope, inside=self.inside, elements=elements, filled=filled)

    @contextmanager
    def loop(self, target: ast.expr, source: ast.expr) -> Iterator[None]:
        """Read what is repeated for each item of `source`, bound to `target`."""
        with self._in(self._elements_of(target, source) if self.is_unordered(source) else None):
            yield

    @contextmanager
    def repeated(self, body: Iterable[ast.stmt]) -> Iterator[None]:
        """Read the body of a `while` loop: it may take the elements of a set by `pop`."""
        taken = [
            (node.targets, node.value) for each in body for node in nodes_in(each) if isinstance(node, ast.Assign)
        ]
        popped = [targets for targets, value in taken if self._is_pop(value)]
        found = {name for targets in popped for target in targets for name in _names(target)}
        with self._in(found if popped else None):
            yield

    @contextmanager
    def _in(self, elements: set[str] | None) -> Iterator[None]:
        before = self.inside, self.elements
        if elements is not None:
            self.inside, self.elements = True, self.elements | elements
        yield
        self.inside, self.elements = before

    def follows(self, call: ast.Call) -> str:
        """Return how a call follows the order of a set: `EQUAL`, `MAYBE_EQUAL`, or "" if it does not, or if one of
        its arguments comes from the set's element."""
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        if not self.inside or any(map(self.is_element, given)):
            return ""
        plain = all(isinstance(node, _PLAIN) for each in given for node in nodes_in(each))
        holders = self._holders() if plain and given else set[str]()
        return EQUAL if plain and all(holders.isdisjoint(_names(each)) for each in given) else MAYBE_EQUAL

    def is_element(self, node: ast.expr) -> bool:
        """Return whether an expression is made from the element of a set."""
        names = {inner.id for inner in nodes_in(node) if isinstance(inner, ast.Name)}
        return not names.isdisjoint(self._derived())

    def _derived(self) -> set[str]:
        """Return the names that are bound to elements, or to what is made from them."""
        found = set(self.elements)
        while fresh := {
            name
            for name, values in self._values().items()
            if name not in found
            for value in values
            if value is not None and found & {n.id for n in nodes_in(value) if isinstance(n, ast.Name)}
        }:
            found |= fresh
        return found

    def _holders(self) -> set[str]:
        """Return the names of objects that an element may be put into: `batch.append(name)`, `fill(batch, name)`,
        `batch["to"] = name`."""
        puts = [put for node in nodes_in(self.scope.function.node) if (put := _put(node)) is not None]
        found, derived = set(self.filled), self._derived()
        while fresh := {
            name for into, names in puts if not names.isdisjoint(derived | found) for name in into - found
        }:
            found |= fresh
        return found

    # Sets

    def is_unordered(self, node: ast.expr) -> bool:
        """Return whether an expression is a set whose order may differ, or holds items in the order of one."""
        match node:
            case ast.Set(elts):
                return not all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in elts)
            case ast.SetComp(generators=generators):
                return not _is_range(generators[0].iter)
            case ast.ListComp(generators=generators) | ast.GeneratorExp(generators=generators):
                return any(self.is_unordered(each.iter) for each in generators)
            case ast.DictComp(generators=generators):
                return any(self.is_unordered(each.iter) for each in generators)
            case ast.Await(value) | ast.NamedExpr(value=value) | ast.Starred(value):
                return self.is_unordered(value)
            case ast.BinOp(left, op, right) if isinstance(op, _SET_OPERATORS):
                return self.is_unordered(left) or self.is_unordered(right) or _is_view(left) or _is_view(right)
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_unordered(body) and self.is_unordered(orelse)
            case ast.Subscript(value, ast.Slice()):
                return self.is_unordered(value)
            case ast.Name(id=name):
                return self._is_unordered_name(name, node)
            case ast.Attribute(attr=attr):
                known = self.scope.resolve(node)
                return self._is_unordered_field(attr) if known is UNRESOLVED else _is_unordered_value(known)
            case ast.Call():
                return self._is_unordered_call(node)
        return False

    def _is_unordered_call(self, node: ast.Call) -> bool:
        func, args = node.func, node.args
        target = self.scope.resolve(func)
        if target is set or target is frozenset:
            return not (args and _is_range(args[0]))
        if target is sorted and args:
            by_length = any(each.arg == "key" and self.scope.resolve(each.value) is len for each in node.keywords)
            return by_length and self.is_unordered(args[0])
        if isinstance(func, ast.Name) and func.id in _KEEP_ORDER and isinstance(target, type):
            return any(map(self.is_unordered, args))
        if isinstance(func, ast.Attribute) and target is UNRESOLVED:
            if func.attr in (*_SET_METHODS, *_VIEWS):
                return self.is_unordered(func.value)
        elif isinstance(func, ast.Attribute) and func.attr == "fromkeys" and args:
            return self.is_unordered(args[0])
        return not isinstance(target, type) and _returns_set(plain_function(target))

    def _is_unordered_field(self, name: str) -> bool:
        """Return whether the classes that the module knows declare the field of this name as a set."""
        classes = [value for value in self.scope.function.outer.values() if isinstance(value, type)]
        found = [hint for each in classes if (hint := annotations_of(each).get(name)) is not None]
        return bool(found) and all(map(_is_set_annotation, found))

    def _has_sets(self, node: ast.expr) -> bool:
        """Return whether the items of an expression are such sets."""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return bool(items) and all(map(self.is_unordered, items))
            case ast.Call(func=ast.Attribute(value=owner, attr="values"), args=[]):
                return self._has_sets(owner)
            case ast.Dict(values=items):
                return bool(items) and all(map(self.is_unordered, items))
            case ast.Name(id=name) if self.scope.is_local(name):
                annotations = [
                    None if each is None else _annotation_in(each) for each in self._values().get(name, [])
                ]
                return bool(annotations) and all(
                    isinstance(each, ast.Subscript) and _is_set_annotation(ast.unparse(_last_argument(each)))
                    for each in annotations
                )
        value = self.scope.resolve(node)
        if isinstance(value, dict):
            value = list(value.values())
        return isinstance(value, list | tuple) and bool(value) and all(map(_is_unordered_value, value))

    def _is_pop(self, value: ast.expr) -> bool:
        match value:
            case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[], keywords=[]):
                return self.is_unordered(owner)
        return False

    def _is_unordered_name(self, name: str, node: ast.Name) -> bool:
        if not self.scope.is_local(name):
            return _is_unordered_value(self.scope.resolve(node))
        if name not in self._judged:
            self._judged[name] = False  # while it is judged
            values = self._values().get(name, [])
            self._judged[name] = bool(values) and all(each is not None and self._gives_set(each) for each in values)
        return self._judged[name]

    def _gives_set(self, value: ast.expr) -> bool:
        match value:
            case ast.Subscript(value=ast.Name(id=name), slice=source) if name == _ITEM:
                return self._has_sets(source)
        annotation = _annotation_in(value)
        return self.is_unordered(value) if annotation is None else _is_set_annotation(ast.unparse(annotation))

    def _values(self) -> dict[str, list[ast.expr | None]]:
        """Return what the function assigns to each name; None if that is not known. A parameter or a declaration
        stands as its annotation, marked by `_annotated`."""
        if self._assigned is None:
            self._assigned = _assignments(self.scope.function.node)
        return self._assigned

    def _elements_of(self, target: ast.expr, source: ast.expr) -> set[str]:
        """Return the names in a loop's target that are bound to the element, not to its number."""
        match source, target:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]), ast.Tuple(elts=[_, item]):
                return self._elements_of(item, inner)
            case ast.Call(func=ast.Name(id="zip"), args=args), ast.Tuple(elts=items) if len(items) == len(args):
                pairs = zip(items, args, strict=True)
                return {
                    name for item, arg in pairs if self.is_unordered(arg) for name in self._elements_of(item, arg)
                }
        return set(_names(target))


_MARK, _ITEM = "<annotation>", "<item>"


def _annotated(annotation: ast.expr) -> ast.expr:
    return ast.Subscript(ast.Name(_MARK, ast.Load()), annotation, ast.Load())


def _annotation_in(value: ast.expr) -> ast.expr | None:
    match value:
        case ast.Subscript(value=ast.Name(id=name), slice=annotation) if name == _MARK:
            return annotation
    return None


def _assignments(definition: Definition) -> dict[str, list[ast.expr | None]]:
    found: dict[str, list[ast.expr | None]] = {}
    for argument in arguments_of(definition.args):
        found[argument.arg] = [None if argument.annotation is None else _annotated(argument.annotation)]
    for node in nodes_in(definition):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target, given in (pair for each in targets for pair in _pairs(each, value)):
                    for name in _names(target):
                        found.setdefault(name, []).append(given if isinstance(target, ast.Name) else None)
            case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source):
                item = ast.Subscript(ast.Name(_ITEM, ast.Load()), source, ast.Load())
                for name in _names(target):
                    found.setdefault(name, []).append(item if isinstance(target, ast.Name) else None)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                known = re.search(r"[sS]et\b", ast.unparse(annotation)) is not None
                found.setdefault(name, []).append(_annotated(annotation) if known or value is None else value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                found.setdefault(name, []).append(value)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                if not isinstance(op, _SET_OPERATORS):
                    found.setdefault(name, []).append(value)
    return found


def _put(node: ast.AST) -> tuple[set[str], set[str]] | None:
    """Return the names of the objects that a call or an assignment may change, and all names in it."""
    match node:
        case ast.Call(func, args):
            given = [*args, *(keyword.value for keyword in node.keywords)]
            changed = [each for each in (func, *given) if isinstance(each, ast.Name | ast.Attribute)]
            changed = changed[1:] if isinstance(func, ast.Name) else changed
            return {name for each in changed for name in _names(each)}, set(_names(node))
        case ast.Assign(targets=targets):
            into = [_base(each) for each in targets]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            into = [_base(target)]
        case _:
            return None
    return {each for each in into if each is not None}, set(_names(node))


def _base(target: ast.expr) -> str | None:
    """Return the name of the object of which an assignment sets an item or a field."""
    node = target
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) and node is not target else None


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what `target = value` binds, each with its value: `a, b = 1, 2` binds two names."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for inner, given in zip(target.elts, value.elts, strict=True):
            yield from _pairs(inner, given)
    else:
        yield target, value


def _last_argument(annotation: ast.Subscript) -> ast.expr:
    given = annotation.slice
    return given.elts[-1] if isinstance(given, ast.Tuple) else given


def _is_view(node: ast.expr) -> bool:
    """Return whether an expression is a dict's view: an operator on it makes a set."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def _names(target: ast.AST) -> Iterator[str]:
    return (node.id for node in nodes_in(target) if isinstance(node, ast.Name))


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def _is_unordered_value(value: object) -> bool:
    return isinstance(value, set | frozenset) and not all(type(each) in (int, bool) for each in value)


def _returns_set(function: Callable[..., Any] | None) -> bool:
    return function is not None and _is_set_annotation(annotations_of(function).get("return", ""))


def _is_set_annotation(text: str) -> bool:
    """Return whether an annotation, as text, is a set of other items than integers, alone or in a union."""
    found = (_SETS.match(part.strip().strip("'\"")) for part in text.split("|"))
    return any(each is not None and each["item"] not in ("int", "bool") for each in found)


def returns_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function is declared to return None, so that no result can be given to another call."""
    return annotations_of(function).get("return") == "None"
