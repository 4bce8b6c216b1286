"""Which calls follow the order of a set, and are not told apart by their arguments.

The order of a set of strings is another in each process (`set_values`). If a loop over one makes equal calls, a
resume could give the result of one call to another element of the set.

A call is told apart if the element itself is one of its arguments, or if it stands under a test that only one
element passes (`if name == "ada":`). If an argument is made from the element, the arguments are compared at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from enum import Enum

from ramify.compiler.frontend.python.assigned_values import item_source, names_in, names_stored_in
from ramify.compiler.frontend.python.name_resolution import Scope
from ramify.compiler.frontend.python.names import nodes_in
from ramify.compiler.frontend.python.set_types import tells_type
from ramify.compiler.frontend.python.set_values import ReadFunction, SetValues
from ramify.compiler.plan import EQUAL, MAYBE_EQUAL, PICKED
from ramify.compiler.spec import Following

_PLAIN = (
    *(ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context),
    *(ast.Tuple, ast.List, ast.Dict, ast.JoinedStr, ast.FormattedValue, ast.Subscript, ast.Starred),
)
"""Arguments of these kinds are equal in each turn of a loop, or count its turns. So are calls of these builtins:"""
_PLAIN_CALLS = frozenset({len, str, int, repr, next, sum, min, max, abs, range})


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop over a set, or over what may be one.

    elements: Names that are bound to the element, or to parts of it.
    exact: Names that are bound to the whole element. Two turns that bind equal values are not told apart, and need
        not be.
    picks: It takes its elements one by one: `names.pop()`.
    bound: Names that the loop binds. None: it stands around a call of this function.
    given: Where its source is recorded, if only the recorded value tells whether that is a set.
    """

    elements: frozenset[str]
    exact: frozenset[str]
    bound: frozenset[str] | None
    given: frozenset[str] = frozenset()
    picks: bool = False


