"""What a name in a workflow refers to, as far as that is known without running the workflow.

Ramify's own objects are recognised by their attributes (`__ramify_step__`, …), so the compiler imports nothing of the
public API.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from ramify.compiler.declarations import StepInfo, WorkflowInfo
from ramify.compiler.frontend.python.names import arguments_of, names_bound_by
from ramify.compiler.frontend.python.sources import Definition, Function
from ramify.compiler.frontend.python.spec_inputs import static_attribute, values_were_read


class Unresolved:
    """The type of `UNRESOLVED`: the object is only known at run time."""


UNRESOLVED: Final = Unresolved()


@dataclass(frozen=True, slots=True)
class OpenFork:
    """A fork around the code that is being read."""

    depth: int  # 0: the outermost
    line: int


@dataclass(slots=True)
class Scope:
    """The names of the function that is being read."""

    function: Function
    outer: Scope | None = None
    local: frozenset[str] = frozenset()
    functions: dict[str, Definition] = field(default_factory=dict)  # functions defined inside this one
    forks: dict[str, OpenFork] = field(default_factory=dict)  # names that hold branches, or values made from them
    rebound: frozenset[str] = frozenset()  # globals that functions rebind, so their current value says nothing

    @classmethod
    def of(cls, function: Function, rebound: frozenset[str], outer: Scope | None = None) -> Scope:
        return cls(function, outer, frozenset(_local_names(function.node)), rebound=rebound)

    def definition(self, name: str) -> tuple[Scope, Definition] | None:
        """Return the function of this name that was defined inside this function or one around it."""
        if name in self.functions:
            return self, self.functions[name]
        return None if name in self.local or self.outer is None else self.outer.definition(name)

    def is_local(self, name: str) -> bool:
        return name in self.local or (self.outer is not None and self.outer.is_local(name))

    def fork_of(self, name: str) -> OpenFork | None:
        """Return the fork whose branches, or values made from them, the name holds."""
        if name in self.forks:
            return self.forks[name]
        return None if name in self.local or self.outer is None else self.outer.fork_of(name)

    def resolve(self, node: ast.expr) -> object:
        """Return the object that an expression denotes, or UNRESOLVED."""
        if isinstance(node, ast.Name):
            if self.is_local(node.id) or node.id in self.rebound:
                return UNRESOLVED
            outer = self.function.outer
            return outer[node.id] if node.id in outer else getattr(builtins, node.id, UNRESOLVED)
        if isinstance(node, ast.Attribute):
            return _attribute(self.resolve(node.value), node.attr)
        return UNRESOLVED


def _attribute(value: object, name: str) -> object:
    if isinstance(value, Unresolved):
        return UNRESOLVED
    if isinstance(value, ModuleType):  # a module may create its attributes on demand
        found = getattr(value, name, UNRESOLVED)
        values_were_read(vars(value))
        return found
    return static_attribute(value, name, UNRESOLVED)


def _mark(value: object, name: str) -> object:
    if isinstance(value, ModuleType | Unresolved):
        return None
    found = inspect.getattr_static(value, name, None)
    return getattr(value, name, None) if hasattr(type(found), "__get__") else found


def step_info(value: object) -> StepInfo | None:
    info = _mark(value, "__ramify_step__")
    return info if isinstance(info, StepInfo) else None


def decorated_step(value: object) -> object | None:
    """Return the step that another decorator than Ramify's wraps in this object; None if it wraps none.

    The object itself is no step, though `functools.wraps` copies a step's attributes to it: a call of it runs the
    decorator's code, which may call the step several times or not at all.
    """
    found, inner = None, _mark(value, "__wrapped__")
    while inner is not None:
        found = inner if step_info(inner) is not None else found
        inner = _mark(inner, "__wrapped__")
    return found


def workflow_info(value: object) -> WorkflowInfo | None:
    info = _mark(value, "__ramify_workflow__")
    return info if isinstance(info, WorkflowInfo) else None


def is_fork(value: object) -> bool:
    return _mark(value, "__ramify_fork__") is True


def is_llm(value: object) -> bool:
    return _mark(value, "__ramify_llm__") is True


def is_world(value: object) -> bool:
    """Return whether a value is a step's world, or the class of worlds."""
    return _mark(value, "__ramify_world__") is True


def is_world_annotation(text: str) -> bool:
    """Return whether an annotation, as text, names `Sandbox` or `SyncSandbox`, alone or in a union."""
    return any(part.strip().rpartition(".")[2] in ("Sandbox", "SyncSandbox") for part in text.split("|"))


def takes_world(function: Callable[..., Any]) -> bool:
    """Return whether a parameter of a function is annotated as a world."""
    return any(is_world_annotation(hint) for name, hint in annotations_of(function).items() if name != "return")


def annotations_of(thing: Callable[..., Any] | type) -> dict[str, str]:
    """Return the annotations of a function or class as texts. They need not be defined: from Python 3.14 on, names
    that are imported only for type checkers may stand in them."""
    if sys.version_info >= (3, 14):
        import annotationlib

        known = annotationlib.get_annotations(thing, format=annotationlib.Format.STRING)
    else:
        known = inspect.get_annotations(thing)
    return {name: hint if isinstance(hint, str) else inspect.formatannotation(hint) for name, hint in known.items()}


def plain_function(value: object) -> Callable[..., Any] | None:
    """Return the Python function that a call of this object runs, through wrappers that set `__wrapped__`."""
    if isinstance(value, staticmethod | classmethod | MethodType):
        value = value.__func__
    if isinstance(_mark(value, "__wrapped__"), FunctionType) and callable(value):
        value = inspect.unwrap(value)
    return value if isinstance(value, FunctionType) else None


def is_wrapped(value: object) -> bool:
    """Return whether a decorator other than Ramify's wraps this function or workflow.

    Such a decorator may catch exceptions of the function, or call it several times.
    """
    while not isinstance(value, FunctionType):
        inner = _mark(value, "__wrapped__")
        if inner is None:
            return False
        value = inner
    return hasattr(value, "__wrapped__")


def _local_names(definition: Definition) -> Iterator[str]:
    yield from (argument.arg for argument in arguments_of(definition.args))
    todo: list[ast.AST] = [definition.body] if isinstance(definition, ast.Lambda) else list(definition.body)
    elsewhere = set[str]()
    bound = set[str]()
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
                continue
            case ast.Lambda():
                continue
            case ast.Global(names=names):
                elsewhere.update(names)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                bound.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case _:
                bound.update(names_bound_by(node))
        todo += ast.iter_child_nodes(node)
    yield from bound - elsewhere
