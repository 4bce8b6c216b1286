"""The modules of a project: those that are loaded, and those that code imports only while it runs, by their files."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from weakref import WeakKeyDictionary

from ramify.compiler.frontend.python.sources import Function, Sources, in_same_project, root_of


def digest(nodes: Iterable[ast.AST]) -> str:
    """sha256 over syntax trees, whatever their order."""
    texts = sorted(map(dumped, nodes))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def dependencies(function: Function, sources: Sources) -> set[ast.AST]:
    """The function, and the statements of its module that it uses."""
    known = sources.dependencies.get(function.node)
    if known is None:
        known = sources.dependencies[function.node] = _dependencies(function, sources)
    return known


def _dependencies(function: Function, sources: Sources) -> set[ast.AST]:
    table = bindings(function.path, sources)
    found: set[ast.AST] = {function.node}
    todo: list[ast.AST] = [function.node]
    while todo:
        used = (node for name in used_names(todo.pop()) for node in table.get(name, ()))
        fresh = [node for node in used if node not in found]
        found.update(fresh)
        todo += fresh
    return found


_texts: WeakKeyDictionary[ast.AST, str] = WeakKeyDictionary()
_names: WeakKeyDictionary[ast.AST, set[str]] = WeakKeyDictionary()


def dumped(node: ast.AST) -> str:
    """Several functions use one statement: its text is made once."""
    text = _texts.get(node)
    if text is None:
        text = _texts[node] = ast.dump(node)
    return text


def used_names(node: ast.AST) -> set[str]:
    names = _names.get(node)
    if names is None:
        names = _names[node] = _used_names(node)
    return names


def _used_names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def bindings(path: str, sources: Sources) -> dict[str, list[ast.AST]]:
    """The statements at the top of a module that bind each name."""
    table = sources.bindings.get(path)
    if table is None:
        table = sources.bindings[path] = {}
        for statement in sources.tree(path).body:
            for name in bound_names(statement):
                table.setdefault(name, []).append(statement)
    return table


def bound_names(statement: ast.AST) -> set[str]:
    """The names that a statement binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
            inner = (node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt))
            handlers = statement.handlers if isinstance(statement, ast.Try) else []
            inside = [*inner, *(node for handler in handlers for node in handler.body)]
            return set().union(_stored(statement), *map(bound_names, inside))
        case _:
            return _stored(statement)


def _stored(statement: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A module of the project, or a function's surroundings in one."""

    name: str
    path: str
    package: str
    values: Mapping[str, object]
    table: Mapping[str, list[ast.AST]]  # the statements that bind each name
    home: Function  # whose project it is
    root: Path  # the folder where its top-level package stands, or the module itself
    by_file: bool = False  # nothing is known of its values: it need not be loaded

    def source(self, level: int, name: str | None) -> str:
        """The whole name of a module that it imports from, with so many dots before it."""
        above = self.package.split(".") if level else []
        return ".".join([*above[: len(above) - level + 1], *filter(None, [name])])


class Modules:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._loaded: dict[tuple[str, str, str], Module | None] = {}
        self._files: dict[tuple[Path, str], Module | None] = {}

    def of(self, function: Function) -> Module:
        """That of a function, as it stands around it."""
        package = function.outer.get("__package__")
        package = package if isinstance(package, str) else ""
        table = bindings(function.path, self._sources)
        return Module(
            function.module, function.path, package, function.outer, table, function, root_of(function.path)
        )

    def imported(self, by: Module, name: str) -> Module | None:
        """A module of the same project that this one imports; None of any other."""
        return self.beside(by, name) if by.by_file else self.loaded(by.home, name)

    def is_module(self, name: str, by: Module) -> bool:
        return self.beside(by, name) is not None if by.by_file else name in sys.modules

    def loaded(self, home: Function, name: str) -> Module | None:
        key = (home.path, home.module, name)
        if key not in self._loaded:
            self._loaded[key] = self._read(home, name)
        return self._loaded[key]

    def beside(self, by: Module, name: str) -> Module | None:
        """As `imported`, by its file alone, under the folder where the packages of this one stand: whether it is
        loaded already differs between two processes of one run."""
        key = (by.root, name)
        if key not in self._files:
            self._files[key] = self._read_file(by, name)
        return self._files[key]

    def _read(self, home: Function, name: str) -> Module | None:
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or path is None or not path.endswith(".py"):
            return None
        if not in_same_project(home, name, path):
            return None
        try:
            table = bindings(path, self._sources)
        except SyntaxError:  # changed since it was imported
            return None
        return Module(name, path, module.__package__ or "", vars(module), table, home, root_of(path))

    def _read_file(self, by: Module, name: str) -> Module | None:
        place = by.root.joinpath(*name.split("."))
        for path, package in (
            (place.with_name(f"{place.name}.py"), name.rpartition(".")[0]),
            (place / "__init__.py", name),
        ):
            if not path.is_file() or not in_same_project(by.home, name, str(path)):
                continue
            if str(path) == by.path:
                return by
            try:
                table = bindings(str(path), self._sources)
            except (SyntaxError, UnicodeDecodeError):  # as its import will say
                return None
            return Module(name, str(path), package, MappingProxyType({}), table, by.home, by.root, by_file=True)
        return None