class SetOrder:
    """The loops over sets around the code that is read, in one function.

    Args:
        scope: The names of the function.
        values: Judges its expressions.
        loops: The loops around the call of the function, with the names of its parameters.
        filled: Names of its parameters that may hold an element.
    """

    def __init__(
        self, scope: Scope, values: SetValues, loops: tuple[_Loop, ...] = (), filled: Iterable[str] = ()
    ) -> None:
        self.scope, self.values, self.loops, self.filled = scope, values, loops, set(filled)

    @classmethod
    def of_workflow(cls, scope: Scope, read: ReadFunction) -> SetOrder:
        """Return the one of a workflow: the recorded arguments of a run tell the types of its parameters."""
        node = scope.function.node
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        hints = {each.arg: None if each.annotation is None else ast.unparse(each.annotation) for each in arguments}
        given = {name: f"argument {name}" for name, hint in hints.items() if not tells_type(hint)}
        return cls(scope, SetValues(scope, read, given=given))

    def called(self, scope: Scope, arguments: Iterable[tuple[str, ast.expr]], *, nested: bool) -> SetOrder:
        """Return the same for a function that is called here, with these arguments by the names of its parameters.
        `nested`: it is defined inside this function."""
        pairs, holders = list(arguments), self._holders()
        loops = []
        for loop in self.loops:
            elements = {name for name, value in pairs if self._is_derived(value, loop)}
            exact = {name for name, value in pairs if self._is_exact(value, loop)}
            if nested:
                elements |= {name for name in self._derived(loop.elements) if name not in scope.local}
                exact |= {name for name in loop.exact if name not in scope.local}
            loops.append(_Loop(frozenset(elements), frozenset(exact), None, loop.given))
        filled = {name for name, value in pairs if not holders.isdisjoint(names_in(value))}
        filled |= {name for name in holders if name not in scope.local} if nested else set()
        unordered = {name for name, value in pairs if self.values.is_unordered(value)}
        if nested:
            outer = (name for name in self.values.values if name not in scope.local)
            unordered |= {name for name in outer if self.values.is_unordered(ast.Name(name, ast.Load()))}
        places = {name: min(found) for name, value in pairs if (found := self.values.given(value))}
        values = SetValues(scope, self.values.read, unordered=unordered, given=places)
        return SetOrder(scope, values, tuple(loops), filled)

    # Loops

    @contextmanager
    def loop(self, target: ast.expr, source: ast.expr, node: ast.AST) -> Iterator[None]:
        """Read what `node` repeats for each item of `source`, bound to `target`."""
        bound = frozenset(names_stored_in(node))
        given = self.values.given(source)
        loops = self._picking(node, bound)
        if self.values.is_unordered(source):
            elements, exact = self.values.elements_of(target, source)
            loops.append(_Loop(frozenset(elements), self._bound_once(exact), bound))
        elif listed := self.values.indexed_by(source):
            loops.append(_Loop(listed, frozenset(), bound))
        elif given:
            names = frozenset(names_in(target))
            exact = {target.id} if isinstance(target, ast.Name) else set()
            loops.append(_Loop(names, self._bound_once(exact), bound, given))
        with self._in((*self.loops, *loops)):
            yield

    @contextmanager
    def repeated(self, node: ast.While) -> Iterator[None]:
        """Read what a `while` loop repeats: it may take the elements of a set by `pop`."""
        with self._in((*self.loops, *self._picking(node, frozenset(names_stored_in(node))))):
            yield

    def _picking(self, node: ast.AST, bound: frozenset[str]) -> list[_Loop]:
        if not isinstance(node, ast.While | ast.For | ast.AsyncFor):
            return []
        taken: list[tuple[list[ast.expr], ast.expr]] = []
        for inner in nodes_in(node):
            match inner:
                case ast.Assign(targets, value):
                    taken.append((targets, value))
                case ast.NamedExpr(target, value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                    taken.append(([target], value))
        if not any(isinstance(inner, ast.Call) and self.values.is_pick(inner) for inner in nodes_in(node)):
            return []
        picked = [targets for targets, value in taken if self.values.is_pick(value)]
        names = {name for targets in picked for target in targets for name in names_in(target)}
        exact = {each.id for targets in picked for each in targets if isinstance(each, ast.Name)}
        return [_Loop(frozenset(names), self._bound_once(exact), bound, picks=True)]

    def _bound_once(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the names that the function only binds as elements of loops, or once."""
        node, values = self.scope.function.node, self.values.values
        stored = names_stored_in(node)
        items = {
            name: sum(value is not None and item_source(value) is not None for value in values.get(name, []))
            for name in names
        }
        return frozenset(name for name in names if stored.count(name) in (1, items[name]))

    @contextmanager
    def _in(self, loops: tuple[_Loop, ...]) -> Iterator[None]:
        before, self.loops = self.loops, loops
        yield
        self.loops = before

    # Tests that only one element passes

    @contextmanager
    def under(self, test: ast.expr, outcome: bool) -> Iterator[None]:
        """Read what runs if a test has this outcome. A loop of which one element only gets there counts as none."""
        with self._in(tuple(loop for loop in self.loops if not self._passes_one(loop, test, outcome))):
            yield

    @contextmanager
    def matched(self, subject: ast.expr, pattern: ast.pattern, guard: ast.expr | None) -> Iterator[None]:
        """Read what runs if a pattern matches and its guard holds."""
        while isinstance(pattern, ast.MatchAs) and pattern.pattern is not None:
            pattern = pattern.pattern
        test: ast.expr | None = None
        if isinstance(pattern, ast.MatchValue):
            test = ast.Compare(subject, [ast.Eq()], [pattern.value])
        elif isinstance(pattern, ast.MatchSingleton):
            test = ast.Compare(subject, [ast.Is()], [ast.Constant(pattern.value)])
        tests = [each for each in (test, guard) if each is not None]
        left = (loop for loop in self.loops if not any(self._passes_one(loop, each, outcome=True) for each in tests))
        with self._in(tuple(left)):
            yield

    def _passes_one(self, loop: _Loop, test: ast.expr, outcome: bool) -> bool:
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                return self._passes_one(loop, operand, not outcome)
            case ast.BoolOp(op, values) if isinstance(op, ast.And) is outcome:
                return any(self._passes_one(loop, each, outcome) for each in values)
            case ast.Compare(left, [ast.Eq() | ast.Is()], [right]) if outcome:
                return self._is_one(loop, left, right) or self._is_one(loop, right, left)
            case ast.Compare(left, [ast.NotEq() | ast.IsNot()], [right]) if not outcome:
                return self._is_one(loop, left, right) or self._is_one(loop, right, left)
            case ast.Compare(left, [op], [ast.Set([right]) | ast.Tuple([right]) | ast.List([right])]):
                return isinstance(op, ast.In if outcome else ast.NotIn) and self._is_one(loop, left, right)
        return False

    def _is_one(self, loop: _Loop, element: ast.expr, other: ast.expr) -> bool:
        return isinstance(element, ast.Name) and element.id in loop.exact and self._stays(loop, other)

    def _stays(self, loop: _Loop, node: ast.expr) -> bool:
        """Return whether an expression has the same value in all turns of a loop."""
        match node:
            case ast.Constant():
                return True
            case ast.UnaryOp(operand=ast.Constant()):
                return True
            case ast.Tuple(elts):
                return all(self._stays(loop, each) for each in elts)
            case ast.Attribute(owner, attr):
                known = self.scope.resolve(owner)
                return isinstance(known, type) and issubclass(known, Enum) and attr in known.__members__
            case ast.Name(id=name) if self.scope.is_local(name):
                shared = any(isinstance(each, ast.Nonlocal) for each in nodes_in(self.scope.function.node))
                return loop.bound is not None and name not in loop.bound and name in self.scope.local and not shared
            case ast.Name(id=name):
                return name not in self.scope.rebound
        return False

    # Calls

    def hides(self) -> Following:
        """Return how calls that the compiler cannot see here follow the order of a set."""
        places = [loop.given for loop in self.loops]
        given = frozenset[str]().union(*places) if all(places) else frozenset[str]()
        return Following(MAYBE_EQUAL, tuple(sorted(given))) if places else Following()

    def follows(self, call: ast.Call) -> Following:
        """Return how a call follows the order of a set."""
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        loops = [loop for loop in self.loops if not any(self._is_exact(each, loop) for each in given)]
        if not loops:
            return Following(PICKED) if any(map(self._is_picked, given)) else Following()
        places = frozenset[str]().union(*(loop.given for loop in loops))
        places = places if all(loop.given for loop in loops) else frozenset()
        plain = all(self._is_plain(node) for each in given for node in nodes_in(each))
        untold = any(not any(self._is_derived(each, loop) for each in given) for loop in loops)
        holders = self._holders() if plain and untold and given else set[str]()
        equal = plain and untold and all(holders.isdisjoint(names_in(each)) for each in given)
        return Following(EQUAL if equal else MAYBE_EQUAL, tuple(sorted(places)))

    def _is_picked(self, argument: ast.expr) -> bool:
        if any(not loop.given for loop in self.loops):  # all elements have their turn
            return False
        return self.values.depends_on_order(argument)

    def _is_plain(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return any(self.scope.resolve(node.func) is each for each in _PLAIN_CALLS)
        return isinstance(node, _PLAIN)

    def _is_exact(self, argument: ast.expr, loop: _Loop) -> bool:
        """Return whether an argument tells the element of a loop: it is the element, or holds it."""
        if loop.picks and self.values.is_pick(argument):
            return True
        match argument:
            case ast.Name(id=name):
                return name in loop.exact
            case ast.Tuple(elts) | ast.List(elts) | ast.Dict(values=elts):
                return any(self._is_exact(each, loop) for each in elts)
            case ast.JoinedStr(values):
                shown = [each.value for each in values if isinstance(each, ast.FormattedValue)]
                return self._is_made_of_one(shown, loop)
            case ast.BinOp(left, ast.Add(), right):
                return self._is_made_of_one([left, right], loop)
            case ast.Call(func, args, keywords) if is_dataclass(self.scope.resolve(func)):
                return any(self._is_exact(each, loop) for each in (*args, *(one.value for one in keywords)))
        return False

    def _is_made_of_one(self, parts: list[ast.expr], loop: _Loop) -> bool:
        """Return whether a text of these parts is another one for each element: one part is the element, and the
        others are the same in each turn."""
        others = [each for each in parts if not self._is_exact(each, loop)]
        return len(others) < len(parts) and all(self._stays(loop, each) for each in others)

    def _is_derived(self, node: ast.expr, loop: _Loop) -> bool:
        """Return whether an expression is made from the element of a loop."""
        return not self._derived(loop.elements).isdisjoint(names_in(node))

    def _derived(self, elements: Iterable[str]) -> set[str]:
        """Return the names that are bound to elements, or to what is made from them."""
        found = set(elements)
        while found and (
            fresh := {
                name
                for name, values in self.values.values.items()
                if name not in found
                for value in values
                if value is not None and not found.isdisjoint(names_in(value))
            }
        ):
            found |= fresh
        return found

    def _holders(self) -> set[str]:
        """Return the names of objects that an element may be put into: `batch.append(name)`, `fill(batch, name)`,
        `batch["to"] = name`."""
        if not self.loops and not self.filled:
            return set()
        puts = [put for node in nodes_in(self.scope.function.node) if (put := _put(node)) is not None]
        found = set(self.filled)
        derived = self._derived({name for loop in self.loops for name in loop.elements})
        while fresh := {
            name for into, names in puts for name in into - found if not (derived | found).isdisjoint(names - {name})
        }:
            found |= fresh
        return found


def _put(node: ast.AST) -> tuple[set[str], set[str]] | None:
    """Return the names of the objects that a call or an assignment may change, and all names in it."""
    match node:
        case ast.Call(func, args):
            given = [*args, *(keyword.value for keyword in node.keywords)]
            changed = [each for each in (func, *given) if isinstance(each, ast.Name | ast.Attribute)]
            changed = changed[1:] if isinstance(func, ast.Name) else changed
            return {name for each in changed for name in names_in(each)}, set(names_in(node))
        case ast.Assign(targets=targets):
            into = [_base(each) for each in targets]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            into = [_base(target)]
        case _:
            return None
    return {each for each in into if each is not None}, set(names_in(node))


def _base(target: ast.expr) -> str | None:
    """Return the name of the object of which an assignment sets an item or a field."""
    node = target
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) and node is not target else None
