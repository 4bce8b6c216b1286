"""What annotations, values and small pieces of syntax say about sets whose order is another in each process."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ramify.compiler.declarations import StepInfo
from ramify.compiler.frontend.python.name_resolution import annotations_of, plain_function
from ramify.compiler.frontend.python.spec_inputs import noted

_SETS = re.compile(
    r"^(?:[\w.]+\.)?(?:set|frozenset|Set|FrozenSet|AbstractSet|MutableSet)(?:\[\s*(?P<item>.*?)\s*\])?$", re.DOTALL
)
_SAYS_NOTHING = re.compile(r"^(?:[\w.]+\.)?(?:Any|object|(?:Iterable|Collection|Container)(?:\[.*\])?)$", re.DOTALL)

_HOLDS_ITEMS = re.compile(
    r"^(?:[\w.]+\.)?(?:list|tuple|dict|deque|List|Tuple|Dict|Sequence|Mapping|Iterator|Generator|Async\w+)\b",
    re.DOTALL,
)


def is_coarse(body: ast.expr) -> bool:
    """Return whether the body of a key of `sorted` is equal for many items."""
    match body:
        case ast.Tuple(elts):
            return all(map(is_coarse, elts))
        case ast.UnaryOp(operand=operand):
            return is_coarse(operand)
        case ast.Call(ast.Name(id="len" | "bool" | "type" | "hash" | "id")):
            return True
        case ast.Subscript(ast.Name(), ast.Constant(int())):
            return True
    return isinstance(body, ast.Constant | ast.Compare)


def place_of(info: StepInfo) -> str:
    """Return where the results of a step are recorded, as `IF_SET` names it."""
    return f"step {info.name}"


def is_annotated(step: object) -> bool:
    """Return whether a step declares what it returns."""
    function = plain_function(step)
    return function is None or tells_type(annotations_of(function).get("return"))


def tells_type(annotation: str | None) -> bool:
    """Return whether an annotation, as text, says whether a value is a set. `Iterable[str]` does not."""
    return annotation is not None and _SAYS_NOTHING.match(annotation.strip().strip("'\"")) is None


def tells_order(annotation: str | None) -> bool:
    """Return whether an annotation, as text, says whether a value's items are in the order of a set. That of a list
    does not."""
    if annotation is None or not tells_type(annotation):
        return False
    return is_set_annotation(annotation) or _HOLDS_ITEMS.match(annotation.strip().strip("'\"")) is None


def is_view(node: ast.expr) -> bool:
    """Return whether an expression is a dict's view: an operator on it makes a set."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def is_range(node: ast.expr) -> bool:
    """Return whether an expression is a call of `range`: a set of its items has one order."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def are_integers(node: ast.expr) -> bool:
    """Return whether an expression is an integer for each item: a set of them has one order."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("int", "len", "ord")


def is_unordered_value(value: object) -> bool:
    """Return whether a value is a set of other items than integers."""
    return isinstance(value, set | frozenset) and noted(partial(_has_others, value))


def holds_sets(value: object) -> bool:
    """Return whether a value is a list, a tuple or a dict of such sets."""
    return isinstance(value, dict | list | tuple) and noted(partial(_are_sets, value))


def _are_sets(held: Mapping[Any, object] | Iterable[object]) -> bool:
    items = list(held.values() if isinstance(held, Mapping) else held)
    return bool(items) and all(isinstance(each, set | frozenset) and _has_others(each) for each in items)


def _has_others(items: Iterable[object]) -> bool:
    return not all(type(each) in (int, bool) for each in items)


def is_set_annotation(text: str) -> bool:
    """Return whether an annotation, as text, is a set of other items than integers, alone or in a union."""
    found = (_SETS.match(part.strip().strip("'\"")) for part in text.split("|"))
    return any(each is not None and each["item"] not in ("int", "bool") for each in found)


def returns_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function is declared to return None, so that no result can be given to another call."""
    return annotations_of(function).get("return") == "None"
