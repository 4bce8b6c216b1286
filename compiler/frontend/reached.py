"""Whether code gets at its world without being handed it: `current_sandbox`, in the code itself or in a module of the
same project that it uses, however far from it. Other packages know of no world.

By the module, not by the function: one that is reached is taken to be called whole.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from types import ModuleType

from ramify.compiler.frontend.digest import used_names
from ramify.compiler.frontend.sources import Function, Sources, same_home

ASKS = "current_sandbox"


def may_ask_for_worlds(function: Function, nodes: Collection[ast.AST], sources: Sources) -> bool:
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
    if path is None or not same_home(function, name, path):
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
