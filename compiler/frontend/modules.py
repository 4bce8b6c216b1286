"""The modules of a project: those that are loaded, and those that code imports only while it runs, by their files."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType

from ramify.compiler.frontend.digest import bindings
from ramify.compiler.frontend.sources import Function, Sources, root_of, same_home


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
        if not same_home(home, name, path):
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
            if not path.is_file() or not same_home(by.home, name, str(path)):
                continue
            if str(path) == by.path:
                return by
            try:
                table = bindings(str(path), self._sources)
            except (SyntaxError, UnicodeDecodeError):  # as its import will say
                return None
            return Module(name, str(path), package, MappingProxyType({}), table, by.home, by.root, by_file=True)
        return None
