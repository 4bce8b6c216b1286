"""How code reaches its world: by a parameter, or by `ramify.current_sandbox`; and code that keeps a world too long.

A world ends with the step that it was made for, so code that holds one longer is refused. Code may also obtain the
world without a parameter, by `current_sandbox`. This is looked for in the code itself and in every module of the
project that it uses, however far away. Other packages know nothing of worlds. The search is by module, not by
function: a module that is reached counts as called in full.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from itertools import repeat
from operator import is_
from types import ModuleType
from weakref import WeakKeyDictionary

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.python.modules import used_names
from ramify.compiler.frontend.python.name_resolution import is_world, is_world_annotation, step_info
from ramify.compiler.frontend.python.names import nodes_in
from ramify.compiler.frontend.python.sources import (
    Definition,
    Function,
    Sources,
    in_same_project,
    own_nodes,
    project_folder,
    walk_definitions,
)
from ramify.compiler.frontend.python.spec_inputs import loaded_module, loaded_modules, values_were_read

CURRENT_SANDBOX = frozenset({"current_sandbox"})
_WORLDS = CURRENT_SANDBOX | {"Sandbox", "SyncSandbox"}

_WITHOUT_WORLDS = ("ramify.compiler", "ramify.decorators", "ramify.run_functions", "ramify.runtime", "ramify.serving")
"""The modules of Ramify whose objects use no world unless a step's code names one."""


def world_parameters(node: Definition) -> set[str]:
    """Return the names of the parameters that are annotated as a world."""
    return {argument.arg for argument in _arguments(node) if _is_annotated_world(argument)}


def _arguments(node: Definition) -> Iterator[ast.arg]:
    return (each for each in nodes_in(node.args) if isinstance(each, ast.arg))


def _is_annotated_world(argument: ast.arg) -> bool:
    if argument.annotation is None:
        return False
    return is_world_annotation(ast.unparse(argument.annotation).strip("'\""))


# Worlds that are kept too long


def refuse_held_worlds(what: str, function: Function, nodes: Iterable[ast.AST]) -> None:
    """Refuse code that keeps a world after its step: in a closure, a global, a default, or a function it returns.

    Args:
        what: The step or node, for the message.
        function: Its function.
        nodes: The function with the code of its module that it uses.

    Raises:
        WorkflowError: The code keeps a world.
    """
    node = function.node
    for name in walk_definitions(nodes):
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and _is_a_world(function.outer.get(name.id)):
            raise WorkflowError(
                f"{what} holds a world in {name.id}, which ends with the step that it was made for",
                where=function.where(name),
                mend="take the world as a parameter annotated `Sandbox`: each step is given its own",
            )
    worlds = world_parameters(node)
    for returned in _returned_functions(node) if worlds else ():
        for held in _uses_of_worlds(returned, worlds):
            raise WorkflowError(
                f"{what} returns a function that holds its world {held.id}, which ends with the step",
                where=function.where(held),
                mend="return what was read from the world, not a function that reads it later",
            )


def _is_a_world(value: object) -> bool:
    return is_world(value) and not isinstance(value, type)


def _returned_functions(node: Definition) -> Iterator[ast.AST]:
    """Yield the functions that a function returns or yields: lambdas, and inner functions by name."""
    own = list(own_nodes(node))
    defined = {inner.name: inner for inner in own if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)}
    for inner in own:
        if not isinstance(inner, ast.Return | ast.Yield) or inner.value is None:
            continue
        for part in [inner.value, *getattr(inner.value, "elts", ()), *getattr(inner.value, "values", ())]:
            if isinstance(part, ast.Lambda):
                yield part
            elif isinstance(part, ast.Name) and part.id in defined:
                yield defined[part.id]


