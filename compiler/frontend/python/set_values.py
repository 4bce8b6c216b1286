"""Which expressions of a function hold items in the order of a set, as far as the code tells.

The order of a set of strings is another in each process, because Python salts their hashes. Sets are found by their
syntax, by annotations, by what functions of the project return, and by the values of globals. Sets of integers have
the same order in each process. A name counts as a set if everything that its function assigns to it does.

Of a parameter of the workflow and of a step's result without an annotation, the type is known at run time only:
`given` says which they are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ramify.compiler.frontend.python.assigned_values import (
    Assigned,
    annotation_in,
    assigned_values,
    filled_by,
    item_source,
    last_argument,
    loops_in,
    names_in,
    picked_from,
)
from ramify.compiler.frontend.python.name_resolution import (
    UNRESOLVED,
    Scope,
    annotations_of,
    plain_function,
    step_info,
)
from ramify.compiler.frontend.python.names import nodes_in
from ramify.compiler.frontend.python.set_types import (
    are_integers,
    holds_sets,
    is_annotated,
    is_coarse,
    is_range,
    is_set_annotation,
    is_unordered_value,
    is_view,
    place_of,
    tells_order,
)
from ramify.compiler.frontend.python.sources import Function, own_nodes

ReadFunction = Callable[[object], Function | None]
"""Returns the function of the project that a call of the object runs, with its syntax tree."""

_KEEP_ORDER = (list, tuple, iter, reversed, enumerate, zip, map, filter, dict)
_MODULES_THAT_KEEP_ORDER = ("itertools", "collections")  # their classes hold or yield the items of their arguments
_SET_METHODS = ("union", "intersection", "difference", "symmetric_difference", "copy")
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
_VIEWS = ("items", "keys", "values")
_MOST_FUNCTIONS = 8  # so many functions are read one inside the other to know what the outermost returns


class SetValues:
    """Judges the expressions of one function.

    Args:
        scope: The names of the function.
        read: Finds the functions that it calls.
        unordered: Names of its parameters that are given items in the order of a set.
        given: Names of its parameters whose type is known at run time only, each with where its value is recorded.
        depth: How many functions are read around this one only to know what they return.
    """

    def __init__(
        self,
        scope: Scope,
        read: ReadFunction,
        *,
        unordered: Iterable[str] = (),
        given: dict[str, str] | None = None,
        depth: int = 0,
    ) -> None:
        self.scope, self.read = scope, read
        self._parameters, self._given, self._depth = frozenset(unordered), given or {}, depth
        self._assigned: Assigned | None = None
        self._judged: dict[tuple[str, str], bool] = {}
        self._sorts: set[str] | None = None
        self._fills: list[tuple[ast.expr, set[str]]] | None = None

    @property
    def values(self) -> Assigned:
        """What the function assigns to each name; None if that is not known."""
        if self._assigned is None:
            self._assigned = assigned_values(self.scope.function.node)
        return self._assigned

    def is_unordered(self, node: ast.expr) -> bool:
        """Return whether an expression is a set whose order may differ, or holds items in the order of one."""
        match node:
            case ast.Set(elts):
                return not all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in elts)
            case ast.List(elts) | ast.Tuple(elts):
                return any(isinstance(each, ast.Starred) and self.is_unordered(each.value) for each in elts)
            case ast.SetComp(elt, generators):
                return not is_range(generators[0].iter) and not are_integers(elt)
            case (
                ast.ListComp(generators=generators)
                | ast.GeneratorExp(generators=generators)
                | ast.DictComp(generators=generators)
            ):
                return any(self.is_unordered(each.iter) for each in generators)
            case ast.Await(value) | ast.NamedExpr(value=value) | ast.Starred(value):
                return self.is_unordered(value)
            case ast.BinOp(left, op, right) if isinstance(op, _SET_OPERATORS):
                return self.is_unordered(left) or self.is_unordered(right) or is_view(left) or is_view(right)
            case ast.BinOp(left, ast.Add(), right):
                return self.is_unordered(left) or self.is_unordered(right)
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_unordered(body) and self.is_unordered(orelse)
            case ast.BoolOp(values=values):
                return any(map(self.is_unordered, values))
            case ast.Subscript(value, ast.Slice()):
                return self.is_unordered(value)
            case ast.Name(id=name):
                return self._is_unordered_name(name, node)
            case ast.Attribute(attr=attr):
                known = self.scope.resolve(node)
                return self._is_unordered_field(attr) if known is UNRESOLVED else is_unordered_value(known)
            case ast.Call():
                return self._is_unordered_call(node)
        return False

    def elements_of(self, target: ast.expr, source: ast.expr) -> tuple[set[str], set[str]]:
        """Return the names in a loop's target that are bound to the element or a part of it, and those that tell it
        from all others. Equal elements need not be told apart."""
        match source, target:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]), ast.Tuple(elts=[_, item]):
                return self.elements_of(item, inner)
            case ast.Call(func=ast.Name(id="zip"), args=args), ast.Tuple(elts=items) if len(items) == len(args):
                found: tuple[set[str], set[str]] = set(), set()
                for item, arg in zip(items, args, strict=True):
                    if self.is_unordered(arg):
                        names, exact = self.elements_of(item, arg)
                        found[0].update(names)
                        found[1].update(() if self._is_made_of_elements(arg) else exact)
                return found
            case ast.Call(ast.Attribute(attr="items")), ast.Tuple(elts=[ast.Name(id=name), _]):
                return set(names_in(target)), {name}
        return set(names_in(target)), {target.id} if isinstance(target, ast.Name) else set()

    def _is_made_of_elements(self, node: ast.expr) -> bool:
        """Return whether an expression holds what is made of a set's elements, which may be equal for two of them."""
        if isinstance(node, ast.Name):
            return any(isinstance(each, ast.ListComp) for each in self.values.get(node.id, []))
        return isinstance(node, ast.ListComp | ast.GeneratorExp | ast.Await)

    def indexed_by(self, source: ast.expr) -> frozenset[str]:
        """Return the name of the list in the order of a set that `range(len(names))` counts; at most one."""
        match source:
            case ast.Call(ast.Name(id="range"), [*_, ast.Call(ast.Name(id="len"), [ast.Name(id=name) as items])]):
                return frozenset((name,)) if self.is_unordered(items) and self._is_sequence(items) else frozenset()
        return frozenset()

    def given(self, node: ast.expr) -> frozenset[str]:
        """Return where the value is recorded that an expression iterates over, if only that value tells its type."""
        match node:
            case ast.Await(value) | ast.Starred(value) | ast.NamedExpr(value=value):
                return self.given(value)
            case ast.Subscript(value, ast.Slice()):
                return self.given(value)
            case ast.Call(func, args) if self._keeps_order(func):
                return frozenset(place for each in args for place in self.given(each))
            case ast.Call(func):
                info = step_info(self.scope.resolve(func))
                known = info is None or is_annotated(self.scope.resolve(func))
                return frozenset() if known or info is None else frozenset((place_of(info),))
            case ast.ListComp(generators=[only, *_]) | ast.GeneratorExp(generators=[only, *_]):
                return self.given(only.iter)
            case ast.Name(id=name) if name in self._given:
                return frozenset((self._given[name],))
            case ast.Name(id=name) if self.scope.is_local(name):
                values = self.values.get(name, [])
                if any(value is None or annotation_in(value) is not None for value in values):
                    return frozenset()
                self._given[name] = ""  # while it is read
                found = {place for value in values if value is not None for place in self.given(value)}
                del self._given[name]
                return frozenset(found - {""})
        return frozenset()

    # Calls

    def _keeps_order(self, func: ast.expr) -> bool:
        target = self.scope.resolve(func)
        module = getattr(target, "__module__", None) if isinstance(target, type) else None
        return any(target is each for each in _KEEP_ORDER) or module in _MODULES_THAT_KEEP_ORDER

    def _is_unordered_call(self, node: ast.Call) -> bool:
        func, args = node.func, node.args
        target = self.scope.resolve(func)
        if target is set or target is frozenset:
            return not (args and is_range(args[0]))
        if target is sorted and args:
            keys = [each.value for each in node.keywords if each.arg == "key"]
            return any(map(self._has_ties, keys)) and self.is_unordered(args[0])
        if self._keeps_order(func):
            return any(map(self.is_unordered, args))
        if isinstance(func, ast.Attribute) and func.attr == "gather":
            return any(isinstance(each, ast.Starred) and self.is_unordered(each.value) for each in args)
        if isinstance(func, ast.Attribute) and target is UNRESOLVED:
            if func.attr in (*_SET_METHODS, *_VIEWS):
                return self.is_unordered(func.value)
        elif isinstance(func, ast.Attribute) and func.attr == "fromkeys" and args:
            return self.is_unordered(args[0])
        return not isinstance(target, type) and self._returns_set(node, target)

    def _has_ties(self, key: ast.expr) -> bool:
        """Return whether a key of `sorted` is equal for many items: a length, a comparison, a part of the item."""
        if isinstance(key, ast.Lambda):
            return is_coarse(key.body)
        return self.scope.resolve(key) in (len, bool, type, hash, id)

    def _returns_set(self, call: ast.Call, target: object) -> bool:
        """Return whether a function is declared to return a set, or returns or yields items in the order of one."""
        func = call.func
        found = self.scope.definition(func.id) if isinstance(func, ast.Name) else None
        plain = plain_function(target)
        if found is not None:
            outer, node = found
            annotation = getattr(node, "returns", None)
            hint = None if annotation is None else ast.unparse(annotation)
            if hint is not None and tells_order(hint):
                return is_set_annotation(hint)
            called = self.scope.function
            function = Function(func.id, called.module, called.path, node, called.outer)  # type: ignore[attr-defined]
            return self._always_returns_set(call, function, outer)
        if plain is None:
            return False
        hint = annotations_of(plain).get("return", "")
        if tells_order(hint or None) or step_info(target) is not None:  # a step's list is recorded in its order
            return is_set_annotation(hint)
        read = self.read(target) if self._depth < _MOST_FUNCTIONS else None
        return read is not None and self._always_returns_set(call, read, None)

    def _always_returns_set(self, call: ast.Call, function: Function, outer: Scope | None) -> bool:
        if self._depth >= _MOST_FUNCTIONS:
            return False
        parameters = (*function.node.args.posonlyargs, *function.node.args.args)
        pairs = [*zip((each.arg for each in parameters), call.args, strict=False)]
        pairs += [(each.arg, each.value) for each in call.keywords if each.arg is not None]
        unordered = [name for name, value in pairs if self.is_unordered(value)]
        scope = Scope.of(function, self.scope.rebound, outer)
        inner = SetValues(scope, self.read, unordered=unordered, depth=self._depth + 1)
        if isinstance(function.node, ast.Lambda):
            return inner.is_unordered(function.node.body)
        returned = [node.value for node in own_nodes(function.node) if isinstance(node, ast.Return)]
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(function.node)):
            return inner._yields_in_order()
        return bool(returned) and all(value is not None and inner.is_unordered(value) for value in returned)

    def _yields_in_order(self) -> bool:
        """Return whether the function yields in a loop over a set."""
        for node in own_nodes(self.scope.function.node):
            if isinstance(node, ast.YieldFrom) and self.is_unordered(node.value):
                return True
            if isinstance(node, ast.For | ast.AsyncFor) and self.is_unordered(node.iter):
                return any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in nodes_in(node))
        return False

    # Names and fields

    def _is_unordered_name(self, name: str, node: ast.Name) -> bool:
        if not self.scope.is_local(name):
            return is_unordered_value(self.scope.resolve(node))
        if name in self._parameters:
            return True
        return (self._judge("set", name, self._gives_set) or self._is_filled(name)) and name not in self._sorted

    @property
    def _sorted(self) -> set[str]:
        """The names of the lists that the function sorts in place."""
        if self._sorts is None:
            self._sorts = set()
            for node in nodes_in(self.scope.function.node):
                match node:
                    case ast.Call(ast.Attribute(ast.Name(id=owner), "sort"), keywords=given):
                        if not any(self._has_ties(each.value) for each in given if each.arg == "key"):
                            self._sorts.add(owner)
        return self._sorts

    def _judge(self, how: str, name: str, judge: Callable[[ast.expr], bool]) -> bool:
        if (how, name) not in self._judged:
            self._judged[how, name] = False  # while it is judged
            values = self.values.get(name, [])
            self._judged[how, name] = bool(values) and all(each is not None and judge(each) for each in values)
        return self._judged[how, name]

    def _gives_set(self, value: ast.expr) -> bool:
        if (source := item_source(value)) is not None:
            return self._has_sets(source)
        annotation = annotation_in(value)
        return self.is_unordered(value) if annotation is None else is_set_annotation(ast.unparse(annotation))

    def _is_filled(self, name: str) -> bool:
        """Return whether a loop over a set puts items into the object of this name."""
        if self._fills is None:
            self._fills = []
            found = list[tuple[ast.expr, set[str]]]()
            for loop, body in loops_in(self.scope.function.node):
                into = {put for each in body for inner in nodes_in(each) if (put := filled_by(inner)) is not None}
                found.append((loop, into))
            self._fills = found
        judged = ("filled", name)
        if judged not in self._judged:
            self._judged[judged] = False  # while it is judged
            self._judged[judged] = any(name in into and self.is_unordered(loop) for loop, into in self._fills)
        return self._judged[judged]

    def _is_unordered_field(self, name: str) -> bool:
        """Return whether the classes that the module knows declare the field of this name as a set."""
        classes = [value for value in self.scope.function.outer.values() if isinstance(value, type)]
        found = [hint for each in classes if (hint := annotations_of(each).get(name)) is not None]
        return bool(found) and all(map(is_set_annotation, found))

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
                annotations = [None if each is None else annotation_in(each) for each in self.values.get(name, [])]
                return bool(annotations) and all(
                    isinstance(each, ast.Subscript) and is_set_annotation(ast.unparse(last_argument(each)))
                    for each in annotations
                )
        return holds_sets(self.scope.resolve(node))

    # Items taken one by one, and values that depend on the order

    def is_pick(self, value: ast.AST) -> bool:
        """Return whether an expression takes one item: `names.pop()`, `next(each)`, `list(names)[0]`."""
        match value:
            case ast.NamedExpr(value=inner) | ast.Await(inner):
                return self.is_pick(inner)
            case ast.Call() if (owner := picked_from(value)) is not None:
                return self.is_unordered(owner)
            case ast.Subscript(owner, index) if not isinstance(index, ast.Slice):
                return self._is_sequence(owner)
        return False

    def depends_on_order(self, node: ast.expr) -> bool:
        """Return whether a value is another one in another order of a set: a list of its items, their text, or one of
        its items."""
        match node:
            case ast.Call(func) if self.scope.resolve(func) in (sorted, set, frozenset, len, sum, min, max, any, all):
                return False
            case ast.Call(ast.Attribute(ast.Constant(), "join"), [items]) | ast.Call(ast.Name(id="str"), [items]):
                return self.is_unordered(items)
            case ast.FormattedValue(value):
                return self.is_unordered(value) or self.depends_on_order(value)
            case ast.Name(id=name) if self.scope.is_local(name):
                return self._judge_any("order", name) or (self.is_unordered(node) and self._is_sequence(node))
            case ast.Lambda():
                return False
        if self.is_pick(node) or (self.is_unordered(node) and self._is_sequence(node)):
            return True
        return any(self.depends_on_order(each) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))

    def _judge_any(self, how: str, name: str) -> bool:
        if (how, name) not in self._judged:
            self._judged[how, name] = False  # while it is judged
            values = [value for value in self.values.get(name, []) if value is not None]
            plain = [value for value in values if item_source(value) is None and annotation_in(value) is None]
            self._judged[how, name] = any(map(self.depends_on_order, plain))
        return self._judged[how, name]

    def _is_sequence(self, node: ast.expr) -> bool:
        """Return whether an unordered expression is a list or the like, and not a set or a dict, whose order does not
        matter to whom they are given."""
        match node:
            case ast.Name(id=name) if self.scope.is_local(name):
                known = [value for value in self.values.get(name, []) if value is not None]
                plain = [value for value in known if not isinstance(value, ast.Name)]
                return any(isinstance(each, ast.List | ast.ListComp) or self._is_list_call(each) for each in plain)
            case ast.Await(value):
                return self._is_sequence(value)
            case ast.Subscript(value, ast.Slice()):
                return self._is_sequence(value)
        return isinstance(node, ast.List | ast.Tuple | ast.ListComp | ast.GeneratorExp) or self._is_list_call(node)

    def _is_list_call(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Await):
            return self._is_list_call(node.value)
        if not isinstance(node, ast.Call) or not self.is_unordered(node):
            return False
        gathered = isinstance(node.func, ast.Attribute) and node.func.attr == "gather"
        return gathered or self.scope.resolve(node.func) in (list, tuple, sorted)
