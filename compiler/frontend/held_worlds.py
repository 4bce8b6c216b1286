"""Worlds that code holds longer than it has them: a world ends with the step that it was made for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.resolve import is_world
from ramify.compiler.frontend.sources import Definition, Function, within


def refuse_worlds(what: str, function: Function, nodes: Iterable[ast.AST]) -> None:
    """Raises WorkflowError where code holds a world beyond the step that it belongs to: in a closure, a global or a
    default, or in a function that it hands out."""
    node = function.node
    for name in within(nodes):
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and _is_a_world(function.outer.get(name.id)):
            raise WorkflowError(
                f"{what} holds a world in {name.id}, which ends with the step that it was made for",
                where=function.where(name),
                mend="take the world as a parameter annotated `Sandbox`: each step is given its own",
            )
    worlds = worlds_of(node)
    for given in _handed_out(node) if worlds else ():
        for held in _held(given, worlds):
            raise WorkflowError(
                f"{what} hands out a function that holds its world {held.id}, which ends with the step",
                where=function.where(held),
                mend="return what was read from the world, not a function that reads it later",
            )


def worlds_of(node: Definition) -> set[str]:
    """The parameters that take a world."""
    return {argument.arg for argument in _arguments(node) if _annotated_a_world(argument)}


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
    own = list(_own(node))
    defined = {inner.name: inner for inner in own if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)}
    for inner in own:
        if not isinstance(inner, ast.Return | ast.Yield) or inner.value is None:
            continue
        for part in [inner.value, *getattr(inner.value, "elts", ()), *getattr(inner.value, "values", ())]:
            if isinstance(part, ast.Lambda):
                yield part
            elif isinstance(part, ast.Name) and part.id in defined:
                yield defined[part.id]


def _own(node: Definition) -> Iterator[ast.AST]:
    """What a function's own body holds. Functions in it are not entered: what they return stays in this one."""
    todo: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    while todo:
        inner = todo.pop()
        yield inner
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(inner)


def _held(node: ast.AST, worlds: set[str]) -> Iterator[ast.Name]:
    """Where one of these names is used; a function in it that has a parameter of that name means another."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        worlds = worlds - {argument.arg for argument in _arguments(node)}
    if isinstance(node, ast.Name) and node.id in worlds:
        yield node
    for part in ast.iter_child_nodes(node):
        yield from _held(part, worlds)
