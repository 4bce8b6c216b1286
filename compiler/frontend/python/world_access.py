"""Worlds that code holds longer than it has them: a world ends with the step that it was made for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from types import ModuleType

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.python.modules import used_names
from ramify.compiler.frontend.python.name_resolution import is_world
from ramify.compiler.frontend.python.sources import Definition, Function, Sources, in_same_project, within


def refuse_held_worlds(what: str, function: Function, nodes: Iterable[ast.AST]) -> None:
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
    worlds = world_parameters(node)
    for given in _handed_out(node) if worlds else ():
        for held in _held(given, worlds):
            raise WorkflowError(
                f"{what} hands out a function that holds its world {held.id}, which ends with the step",
                where=function.where(held),
                mend="return what was read from the world, not a function that reads it later",
            )


def world_parameters(node: Definition) -> set[str]:
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


ASKS = "current_sandbox"


def may_use_current_sandbox(function: Function, nodes: Collection[ast.AST], sources: Sources) -> bool:
    """Of a function, with the code of its module that it uses."""
    if _asks(nodes):
        return True
    used = {name for node in nodes for name in used_names(node)}
    homes = {_home(function.outer[name]) for name in used if name in function.outer} - {function.module}
    todo = [*homes, *_imported(nodes, function.module)]
    seen = set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in sources.reached:
            sources.reached[name] = _uses(name, function, sources)
        uses = sources.reached[name]
        if uses is None:
            return True
        todo += uses
    return False


def _uses(name: str, function: Function, sources: Sources) -> frozenset[str] | None:
    """The modules that a module uses; none of one of another project. None: it may ask, or nothing is known of it."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return frozenset()
    module = sys.modules.get(name)
    if module is None:  # it is imported while running
        return None
    path = getattr(module, "__file__", None)
    if path is None or not in_same_project(function, name, path):
        return frozenset()
    try:
        tree = sources.tree(path)
    except SyntaxError:  # no Python
        return None
    if (not tree.body and vars(module).keys() - _EMPTY) or _asks([tree]):
        return None
    return frozenset(map(_home, vars(module).values())) | frozenset(_imported([tree], name))


_EMPTY = frozenset(vars(ModuleType("empty"))) | {"__file__", "__cached__", "__builtins__", "__path__"}


def _asks(nodes: Iterable[ast.AST]) -> bool:
    for part in nodes:
        for node in ast.walk(part):
            match node:
                case (
                    ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.FunctionDef(name=name)
                ) if name == ASKS:
                    return True
    return False


def _home(value: object) -> str:
    """The module that something is, or was made in."""
    if isinstance(value, ModuleType):
        return value.__name__
    made = getattr(value, "__module__", None) or getattr(type(value), "__module__", None)
    return made if isinstance(made, str) else "builtins"


def _imported(nodes: Iterable[ast.AST], here: str) -> Iterator[str]:
    """What import statements inside functions name."""
    for part in nodes:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(part):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    base = here.rsplit(".", node.level)[0] if node.level else ""
                    yield ".".join(part for part in (base, node.module) if part)
        elif isinstance(part, ast.Module | ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _imported(ast.iter_child_nodes(part), here)