def _uses_of_worlds(node: ast.AST, worlds: set[str]) -> Iterator[ast.Name]:
    """Yield the uses of these names. An inner function with a parameter of that name means another object."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        worlds = worlds - {argument.arg for argument in _arguments(node)}
    if isinstance(node, ast.Name) and node.id in worlds:
        yield node
    for part in ast.iter_child_nodes(node):
        yield from _uses_of_worlds(part, worlds)


# Code that may call `current_sandbox`


def may_use_current_sandbox(function: Function, nodes: Collection[ast.AST], sources: Sources) -> bool:
    """Return whether a function, with the code of its module that it uses (`nodes`), may call `current_sandbox`."""
    return _may_use(CURRENT_SANDBOX, function, nodes, sources)


def may_use_a_world(function: Function, nodes: Collection[ast.AST], sources: Sources) -> bool:
    """Return whether a function may use its world in any way, or call something that takes one."""
    code = [node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)]
    values = [function.outer.get(name) for node in code for name in used_names(node)]
    if any(map(_brings_a_world, values)):
        return True
    imported = list(_modules_named([node for node in nodes if node not in code], function.module))
    if _may_use(_WORLDS, function, code, sources, imported):
        return True
    return _may_call_anything(function, code) and sources.analysis(WorldCallers).exist_beside(function)


_IMPORTING = frozenset({"__import__", "eval", "exec", "getattr", "importlib", "import_module", "pkgutil", "runpy"})


def _may_call_anything(function: Function, nodes: Iterable[ast.AST]) -> bool:
    """Return whether it is not known what all the code calls: it calls methods of values, or values by another name,
    or finds code while it runs."""
    for node in (inner for part in nodes for inner in nodes_in(part)):
        match node:
            case ast.Attribute(ctx=ast.Load()) if function.lookup(node) is None:
                return True
            case ast.Subscript(ctx=ast.Load()) | ast.Call(func=ast.Call()):
                return True
            case ast.Name(id=name) if name in _IMPORTING:
                return True
            case ast.Call(func=ast.Name(id=name)) if name not in function.outer and not hasattr(builtins, name):
                return True
    return False


_WITHOUT_CALLERS = (sys.stdlib_module_names | {"ramify"}) - {"__main__"}


class WorldCallers:
    """Knows whether code that is loaded beside a step calls `current_sandbox`. A registry, an argument or an object
    may bring a step to it, without a name in the step's code."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._known: dict[tuple[str, str], bool] = {}

    def exist_beside(self, function: Function) -> bool:
        """Return whether a module of the function's project names `current_sandbox`, or one of another project has
        it or Ramify among its globals."""
        project = function.module.partition(".")[0], str(project_folder(function.path))
        if project not in self._known:
            others = [each for each in loaded_modules() if each[0].partition(".")[0] not in _WITHOUT_CALLERS]
            self._known[project] = any(self._is_caller(*project, *each) for each in others)
        return self._known[project]

    def _is_caller(self, package: str, folder: str, name: str, module: object) -> bool:
        top = name.partition(".")[0]
        if not isinstance(module, ModuleType):
            return False
        path = vars(module).get("__file__")
        if not isinstance(path, str) or not path.endswith(".py"):
            return False
        installed = "site-packages" in path
        if not installed and (path.startswith(f"{folder}{os.sep}") or (top == package and package != "__main__")):
            return any("current_sandbox" in line for line in linecache.getlines(path))
        return _has_ramify(module)


def _has_ramify(module: ModuleType) -> bool:
    """Return whether Ramify, or `current_sandbox`, is among the globals of a module of another project."""
    ours = sys.modules.get("ramify")
    names = vars(module)
    return "current_sandbox" in names or (ours is not None and any(map(is_, names.values(), repeat(ours))))


def _brings_a_world(value: object) -> bool:
    """Return whether a value is a world, or takes or returns one, or is of Ramify and may do so."""
    if is_world(value) or getattr(value, "__name__", None) in _WORLDS:
        return True
    if (info := step_info(value)) is not None:
        return info.takes_sandbox
    module = _module_of(value)
    return module.startswith("ramify.") and not module.startswith(_WITHOUT_WORLDS)


