"""What a step's code asks of its surroundings: the clock, chance, the environment; whether it starts a workflow, or
holds a world beyond its time; and whether what it takes and gives can be kept.

Read from the syntax of the step and of what it uses in its own module, names resolved to the objects that they are.
Not seen: what other modules do, and names that are only known while it runs.
"""

from __future__ import annotations

import ast
import datetime
import inspect
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.resolve import is_world, step_info, workflow_info
from ramify.compiler.frontend.sources import Definition, Function
from ramify.compiler.frontend.unkept import hints_of, unkept

_CLOCK = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "localtime", "gmtime", "ctime", "strftime")
_VARYING: tuple[tuple[object, tuple[str, ...], str], ...] = (
    (time, _CLOCK, "the clock"),
    (datetime.datetime, ("now", "utcnow", "today"), "the clock"),
    (datetime.date, ("today",), "the clock"),
    (uuid, ("uuid1", "uuid4"), "chance"),
    (os, ("urandom", "getrandom"), "chance"),
    (os, ("environ", "getenv", "environb", "getenvb"), "the host's environment"),
    (os, ("getcwd", "getpid"), "the host's process"),
)


def refuse_varying(step: str, function: Function, nodes: Iterable[ast.AST]) -> None:
    """For a step that is reused by state: raises WorkflowError where it reads what its key does not hold."""
    for node, what in _reads(function, nodes):
        raise WorkflowError(
            f"step {step} is declared reuse=True, but it reads {what} by `{ast.unparse(node)}`, which its key lacks",
            where=function.where(node),
            mend="hand the value in as an argument, or take reuse=True away",
        )


def refuse_workflows(step: str, function: Function, nodes: Iterable[ast.AST]) -> None:
    """Raises WorkflowError where a step calls a workflow: a step is one operation on one world."""
    for node in _inner(nodes):
        if isinstance(node, ast.Call) and workflow_info(_found(function, node.func)) is not None:
            raise WorkflowError(
                f"step {step} calls the workflow {ast.unparse(node.func)}",
                where=function.where(node),
                mend="call it from a workflow, or put what the two share into a plain async function",
            )


def refuse_calls_of_ours(node: str, function: Function) -> None:
    """Raises WorkflowError where a LangGraph node calls a step or a workflow: those belong to a workflow's run."""
    for call in ast.walk(function.node):
        if not isinstance(call, ast.Call):
            continue
        found = _found(function, call.func)
        kind = "step" if step_info(found) else "workflow" if workflow_info(found) else None
        if kind is not None:
            raise WorkflowError(
                f"node {node} calls the {kind} {ast.unparse(call.func)}, which is for workflows",
                where=function.where(call),
                mend="call a plain function, or add the step itself as a node",
            )


def refuse_worlds(what: str, function: Function, nodes: Iterable[ast.AST]) -> None:
    """Raises WorkflowError where code holds a world beyond the step that it belongs to: in a closure, a global or a
    default, or in a function that it hands out."""
    node = function.node
    for name in _inner(nodes):
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and _is_a_world(function.outer.get(name.id)):
            raise WorkflowError(
                f"{what} holds a world in {name.id}, which ends with the step that it was made for",
                where=function.where(name),
                mend="take the world as a parameter annotated `Sandbox`: each step is given its own",
            )
    worlds = {argument.arg for argument in _arguments(node) if _annotated_a_world(argument)}
    for given in _handed_out(node) if worlds else ():
        for inner in ast.walk(given):
            if isinstance(inner, ast.Name) and inner.id in worlds:
                raise WorkflowError(
                    f"{what} hands out a function that holds its world {inner.id}, which ends with the step",
                    where=function.where(inner),
                    mend="return what was read from the world, not a function that reads it later",
                )


def refuse_unkept(step: str, function: Function, code: Callable[..., Any]) -> None:
    """Raises WorkflowError for a step that takes or gives what the journal cannot keep."""
    for name, hint in hints_of(code).items():
        found = unkept(hint)
        if found is None or (name != "return" and found in ("Sandbox", "SyncSandbox")):
            continue
        said = "returns" if name == "return" else f"takes, as {name},"
        raise WorkflowError(
            f"step {step} {said} a {found}, which the journal cannot keep",
            where=function.where(),
            mend="hand over what it is made from (a path, a list, a name)",
        )


def _is_a_world(value: object) -> bool:
    return is_world(value) and not isinstance(value, type)


def _arguments(node: Definition) -> Iterator[ast.arg]:
    return (each for each in ast.walk(node.args) if isinstance(each, ast.arg))


def _annotated_a_world(argument: ast.arg) -> bool:
    if argument.annotation is None:
        return False
    text = ast.unparse(argument.annotation).strip("'\"")
    return any(part.strip().rpartition(".")[2] in ("Sandbox", "SyncSandbox") for part in text.split("|"))


def _handed_out(node: Definition) -> Iterator[ast.AST]:
    """The functions that a function returns or yields: lambdas there, and those of its own by name."""
    defined = {
        inner.name: inner
        for inner in ast.walk(node)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner is not node
    }
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Return | ast.Yield) or inner.value is None:
            continue
        for part in [inner.value, *getattr(inner.value, "elts", ()), *getattr(inner.value, "values", ())]:
            if isinstance(part, ast.Lambda):
                yield part
            elif isinstance(part, ast.Name) and part.id in defined:
                yield defined[part.id]


def _reads(function: Function, nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, str]]:
    known = ((home, name, what) for home, names, what in _VARYING for name in names if hasattr(home, name))
    kinds = {id(_attribute(home, name)): what for home, name, what in known}
    for node in _inner(nodes):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            found = _found(function, node)
            if found is not None and id(found) in kinds:
                yield node, kinds[id(found)]
            elif _is_chance(found):
                yield node, "chance"


def _is_chance(found: object) -> bool:
    """A function of `secrets`, or of `random` on its own hidden generator, which nobody seeds for this step."""
    if isinstance(found, FunctionType):
        return found.__module__ == "secrets"
    return getattr(found, "__self__", None) is random.random.__self__ and callable(found)  # type: ignore[attr-defined]


def _inner(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from ast.walk(node)


def _attribute(home: object, name: str) -> object:
    return getattr(home, name) if isinstance(home, ModuleType) else inspect.getattr_static(home, name)


def _found(function: Function, node: ast.expr) -> object | None:
    """The object that a dotted name is, None for anything else. No code of the user's runs."""
    if isinstance(node, ast.Name):
        return function.outer.get(node.id)
    if isinstance(node, ast.Attribute):
        home = _found(function, node.value)
        if isinstance(home, ModuleType):
            return home.__dict__.get(node.attr)
        return inspect.getattr_static(home, node.attr, None) if isinstance(home, type) else None
    return None