def _may_use(
    names: frozenset[str],
    function: Function,
    nodes: Collection[ast.AST],
    sources: Sources,
    imported: Collection[str] = (),
) -> bool:
    """imported: modules from which it uses values, besides those in which the values were made."""
    if _are_named(names, nodes):
        return True
    used = {name for node in nodes for name in used_names(node)}
    modules = {_module_of(function.outer[name]) for name in used if name in function.outer} - {function.module}
    todo = [*modules, *imported, *_imported_modules(nodes, function.module)]
    visited = set[str]()
    while todo:
        name = todo.pop()
        if name in visited:
            continue
        visited.add(name)
        if (names, name) not in sources.modules_used:
            sources.modules_used[names, name] = _modules_used(names, name, function, sources)
        uses = sources.modules_used[names, name]
        if uses is None:
            return True
        todo += uses
    return False


def _modules_used(names: frozenset[str], name: str, function: Function, sources: Sources) -> frozenset[str] | None:
    """Return the modules that a module uses; an empty set for one of another project.

    None: one of `names` stands in the module, or it may use worlds for all that is known of it.
    """
    if name.partition(".")[0] in sys.stdlib_module_names | {"ramify"}:  # see `_brings_a_world`
        return frozenset()
    module = loaded_module(name)
    if module is None:  # it is imported at run time
        return None
    path = getattr(module, "__file__", None)
    if path is None or not in_same_project(function, name, path):
        return None if names is _WORLDS and _has_ramify(module) else frozenset()
    try:
        tree = sources.tree(path)
    except SyntaxError:  # not Python
        return None
    values_were_read(vars(module))
    if (not tree.body and vars(module).keys() - _EMPTY_MODULE) or _are_named(names, [tree]):
        return None
    return frozenset(map(_module_of, vars(module).values())) | frozenset(_imported_modules([tree], name))


_EMPTY_MODULE = frozenset(vars(ModuleType("empty"))) | {"__file__", "__cached__", "__builtins__", "__path__"}


_named: WeakKeyDictionary[ast.AST, dict[frozenset[str], bool]] = WeakKeyDictionary()
_imports: WeakKeyDictionary[ast.AST, dict[str, tuple[str, ...]]] = WeakKeyDictionary()
# kept with the syntax: several readings of a process search the same files


def _are_named(names: frozenset[str], nodes: Iterable[ast.AST]) -> bool:
    for part in nodes:
        known = _named.setdefault(part, {})
        if names not in known:
            known[names] = any(_is_named(names, node) for node in nodes_in(part))
        if known[names]:
            return True
    return False


def _is_named(names: frozenset[str], node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.FunctionDef(name=name):
            return name in names
        case ast.arg(annotation=ast.Constant(value=str(text))):
            return is_world_annotation(text)
        case _:
            return False


def _module_of(value: object) -> str:
    """Return the name of a module, or of the module in which a value was made."""
    if isinstance(value, ModuleType):
        return value.__name__
    made = getattr(value, "__module__", None) or getattr(type(value), "__module__", None)
    return made if isinstance(made, str) else "builtins"


def _imported_modules(nodes: Iterable[ast.AST], here: str) -> Iterator[str]:
    """Yield the modules that import statements inside functions name."""
    for part in nodes:
        known = _imports.setdefault(part, {})
        if here not in known:
            known[here] = tuple(_imported_inside(part, here))
        yield from known[here]


def _imported_inside(part: ast.AST, here: str) -> Iterator[str]:
    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _modules_named(nodes_in(part), here)
    elif isinstance(part, ast.Module | ast.ClassDef | ast.If | ast.Try | ast.With):
        for inner in ast.iter_child_nodes(part):
            yield from _imported_inside(inner, here)


def _modules_named(nodes: Iterable[ast.AST], here: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here.rsplit(".", node.level)[0] if node.level else ""
            yield ".".join(part for part in (base, node.module) if part)
